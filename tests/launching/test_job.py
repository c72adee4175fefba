"""Signals, exit codes and ends of a job; the ranks are small scripts."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.kit.waiting import is_alive, wait_for_end, wait_until
from tests.launching.fakes import LIMITS, command_of, environment, started
from tftrain.host.exit_codes import ExitCode
from tftrain.supervise.signals import SAME_SIGNAL_SECONDS

# Ranks that are programs of their own, and ranks that are forked from one.
each_start = pytest.mark.parametrize("forked", [False, True], ids=["programs", "forked"])
SAVES = "listen(signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, code=75); note('rank'); say('runs'); run(15)"
# As a shell starts a job in the background.
IGNORES_SIGINT = (
    *(sys.executable, "-c"),
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])",
)


@pytest.mark.parametrize(
    ("number", "forked"), [(signal.SIGINT, False), (signal.SIGTERM, True), (signal.SIGUSR1, False)]
)
def test_a_signal_reaches_each_rank_once_and_the_code_is_theirs(tmp_path, number, forked):
    with started(tmp_path, SAVES, forked=forked, prefix=IGNORES_SIGINT) as job:
        job.wait_for("runs", 2)
        os.killpg(job.process.pid, number)
        assert job.code() == 75, job.everything()
        assert sorted(job.output().splitlines()[2:]) == [f"rank {rank} heard {number.name}" for rank in (0, 1)]
        assert (
            job.output("stderr")
            == f"tftrain.launch: received {number.name}: it goes to the ranks, which save and end\n"
        )


def test_a_second_ctrl_c_ends_everything_at_once(tmp_path):
    slow = "listen(signal.SIGINT); note('rank'); say('runs'); run(15)"
    with started(tmp_path, slow) as job:
        job.wait_for("runs", 2)
        job.press_ctrl_c()
        job.wait_for("heard", 2)
        time.sleep(1.1 * SAME_SIGNAL_SECONDS)
        begin = time.monotonic()
        job.press_ctrl_c()
        assert job.code() == 128 + signal.SIGINT, job.everything()
        assert time.monotonic() - begin < 5
        for rank in (0, 1):
            wait_for_end(job.pid("rank", rank), 5)


def test_a_rank_that_ignores_signals_is_killed_after_the_time_to_save(tmp_path):
    script = "listen(signal.SIGTERM, signal.SIGINT); note('rank'); say('runs'); run(15)"
    with started(tmp_path, script, limits=LIMITS._replace(save=1)) as job:
        job.wait_for("runs", 2)
        job.process.terminate()
        assert job.code() == 79, job.everything()
        assert "ranks 0, 1 on localhost still running: sending SIGKILL" in job.output("stderr")
        assert not is_alive(job.pid("rank", 0))


def test_a_signal_to_one_rank_leaves_the_others_the_time_to_save(tmp_path):
    script = "listen(signal.SIGUSR1, code=75); note('rank'); say('runs'); run(2.5); sys.exit(75)"
    with started(tmp_path, script, limits=LIMITS._replace(connected=0.3, starting=0.3)) as job:
        job.wait_for("runs", 2)
        os.kill(job.pid("rank", 1), signal.SIGUSR1)
        assert job.code() == 75, job.everything()
        assert job.output("stderr") == ""


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("sys.exit(255)", 255),
        ("run(0.2 * rank); sys.exit([80, 76][rank])", 76),
        # Rank 1 neither ends by itself nor by SIGTERM.
        ("listen(signal.SIGTERM); rank or sys.exit(80); run(15)", 77),
    ],
)
def test_the_code_is_that_of_the_rank_which_gives_the_reason(tmp_path, script, expected):
    with started(tmp_path, script, limits=LIMITS._replace(starting=0.5)) as job:
        assert job.code() == expected, job.everything()


def test_a_rank_that_dies_leaves_the_others_time_then_they_get_sigterm(tmp_path):
    script = "rank or sys.exit(3); listen(signal.SIGTERM, code=0); begin = time.monotonic(); run(15)"
    begin = time.monotonic()
    with started(tmp_path, script) as job:
        assert job.code() == 3, job.everything()
    assert time.monotonic() - begin > LIMITS.starting
    assert job.output() == "rank 1 heard SIGTERM\n"
    assert job.output("stderr").splitlines() == [
        "tftrain.launch: rank 1 on localhost still running: sending SIGTERM",
        "tftrain.launch: rank 0 on localhost ended with 3",
    ]


@each_start
def test_a_rank_that_the_kernel_ends_is_named(tmp_path, forked):
    with started(tmp_path, "rank == 0 or os.kill(os.getpid(), signal.SIGKILL)", forked=forked) as job:
        assert job.code() == 137
        assert job.output("stderr").splitlines() == [
            "tftrain.launch: rank 1 on localhost was ended by SIGKILL",
            "tftrain.launch: rank 1 on localhost ended with 137: if the kernel killed it, memory was short; start "
            "again to continue from the last checkpoint",
        ]


def test_what_a_rank_leaves_behind_is_ended_with_it(tmp_path):
    script = "note('child', subprocess.Popen(['sleep', '60']).pid)"
    with started(tmp_path, script, ranks=1) as job:
        assert job.code() == 0
        wait_for_end(job.pid("child", 0), 5)


@pytest.mark.parametrize(
    ("victim", "number", "forked"),
    [
        ("launcher", signal.SIGKILL, False),
        ("launcher", signal.SIGHUP, False),
        ("agent", signal.SIGKILL, False),
        ("agent", signal.SIGKILL, True),
    ],
)
def test_ranks_save_and_end_if_the_launcher_or_its_agent_is_killed(tmp_path, victim, number, forked):
    script = """
