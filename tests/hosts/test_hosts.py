"""Trainings on hosts of their own: started by each launcher, disturbed, and elastic.

`make test` runs one training on two hosts. The long tests repeat it with `horovodrun`, and with faults.
"""

import json
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.crash_matrix.matrix import TRAINING
from tests.hosts import training
from tests.hosts.faults import FAULTS, play, undisturbed
from tests.hosts.network import network, unavailable_reason
from tests.hosts.training import FLAGS, Job
from tests.kit.final_state import differences, final_state
from tests.kit.ranks import run_ranks
from tests.kit.waiting import wait_until
from tests.launching.fakes import command_of
from tests.supervise.test_elastic_job import RUN, Hosts, losses
from tftrain.host.exit_codes import ExitCode
from tftrain.launching.job import Limits

pytestmark = [
    pytest.mark.multirank,
    pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason()),
]
SECONDS = 240
PAIR = "node1:1,node2:1"
# Without it, horovodrun does not learn that a host no longer answers: see docs/elastic.md.
KEEPALIVE = "  ServerAliveInterval 10\n  ServerAliveCountMax 3"
HYBRID = (*TRAINING, "--split_weights", "--split_group=host")
STEPS = 4
SHORT = (*FLAGS, f"--max_steps={STEPS}", "--checkpoint_every=0")


