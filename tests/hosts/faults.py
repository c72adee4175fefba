"""Faults of hosts and their networks, and what a job does then.

Each fault is done to a training on two hosts once it has written its second checkpoint, or before it starts. All ranks
must end in bounded time, with a code and a line that names the host and the ranks; no process may be left on a host;
and the next start must end with the losses and the bytes of a training that nobody has disturbed.
"""

import re
import shutil
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.hosts import training
from tests.hosts.network import ROOT, Host, network
from tests.hosts.training import FLAGS, RANKS, Job, Outcome
from tests.kit.final_state import FinalState, differences, final_state
from tests.kit.ranks import run_ranks
from tftrain.host.exit_codes import ExitCode

Hosts = Mapping[str, Host]
START_SECONDS = 300
SECOND_CHECKPOINT = "step_00000006"
# Each direction of a slow link has both.
DELAY_MS, LOSS_PERCENT = 100, 1.0
SLOW_FLAGS = (*FLAGS, "--max_steps=3")


@dataclass(frozen=True)
class Fault:
    """A fault and what must come of it."""

    name: str  # words for the table
    code: int  # the launcher's exit code
    line: str  # a pattern of the line that says why
    within: float  # seconds from the fault to the end of the launcher and all ranks
    prepare: Callable[[Hosts, Path], None] = lambda hosts, folder: None  # before the start; the folder is empty
    act: Callable[[Job], None] | None = None  # on the running job; None if it is not disturbed after its start
    launcher: Callable[..., list[str]] = training.launch  # builds the command
    flags: tuple[str, ...] = FLAGS  # for the training


class Row(NamedTuple):
    """What came of a fault."""

    outcome: Outcome
    line: str  # says why; "" if there is none
    problems: list[str]  # what is not as it should be


def kill(processes) -> None:
    for process in processes:
        process.kill()


def kill_everything(job: Job) -> None:
    """Kills all that runs on node2; its sshd is back at once."""
    kill(job.hosts["node2"].processes())
    job.hosts["node2"].start_sshd()


def other_version(hosts: Hosts, folder: Path) -> None:
    """Gives node2 other sources in the place of the project's."""
    shutil.copytree(ROOT / "tftrain", folder / "tftrain", ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "tftrain" / "train" / "step.py").open("a") as file:
        file.write("# another version\n")
    hosts["node2"].bind(folder / "tftrain", ROOT / "tftrain")


def other_flagfile(hosts: Hosts, folder: Path) -> None:
    """Gives node2 another flagfile in the place of node1's."""
    for name, rate in (("run.flags", 0.01), ("other.flags", 0.02)):
        (folder / name).write_text(f"--learning_rate={rate}\n")
    hosts["node2"].bind(folder / "other.flags", folder / "run.flags")


LOST = r"^tftrain.launch: ranks 2, 3 on node2: no connection; .*`ssh node2 true`.*; start again to continue$"
FAULTS = {
    "link": Fault(
        "node2's link goes down without a word",
        ExitCode.PEER_ENDED,
        LOST,
        90,
        act=lambda job: job.hosts["node2"].disconnect(),
    ),
    "killed": Fault(
        "all ranks of node2 are killed",
        ExitCode.SIGNALLED + signal.SIGKILL,
        r"^tftrain.launch: rank [23] on node2 ended with 137: .*start again to continue",
        60,
        act=lambda job: kill(job.ranks("node2")),
    ),
    "processes": Fault("all processes of node2 are killed", ExitCode.PEER_ENDED, LOST, 60, act=kill_everything),
    "stopped": Fault(
        "rank 3 is stopped (SIGSTOP)",
        ExitCode.STALLED,
        r"^tftrain.launch: rank [23] on node2 did not end .*; start again to continue$",
        180,
        act=lambda job: job.ranks("node2")[-1].suspend(),
    ),
    "sshd": Fault(
        "node2's sshd is down at the start",
        ExitCode.FAILED,
        r"^tftrain.launch: ranks 2, 3 on node2 can't start: .*Connection refused; expected `ssh node2 true` to work",
        30,
        prepare=lambda hosts, folder: hosts["node2"].stop_sshd(),
    ),
    "version": Fault(
        "node2 has another version of tftrain",
        ExitCode.FAILED,
        r"the ranks disagree: on ranks 2, 3 \(node2\) tftrain is \S+, sources \w+, but .* on rank 0 \(node1\); start",
        START_SECONDS,
        prepare=other_version,
    ),
    "flagfile": Fault(
        "node2 has another flagfile (`horovodrun`)",
        1,
        r"the ranks disagree: on ranks 2, 3 \(node2\) --learning_rate is 0.02, but 0.01 on rank 0 \(node1\); start all",
        START_SECONDS,
        prepare=other_flagfile,
        launcher=training.horovodrun,
        flags=(*FLAGS, "--flagfile=FOLDER/run.flags"),
    ),
    "slow": Fault(
        f"node2's link takes {DELAY_MS} ms and loses {LOSS_PERCENT:g}% in each direction; 3 steps",
        ExitCode.DONE,
        r"  step 3/3 ",
        900,
        prepare=lambda hosts, folder: hosts["node2"].slow_down(DELAY_MS, LOSS_PERCENT),
        flags=SLOW_FLAGS,
    ),
}


def undisturbed(flags: tuple[str, ...], output_dir: Path) -> FinalState:
    """Returns the result of the same training on one host."""
    run_ranks(RANKS, ["-m", "tftrain.run", *flags, f"--output_dir={output_dir}"], seconds=START_SECONDS)
    return final_state(output_dir)


def play(fault: Fault, folder: Path, expected: FinalState) -> Row:
    """Does a fault to a training, starts it again, and compares what comes of it with an undisturbed one.

    The folder is empty, and the undisturbed training has the same flags.
    """
    (folder / "files").mkdir()
    flags = [flag.replace("FOLDER", str(folder / "files")) for flag in fault.flags] + [f"--output_dir={folder / 'run'}"]
    with network(folder / "network", "node1", "node2") as hosts:
        fault.prepare(hosts, folder / "files")
        job = Job(hosts, "node1", fault.launcher(*flags), folder / "first.log")
        if fault.act:
            job.wait_for(SECOND_CHECKPOINT, START_SECONDS)
            job.fault(lambda: fault.act(job))
        outcome = job.outcome(fault.within)
    found = re.search(fault.line, outcome.output, re.MULTILINE)
    problems = []
    if outcome.code != fault.code:
        problems.append(f"exit code {outcome.code}, expected {int(fault.code)}")
    if outcome.left:
        problems.append(f"processes that were left: {outcome.left}")
    if found is None:
        problems.append(f"no line as {fault.line}")
    if fault.code == ExitCode.DONE:
        problems += differences(final_state(folder / "run"), expected)
    elif fault.act:
        with network(folder / "again", "node1", "node2") as hosts:
            again = Job(hosts, "node1", training.launch(*flags), folder / "second.log").outcome(START_SECONDS)
        if again.code != ExitCode.DONE or "continuing after step" not in again.output:
            problems.append(f"the next start ended with {again.code}:\n{again.output}")
        else:
            problems += differences(final_state(folder / "run"), expected)
    if problems:
        problems.append(outcome.output)
    line = "" if found is None else next(line for line in outcome.output.splitlines() if found[0] in line)
    return Row(outcome, line, problems)