for each in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(each, lambda number, _: heard.append(number))
note("rank")
note("agent", os.getppid())
say("runs")
while not heard:
    time.sleep(0.02)
note("saved")
"""
    with started(tmp_path, script, forked=forked) as job:
        job.wait_for("runs", 2)
        os.kill(job.process.pid if victim == "launcher" else job.pid("agent", 0), number)
        for rank in (0, 1):
            wait_for_end(job.pid("rank", rank))
            assert (tmp_path / f"saved_{rank}").exists()
        if victim == "agent":
            assert job.code() == ExitCode.PEER_ENDED
            assert "localhost: the connection to its ranks has ended" in job.output("stderr")


def test_a_rank_that_ignores_sigterm_does_not_outlive_a_killed_launcher(tmp_path):
    script = "listen(signal.SIGTERM); note('rank'); say('runs'); run(15)"
    with started(tmp_path, script, ranks=1, limits=LIMITS._replace(save=0.5)) as job:
        job.wait_for("runs")
        job.process.kill()
        wait_for_end(job.pid("rank", 0), 3)


def test_a_signal_before_the_ranks_ends_the_launcher(tmp_path):
    ssh = tmp_path / "ssh"
    ssh.write_text(f"#!/bin/sh\ntouch {tmp_path}/called\nexec sleep 30\n")
    ssh.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with started(tmp_path, "say('runs')", 1, options={"hosts": "192.0.2.7:1"}, environ=environ) as job:
        wait_until((tmp_path / "called").exists, 10)
        job.process.terminate()
        assert job.code() == 143, job.everything()
        assert job.output() == ""


def test_a_program_that_is_not_there_is_one_line(tmp_path):
    args = [arg.replace(f'"{sys.executable}"', '"/nosuch/python"') for arg in command_of("")]
    done = subprocess.run(args, env=environment(tmp_path), capture_output=True, text=True, timeout=20)
    assert done.returncode == 1
    first, last = done.stderr.splitlines()
    assert first == "tftrain.launch: localhost: [Errno 2] No such file or directory: '/nosuch/python'"
    assert last == "tftrain.launch: rank 0 on localhost ended with 1: its own lines above give the reason"
