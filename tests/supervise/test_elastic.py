"""Supervisors of an elastic job, under Horovod's own driver: what they do when children end and hosts change."""

import functools
import os
import signal
import sys
import threading
import time

import pytest
from horovod.runner.common.util.hosts import SlotInfo
from horovod.runner.elastic import driver
from horovod.runner.elastic.discovery import HostDiscovery
from horovod.runner.elastic.driver import ElasticDriver
from horovod.runner.elastic.rendezvous import create_rendezvous_handler
from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars
from horovod.runner.http.http_server import RendezvousServer

from tests.kit.waiting import wait_until
from tftrain.config.fields import Problem
from tftrain.host.exit_codes import ExitCode
from tftrain.parallel.membership import Membership
from tftrain.parallel.rendezvous import LauncherStore
from tftrain.supervise import elastic

# Says in FOLDER/starts which rank of how many it is, and ends with the number that FOLDER/end_HOST or FOLDER/end holds.
CHILD = """
import os, pathlib, signal, sys, time
folder, host, parent = pathlib.Path(sys.argv[1]), os.environ["HOROVOD_HOSTNAME"], os.getppid()
signal.signal(signal.SIGUSR1, lambda *_: (folder / "stop").rename(folder / "end"))
with (folder / "starts").open("a") as file:
    print(os.environ["HOROVOD_RANK"], os.environ["HOROVOD_SIZE"], *sys.argv[2:], file=file, flush=True)
while os.getppid() == parent:
    for path in (folder / f"end_{host}", folder / "end"):
        if path.exists():
            code = int(path.read_text())
            if path.name != "end":
                path.unlink()
            if code < 0:
                os.kill(os.getpid(), -code)
            sys.exit(code)
    time.sleep(0.02)
"""


class Hosts(HostDiscovery):
    """Says what a test has written."""

    def __init__(self, names):
        self.names = names

    def find_available_hosts_and_slots(self):
        return dict.fromkeys(self.names, 1)