# `horovodrun` loads TensorFlow on every host before it starts a rank. `tftrain.launch` shows the same in less time.
@pytest.mark.parametrize(
    ("launcher", "ranks"),
    [
        (training.launch, 1),
        pytest.param(training.launch, 2, marks=pytest.mark.nightly),
        pytest.param(training.horovodrun, 2, marks=pytest.mark.nightly),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_two_hosts_have_the_losses_of_one(tmp_path, launcher, ranks):
    one_host = tmp_path / "one_host"
    run_ranks(2 * ranks, ["-m", "tftrain.run", *SHORT, f"--output_dir={one_host}"], seconds=SECONDS)
    with network(tmp_path / "network", "node1", "node2") as hosts:
        command = launcher(*SHORT, f"--output_dir={tmp_path / 'run'}", places=f"node1:{ranks},node2:{ranks}")
        job = Job(hosts, "node1", command, tmp_path / "log")
        job.wait_until(lambda: len(job.ranks("node1")) == len(job.ranks("node2")) == ranks, SECONDS)
        outcome = job.outcome(SECONDS)
    assert outcome.code == 0, outcome.output
    assert outcome.left == []
    found = losses(tmp_path / "run")
    assert list(found) == list(range(1, STEPS + 1))
    assert found == pytest.approx(losses(one_host), rel=1e-7)


def test_a_host_with_another_key_than_the_known_one_gets_nothing(tmp_path):
    with network(tmp_path / "network", "node1", "node2") as hosts:
        (known,) = (tmp_path / "network").rglob("known_hosts")
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
        key = " ".join((tmp_path / "other.pub").read_text().split()[:2])
        known.write_text("".join(f"{line.split()[0]} {key}\n" for line in known.read_text().splitlines()))
        job = Job(hosts, "node1", training.launch(*SHORT, f"--output_dir={tmp_path / 'run'}"), tmp_path / "log")
        outcome = job.outcome(SECONDS)
    assert outcome.code == ExitCode.FAILED
    assert "Host key verification failed" in outcome.output
    assert not list((tmp_path / "run").glob("config.json"))


GROUPS = {
    "tensor": ("--tensor_parallel_size=2",),
    "pipeline": ("--num_hidden_layers=2", "--pipeline_parallel_size=2", "--grad_accum_steps=2"),
}
BROKEN = {
    # What happens to node2: the codes of the ranks, the launcher's, its last line, and the longest step.
    "killed": (
        {0: ExitCode.PEER_ENDED, 1: ExitCode.SIGNALLED + signal.SIGKILL},
        ExitCode.SIGNALLED + signal.SIGKILL,
        "rank 1 on node2 ended with 137: .*start again to continue",
        300,
    ),
    "stopped": (
        {0: ExitCode.STALLED, 1: ExitCode.SIGNALLED + signal.SIGKILL},
        ExitCode.STALLED,
        "rank 0 on node1 ended with 77: .*; start again to continue",
        20,
    ),
    # Horovod's time limit, 30 seconds, is shorter than that of a step.
    "link": (
        {0: ExitCode.PEER_ENDED, 1: None},
        ExitCode.PEER_ENDED,
        "rank 1 on node2: no connection; .*; start again to continue",
        300,
    ),
}


# TensorFlow's collectives between hosts; `FAULTS` has tensor groups within each host.
@pytest.mark.nightly
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("name", BROKEN)
def test_a_fault_between_the_ranks_of_a_group_ends_both(tmp_path, name, group):
    codes, code, line, seconds = BROKEN[name]
    flags = (*TRAINING, *GROUPS[group], "--group_transport=tensorflow", "--max_steps=1000000", "--log_every=10")
    flags += ("--checkpoint_every=0", f"--step_timeout_seconds={seconds}", f"--output_dir={tmp_path}")
    command = training.launch(*flags, places=PAIR)
    with network(tmp_path / "network", "node1", "node2") as hosts:
        job = Job(hosts, "node1", command, tmp_path / "log")
        job.wait_for("20/1000000", SECONDS)
        job.fault(lambda: FAULTS[name].act(job))
        outcome = job.outcome(120)
    assert outcome.left == []
    assert outcome.codes == codes, outcome.output
    assert outcome.code == code, outcome.output
    assert re.search(line, outcome.line), outcome.output


# The launcher's own tests in tests/launching do most of these faults to ranks without TensorFlow, on one host.
@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_ends_all_ranks_with_a_line_and_the_next_start_continues(tmp_path, name, record_property):
    fault = FAULTS[name]
    flags = tuple(flag for flag in fault.flags if "FOLDER" not in flag)
    row = play(fault, tmp_path, undisturbed(flags, tmp_path / "undisturbed"))
    record_property("outcome", json.dumps([row.outcome.code, row.outcome.seconds, row.line]))
    assert not row.problems, "\n".join(row.problems)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("given", [FLAGS, HYBRID], ids=["tensor parallel", "weights sharded within a host"])
def test_after_the_death_of_a_host_the_run_goes_on_from_the_memory_of_the_other_bit_for_bit(tmp_path, given):
    alone = (*given, "--checkpoint_every=0", f"--output_dir={tmp_path / 'alone'}")
    flags = (*given, "--checkpoint_every=0", "--memory_checkpoint_steps=3", f"--output_dir={tmp_path / 'run'}")
    with network(tmp_path / "network", "node1", "node2") as hosts:
        for host in hosts.values():
            host.run("mount", "-t", "tmpfs", "none", "/dev/shm")
        whole = Job(hosts, "node1", training.launch(*alone), tmp_path / "alone.log").outcome(SECONDS)
        job = Job(hosts, "node1", training.launch(*flags), tmp_path / "first.log")
        job.wait_for("20/60", SECONDS)
        job.fault(lambda: FAULTS["processes"].act(job))
        assert job.outcome(60).code == ExitCode.PEER_ENDED
        hosts["node2"].run("sh", "-c", "rm -r /dev/shm/tftrain_*")
        again = Job(hosts, "node1", training.launch(*flags), tmp_path / "second.log").outcome(SECONDS)
        for host in hosts.values():
            host.run("sh", "-c", "! ls -d /dev/shm/tftrain_*")
    assert (whole.code, again.code) == (0, 0), again.output
    step = int(re.search(r"step_(\d+) was in memory", again.output)[1])
    assert step >= 15, again.output
    assert not differences(final_state(tmp_path / "run"), final_state(tmp_path / "alone"))


# tests/launching/test_agent.py has what an agent does then, without the minute.
@pytest.mark.nightly
def test_ranks_end_when_the_host_of_the_launcher_no_longer_answers(tmp_path):
    script = "listen(signal.SIGTERM, code=75); note('rank'); say('runs'); run(200); note('late')"
    limits = Limits(save=20)
    with network(tmp_path / "network", "login", "node1") as hosts:
        command = command_of(script, 2, limits, {"hosts": "node1:2"})
        job = Job(hosts, "login", ["env", f"NOTES={tmp_path}", *command], tmp_path / "log")
        job.wait_until(lambda: job.output.count("runs") == 2, SECONDS)
        begin = time.monotonic()
        job.fault(hosts["login"].disconnect)
        wait_until(lambda: all("sshd" in process.name() for process in hosts["node1"].processes()), 90)
        seconds = time.monotonic() - begin
        outcome = job.outcome(30)
    assert seconds > 45
    assert not list(tmp_path.glob("late_*"))
    assert outcome.code == ExitCode.PEER_ENDED, outcome.output
    assert outcome.line == (
        "tftrain.launch: ranks 0, 1 on node1: no connection; check the host and the network, expected `ssh node1 true` "
        "to work; start again to continue"
    )


# tests/supervise/test_elastic_job.py does the same with names of one machine for hosts.
@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("has_link", [True, False], ids=["list", "link"])
def test_an_elastic_run_goes_on_when_a_host_leaves_and_comes_back(tmp_path, has_link):
    found, output_dir = Hosts(tmp_path, "node1", "node2"), tmp_path / "run"
    options = ["-np", "2", "--min-np", "1", "--max-np", "2", "--gloo", "--start-timeout", "120", "--network-interfaces"]
    options += ["eth0", "--host-discovery-script", str(found.script), "--blacklist-cooldown-range", "5", "10"]
    flags = [*RUN, "--max_steps=100"]
    command = ["horovodrun", *options, sys.executable, *flags, f"--output_dir={output_dir}"]
    with network(tmp_path / "network", "node1", "node2", ssh_options=KEEPALIVE) as hosts:
        job = Job(hosts, "node1", command, tmp_path / "log")
        job.wait_for("step_00000005", SECONDS)
        if not has_link:
            hosts["node2"].disconnect()
        found.are("node1")
        job.wait_for("1 ranks, before 2, continue from", SECONDS)
        job.wait_for("continuing after step", SECONDS)
        hosts["node2"].reconnect()
        found.are("node1", "node2")
        job.wait_for("2 ranks, before 1, continue from", SECONDS)
        outcome = job.outcome(SECONDS)
    assert outcome.code == 0, outcome.output
    assert outcome.left == []
    run_ranks(1, [*flags, f"--output_dir={tmp_path / 'alone'}"], seconds=SECONDS)
    alone, elastic = losses(tmp_path / "alone"), losses(output_dir)
    assert list(elastic) == list(alone) == list(range(1, 101))
    assert elastic == pytest.approx(alone, rel=1e-5)
