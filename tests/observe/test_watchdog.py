"""The watchdog: what is late ends the process in bounded time, with a line that says what it was."""

import signal
import threading
import time
from types import SimpleNamespace

import pytest

from tests.kit.ranks import started_ranks
from tests.kit.runs import SMALL
from tftrain.config.run import LimitsConfig
from tftrain.host.exit_codes import ExitCode
from tftrain.observe import watchdog
from tftrain.observe.watchdog import Watchdog
from tftrain.parallel.pending_collectives import Collective, PendingCollectives

ENDLESS = ("-m", "tftrain.run", *SMALL, "--global_batch_size=8", "--max_steps=1000000", "--log_every=10")


class Watched:
    """A watchdog that only notes with which code it would have ended the process."""

    def __init__(self, folder, **limits):
        self.codes, self._ended = [], threading.Event()
        self.dog = Watchdog(3, LimitsConfig(**limits), str(folder), self._end)

    def _end(self, code):
        self.codes.append(code)
        self._ended.set()

    def ends(self, seconds=10):
        return self._ended.wait(seconds)


def test_what_is_late_is_named_with_its_flag_and_the_collectives_that_wait(tmp_path, capfd):
    watched = Watched(tmp_path, step_timeout_seconds=0.5)
    pending = watched.dog.pending = PendingCollectives()

    def late(_):
        assert watched.ends()
        raise TimeoutError

    with watched.dog.limit("step 12", "step_timeout_seconds"), pytest.raises(TimeoutError):
        pending.around(Collective("all-reduce", "data.gradients.0", (1, 3)), [], late)
    assert watched.codes == [ExitCode.STALLED]
    said = capfd.readouterr().err
    expected = (
        "tftrain.run: rank 3: step 12 took longer than --step_timeout_seconds=0.5 seconds; "
        "begun and not ended: all-reduce data.gradients.0 of ranks 1, 3"
    )
    assert expected in said
    stacks = (tmp_path / "stacks" / "rank_3.txt").read_text()
    assert stacks.startswith(expected)
    # The innermost frame of the thread that was late.
    assert "in late" in stacks
    assert "in late" in said


def test_what_ends_in_time_or_gets_on_is_left_alone(tmp_path):
    watched = Watched(tmp_path, step_timeout_seconds=1.0)
    with watched.dog.limit("a short step", "step_timeout_seconds"):
        pass
    with watched.dog.limit("an evaluation", "step_timeout_seconds") as limit:
        for _ in range(5):
            time.sleep(0.4)
            limit.restart()
    assert not watched.ends(1.5)


def test_the_most_urgent_of_several_limits_counts(tmp_path):
    watched = Watched(tmp_path, save_timeout_seconds=100.0, preempt_save_seconds=0.5)
    with watched.dog.limit("the checkpoint", "save_timeout_seconds"):
        watched.dog.begin("stopping", "preempt_save_seconds", ExitCode.NOT_SAVED)
        assert watched.ends()
    assert watched.codes == [ExitCode.NOT_SAVED]


def test_a_process_that_was_stopped_and_continued_has_its_time(tmp_path, monkeypatch):
    late = [0.0]
    monkeypatch.setattr(
        watchdog, "time", SimpleNamespace(sleep=time.sleep, monotonic=lambda: time.monotonic() + late[0])
    )
    watched = Watched(tmp_path, step_timeout_seconds=3.0)
    with watched.dog.limit("step 1", "step_timeout_seconds"):
        late[0] = 3600.0
        assert not watched.ends(1.0)
        assert watched.ends()


def test_a_report_that_hangs_keeps_nothing_alive(tmp_path, monkeypatch):
    monkeypatch.setattr(watchdog, "REPORT_SECONDS", 0.2)
    monkeypatch.setattr(Watchdog, "waiting", lambda self: time.sleep(30))
    watched = Watched(tmp_path, step_timeout_seconds=0.1)
    with watched.dog.limit("step 1", "step_timeout_seconds"):
        assert watched.ends()


def test_a_folder_that_cannot_be_written_to_is_no_obstacle(tmp_path, capfd):
    (tmp_path / "stacks").write_text("not a folder")
    watched = Watched(tmp_path, step_timeout_seconds=0.1)
    with watched.dog.limit("step 1", "step_timeout_seconds"):
        assert watched.ends()
    assert "the stacks can't be written" in capfd.readouterr().err


@pytest.mark.multirank
def test_a_rank_that_stands_still_ends_the_others_and_finds_them_gone(tmp_path):
    # Without a watchdog of its own: on a busy machine its limit might be over before it has said what it found.
    program = f"""
import os, sys
from tftrain import run
from tftrain.observe.watchdog import Watchdog
if os.environ["HOROVOD_RANK"] == "1":
    Watchdog._watch = lambda self: None
sys.exit(run.main(["tftrain.run", *{[*ENDLESS[2:], "--step_timeout_seconds=10", f"--output_dir={tmp_path}"]}]))
"""
    with started_ranks(2, ["-c", program]) as ranks:
        ranks.wait_for("samples/s")
        ranks.processes[1].send_signal(signal.SIGSTOP)
        assert ranks.codes([0], 28) == [ExitCode.STALLED]
        said = ranks.output(0)
        assert "took longer than --step_timeout_seconds=10 seconds; begun and not ended: " in said
        assert "of ranks 0, 1" in said
        assert "Thread 0x" in (tmp_path / "stacks" / "rank_0.txt").read_text()
        ranks.processes[1].send_signal(signal.SIGCONT)
        assert ranks.codes([1], 60) == [ExitCode.PEER_ENDED]
        assert "tftrain.run: rank 1: another rank ended" in ranks.output(1)