class Job:
    """An elastic job whose hosts are names, with a supervisor in a thread for each."""

    def __init__(self, folder, names, problems=lambda ranks: [], cut=()):
        """The driver loses a supervisor on a host of `cut`, which lives on, when the host's event is set."""
        self.folder, self.hosts, self.codes = folder, Hosts(names), {}
        self.cut = {name: threading.Event() for name in cut}
        self._problems = problems
        (folder / "stop").write_text(str(int(ExitCode.STOPPED)))
        self.server = RendezvousServer(0)
        self.driver = ElasticDriver(self.server, self.hosts, 1, 9, timeout=60)
        self._port = self.server.start(create_rendezvous_handler(self.driver))
        self.driver.wait_for_available_slots(len(names))
        self.driver.start(len(names), self._work)

    def _work(self, slot: SlotInfo, events):
        environ = {
            **os.environ,
            **create_slot_env_vars(slot),
            **{
                name: str(value)
                for name, value in create_run_env_vars("127.0.0.1", ["lo"], self._port, elastic=True).items()
            },
        }
        command = [sys.executable, "-c", CHILD, str(self.folder)]
        membership = Membership(environ)
        supervisor = elastic.Supervisor(membership, environ, command, str(self.folder), self._problems, 30)
        if slot.hostname in self.cut:
            threading.Thread(target=lambda: self.codes.setdefault(slot.hostname, supervisor.run())).start()
            self.cut[slot.hostname].wait()
            return 255, time.time()
        code = supervisor.run()
        self.codes.setdefault(slot.hostname, code)
        return code, time.time()

    def notes(self):
        """Returns the store, where the supervisors leave notes."""
        return LauncherStore(f"127.0.0.1:{self._port}")

    def starts(self):
        """Returns rank, size and further arguments of all children so far."""
        path = self.folder / "starts"
        return [tuple(line.split()) for line in path.read_text().splitlines()] if path.exists() else []

    def await_starts(self, *expected):
        """Waits for further starts, in any order."""
        self.seen = getattr(self, "seen", 0)
        wait_until(lambda: len(self.starts()) >= self.seen + len(expected))
        assert sorted(self.starts()[self.seen :]) == sorted(expected)
        self.seen += len(expected)

    def change_hosts(self, *names):
        """Lets hosts come or go; returns when all children have stopped for that and the driver has ranks for all."""
        self.hosts.names = list(names)
        wait_until((self.folder / "end").exists)
        wait_until(lambda: len(self.driver.host_assignments) == len(names))
        (self.folder / "end").unlink()

    def end(self, host, code):
        self._write(f"end_{host}", code)

    def end_all(self, code=0):
        self._write("end", code)

    def _write(self, name, code):
        """Lets no child see half of it."""
        (self.folder / "new").write_text(str(int(code)))
        (self.folder / "new").rename(self.folder / name)

    def finish(self):
        """Returns the exit codes that the driver has counted, after all has ended."""
        results = self.driver.get_results().worker_results
        self.driver.stop()
        return {name.split("[")[0]: code for name, (code, _) in results.items()}


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(elastic, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(elastic, "GRACE_SECONDS", 1.0)
    monkeypatch.setattr(elastic, "FINAL_SECONDS", 0.2)
    monkeypatch.setattr(driver, "DISCOVER_HOSTS_FREQUENCY_SECS", 0.1)


@pytest.mark.parametrize("code", [-9, ExitCode.STALLED])
def test_a_lost_child_starts_again_and_children_that_hang_meanwhile_as_well(tmp_path, code):
    job = Job(tmp_path, ["a", "b", "c"])
    job.await_starts(("0", "3"), ("1", "3"), ("2", "3"))
    job.end("b", int(code))
    job.await_starts(("0", "3"), ("1", "3"), ("2", "3"))
    job.end_all()
    assert job.finish() == {"a": 0, "b": 0, "c": 0}


@pytest.mark.parametrize("saves", [True, False], ids=["training", "evaluation"])
def test_a_training_resumes_what_it_saved_and_an_evaluation_keeps_its_checkpoint(tmp_path, monkeypatch, saves):
    monkeypatch.setattr(elastic.folder, "find", lambda output_dir: [tmp_path / "step_00000010"])
    monkeypatch.setattr(elastic, "Supervisor", functools.partial(elastic.Supervisor, saves=saves))
    job = Job(tmp_path, ["a"])
    job.await_starts(("0", "1"))
    job.end("a", -9)
    job.await_starts(("0", "1", *(["--resume=auto"] if saves else [])))
    job.end_all()
    assert job.finish() == {"a": 0}


@pytest.mark.parametrize("code", [ExitCode.FAILED, ExitCode.NOT_FINITE])
def test_a_fault_of_its_own_ends_all_at_once_although_others_only_see_a_peer_go(tmp_path, monkeypatch, code):
    monkeypatch.setattr(elastic, "FINAL_SECONDS", 60.0)
    job = Job(tmp_path, ["a", "b", "c"])
    job.await_starts(("0", "3"), ("1", "3"), ("2", "3"))
    job.end("c", int(ExitCode.PEER_ENDED))  # This one notices before the culprit has ended, and the other not at all.
    time.sleep(0.3)
    job.end("b", int(code))
    job.finish()
    assert job.codes == {"a": 137, "b": code, "c": ExitCode.PEER_ENDED}
    assert len(job.starts()) == 3


def test_ranks_that_are_lost_again_and_again_without_progress_end_the_run(tmp_path):
    job = Job(tmp_path, ["a"])
    for _ in range(elastic.MAX_FAILURES + 1):
        job.await_starts(("0", "1"))
        job.end("a", -9)
    assert job.finish() == {"a": ExitCode.FAILED}


def test_a_new_host_is_taken_in_after_all_have_stopped_and_resumes_what_they_have_saved(tmp_path, monkeypatch):
    """Whatever its command is to resume, else the ranks disagree on --resume, which ends the run."""
    monkeypatch.setattr(elastic.folder, "find", lambda output_dir: [tmp_path / "step_00000010"])
    job = Job(tmp_path, ["a", "b"])
    job.await_starts(("0", "2"), ("1", "2"))
    job.change_hosts("a", "b", "c")
    job.await_starts(*((rank, "3", "--resume=auto") for rank in "012"))
    job.end_all()
    assert job.finish() == {"a": 0, "b": 0, "c": 0}


def test_hosts_that_appear_one_after_the_other_before_the_first_step_are_no_failures(tmp_path, monkeypatch):
    """The signal that asks a child to save ends one that does not listen yet."""
    monkeypatch.setattr(elastic, "MAX_FAILURES", 0)
    monkeypatch.setattr(sys.modules[__name__], "CHILD", CHILD.replace("signal.signal(", "print("))
    job = Job(tmp_path, ["a"])
    job.await_starts(("0", "1"))
    job.hosts.names = ["a", "b"]
    job.await_starts(("0", "2"), ("1", "2"))
    job.end_all()
    assert job.finish() == {"a": 0, "b": 0}


def test_a_host_that_is_taken_away_leaves_and_the_others_go_on(tmp_path):
    job = Job(tmp_path, ["a", "b"])
    job.await_starts(("0", "2"), ("1", "2"))
    job.change_hosts("a")
    job.await_starts(("0", "1"))
    wait_until(lambda: "b" in job.codes)
    job.end_all()
    assert job.finish() == {"a": 0}
    assert job.codes == {"a": 0, "b": 0}


def test_a_supervisor_that_the_driver_has_given_up_disturbs_no_one(tmp_path):
    job = Job(tmp_path, ["a", "b"], cut=["b"])
    job.await_starts(("0", "2"), ("1", "2"))
    job.cut["b"].set()
    job.end("a", ExitCode.PEER_ENDED)
    job.await_starts(("0", "1"))
    job.end("b", ExitCode.PEER_ENDED)
    wait_until(lambda: "b" in job.codes)
    assert job.codes["b"] == ExitCode.DONE
    assert job.notes().get(elastic.RANK_FAILED) is None
    job.end_all()
    assert job.finish()["a"] == 0
    assert job.starts() == [*job.starts()[:2], ("0", "1")]


def test_a_number_of_ranks_that_can_not_share_the_work_waits_for_other_hosts(tmp_path):
    job = Job(tmp_path, ["a"], problems=lambda ranks: [Problem("tensor_parallel_size", 2, "")] if ranks % 2 else [])
    time.sleep(0.5)
    assert job.starts() == []
    job.hosts.names = ["a", "b"]
    job.await_starts(("0", "2"), ("1", "2"))
    job.end_all()
    assert job.finish() == {"a": 0, "b": 0}


def test_a_signal_while_the_ranks_wait_for_other_hosts_ends_all(tmp_path, monkeypatch):
    """Else the others would go on without the host, and perhaps train."""
    supervisors, init = [], elastic.Supervisor.__init__
    monkeypatch.setattr(
        elastic.Supervisor, "__init__", lambda self, *args: (supervisors.append(self), init(self, *args))[1]
    )
    job = Job(tmp_path, ["a", "b"], problems=lambda ranks: [Problem("global_batch_size", 3, "")] if ranks > 1 else [])
    wait_until(lambda: len(supervisors) == 2)
    with pytest.raises(SystemExit, match=str(int(ExitCode.STOPPED))):
        supervisors[1].forward(signal.SIGTERM, None)
    wait_until(lambda: len(job.codes) == 2, 10)
    assert job.starts() == []
    job.finish()


def test_without_a_driver_nothing_goes_on(tmp_path):
    job = Job(tmp_path, ["a"])
    job.await_starts(("0", "1"))
    job.driver.stop()
    job.server._httpd.server_close()  # As when its process has gone.
    wait_until(lambda: job.codes)
    assert job.codes == {"a": ExitCode.FAILED}


def test_the_last_logged_step_is_that_of_the_last_line(tmp_path):
    assert elastic.last_logged_step(tmp_path) == 0
    (tmp_path / "metrics.jsonl").write_text('{"step": 3, "loss": 1}\n{"step": 5, "eval_mlm_loss": 2}\n')
    assert elastic.last_logged_step(tmp_path) == 5
    (tmp_path / "metrics.jsonl").write_text('{"step": 3}\n{"ste')
    assert elastic.last_logged_step(tmp_path) == 0
