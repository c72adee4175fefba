"""Faults other than kills: each run ends in bounded time, with the right exit code and the right message."""

import contextlib
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.crash_matrix.matrix import STEPS, TRAINING
from tests.crash_matrix.training import Start, start
from tests.kit.final_state import logged_steps
from tftrain.checkpoint import folder
from tftrain.checkpoint.reader import Reader
from tftrain.host.exit_codes import ExitCode

# Ranks of a run that can't go on end within this time; a launcher may be quicker.
BOUND_SECONDS = 60


class Skipped(Exception):
    """Why this machine cannot play a scenario."""


class Stage:
    """A folder for a run of two ranks."""

    def __init__(self, home: Path):
        """Plays nothing yet."""
        home.mkdir()
        self.home, self.output = home, home / "run"

    def play(self, fault: dict | None = None, flags: Sequence[str] = (), after: float = BOUND_SECONDS) -> Start:
        """Starts or continues the training on two ranks, with a fault in the second, which has `after` more seconds."""
        args = (*TRAINING, f"--output_dir={self.output}", *flags)
        return start(args, [None, fault and {"all": False, **fault}], self.home, after=after)


def require(started: Start, codes: Sequence[int], *messages: str) -> None:
    """Fails unless the ranks have ended with these codes, in time, and have said this."""
    assert started.codes == list(codes), f"ended with {started.codes}, expected {list(codes)}:\n{started.output}"
    for message in messages:
        assert re.search(message, started.output), f"nobody said {message!r}:\n{started.output}"


def reader_fails(stage: Stage) -> str:
    """An exception in a data reader on one rank ends both."""
    started = stage.play({"kind": "reader"})
    require(started, [ExitCode.PEER_ENDED, ExitCode.FAILED], "the reader has failed", "rank 0: another rank ended")
    assert "Traceback" not in started.logs[0].read_text(), started.output
    return said(started)


def rank_stands_still(stage: Stage) -> str:
    """SIGSTOP of a rank: the other says what it waits for, and ends."""
    fault = {"kind": "stop", "step": 3, "seconds": 0.1}
    started = stage.play(fault, flags=["--step_timeout_seconds=8", "--save_timeout_seconds=8"], after=1)
    # The stopped one can't do anything; a launcher kills it, as is done here.
    require(started, [ExitCode.STALLED, None], r"rank 0: .* took longer than --\w+_timeout_seconds=8", "not ended: ")
    return said(started)


def asked_to_stop(stage: Stage) -> str:
    """SIGTERM of a rank: both save and end with a code of its own, and no step is lost."""
    started = stage.play({"kind": "term", "step": 4, "seconds": 0.05})
    require(
        started,
        [ExitCode.STOPPED] * 2,
        "rank 1: received SIGTERM: the run finishes",
        "rank 0: another rank received SIGTERM",
    )
    done = logged_steps(stage.output)[-1]["step"]
    assert done < STEPS, f"all {STEPS} steps were done before the signal"
    require(stage.play(), [ExitCode.DONE] * 2, f"continuing after step {done} of")
    assert [row["step"] for row in logged_steps(stage.output)] == list(range(1, STEPS + 1))
    return f"{said(started)}, went on after step {done}"


def nan_for_ever(stage: Stage) -> str:
    """NaN on one rank in every step: both end with a code of its own, and the message names what was not finite."""
    started = stage.play({"kind": "nan", "step": 4, "steps": STEPS}, flags=["--max_nan_steps=3", "--split_opt_state"])
    reason = "--max_nan_steps=3 steps in a row were not finite; in step 6 the loss on rank 1 was not"
    require(started, [ExitCode.NOT_FINITE] * 2, f"rank 0: {reason}")
    assert [row["nan_steps"] for row in logged_steps(stage.output)][:6] == [0, 0, 0, 1, 2, 3]
    return said(started)


def said(started: Start) -> str:
    """Returns how the ranks have ended, in words."""
    names = [code if code is None else ExitCode(code).name for code in started.codes]
    return f"{', '.join(str(name) for name in names)}; {started.seconds:.1f} s between the first end and the last"


def nan_in_one_step(stage: Stage) -> str:
    """NaN on one rank in one step: both skip it, count it, and go on."""
    started = stage.play({"kind": "nan", "step": 4, "steps": 1})
    require(started, [0, 0])
    last = logged_steps(stage.output)[-1]
    assert (last["step"], last["nan_steps"], last["skipped_steps"]) == (STEPS, 1, 1), last
    return f"{said(started)}; nan_steps 1"


def disk_full(stage: Stage) -> str:
    """A full disk: saves fail and are counted, the last checkpoint stays, the run stops; with room it goes on."""
    checkpoints = folder.checkpoint_folder(stage.output)
    checkpoints.mkdir(parents=True)
    with tmpfs(checkpoints, "600k"):
        started = stage.play(flags=["--keep_last=9", "--max_failed_saves=2"])
        require(started, [ExitCode.SAVES_FAILED] * 2, "No space left on device", "as --max_failed_saves permits")
        (kept,) = folder.find(stage.output)
        Reader(kept).verify()
        assert logged_steps(stage.output)[-1]["failed_saves"] > 0
        subprocess.run(["mount", "-o", "remount,size=20m", checkpoints], check=True)
        require(stage.play(flags=["--keep_last=9"]), [0, 0], "continuing after step")
    return f"{said(started)}; {kept.name} stayed, and the run went on from there"


@contextlib.contextmanager
def tmpfs(path: Path, size: str) -> Iterator[None]:
    """Mounts a small file system."""
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], capture_output=True, text=True)
    if done.returncode:
        raise Skipped(f"a tmpfs can't be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", path], check=True)


SCENARIOS: dict[str, Callable[[Stage], str]] = {
    "an exception in the data reader of one rank": reader_fails,
    "SIGSTOP of one rank": rank_stands_still,
    "SIGTERM of one rank": asked_to_stop,
    "NaN on one rank in one step": nan_in_one_step,
    "NaN on one rank in every step": nan_for_ever,
    "disk full": disk_full,
}


def play(home: Path, say) -> Iterator[tuple[str, str, str]]:
    """Plays every scenario; yields its name, "as it should be", "skipped" or "FAULT", and what came of it."""
    for number, (name, scene) in enumerate(SCENARIOS.items()):
        begin = time.monotonic()
        try:
            came, words = "as it should be", scene(Stage(home / f"scene_{number}"))
        except Skipped as reason:
            came, words = "skipped", str(reason)
        except AssertionError as error:
            came, words = "FAULT", str(error)
        say(f"{name}: {came}: {words.splitlines()[0]} ({time.monotonic() - begin:.0f} s)")
        yield name, came, words


def table(played: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    """Yields the lines of a table in Markdown."""
    yield ""
    yield "| fault in a run of two ranks | | exit codes by rank, and what else |"
    yield "| --- | --- | --- |"
    for name, came, words in played:
        yield f"| {name} | {came} | {words.splitlines()[0]} |"
