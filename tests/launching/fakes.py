"""Jobs of the launcher whose ranks are small scripts: no TensorFlow, so a job takes a fraction of a second."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.kit.fork_server import ROOT
from tests.kit.waiting import wait_until
from tftrain.launching.config import LaunchConfig
from tftrain.launching.job import Limits

SECONDS = 20
LIMITS = Limits(save=10, connected=1.5, starting=1.5, terminate=0.7, kill=3)

# What the scripts of ranks use.
PRELUDE = """
import os, signal, subprocess, sys, time
rank, size = int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])
heard = []
def listen(*numbers, code=None):
    def hear(number, _):
        heard.append(number)
        say(f"heard {signal.Signals(number).name}")
        if code is not None:
            time.sleep(0.2)
            os._exit(code)
    for number in numbers:
        signal.signal(number, hear)
def say(words, file=sys.stdout):
    file.write(f"rank {rank} {words}\\n")
    file.flush()
def note(name, number=os.getpid()):
    with open(os.path.join(os.environ["NOTES"], f"{name}_{rank}"), "w") as file:
        file.write(str(number))
def run(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.05)
"""

# The program in the place of tftrain.launch: it starts a script where that starts tftrain.run.
PROGRAM = """
import json, sys
from tftrain.host import log
from tftrain.host.exit_codes import RunError
from tftrain.launching import hosts, job
from tests.kit.fork_server import ROOT
from tests.kit.waiting import wait_until
from tftrain.launching.config import LaunchConfig
options, limits, command, fork_server = json.loads(sys.argv[1])
config = LaunchConfig(**options)
log.configure(program="tftrain.launch", level="debug" if config.verbose else "info")
try:
    sys.exit(job.run(hosts.assign(config), command, config, job.Limits(*limits), fork_server))
except RunError as error:
    log.logging.getLogger("tftrain").error(error)
    sys.exit(error.exit_code)
"""

# The program in the place of tftrain.rank_server.
FORK_SERVER = """
{preparation}
from tftrain.launching import forking
forking.fork_ranks(lambda: exec(compile({script!r}, "rank", "exec"), {{"__name__": "__main__"}}))
"""


@dataclasses.dataclass
class FakeJob:
    """A launcher that runs.

    Attributes:
        process: the launcher; it leads a process group, as a terminal's foreground job does.
        notes: the folder in which ranks leave notes.
    """

    process: subprocess.Popen
    notes: Path

    def output(self, stream: str = "stdout") -> str:
        """Returns what the launcher has printed so far."""
        return (self.notes / stream).read_text(errors="replace")

    def wait_for(self, text: str, count: int = 1, stream: str = "stdout") -> None:
        """Waits until a text has been printed `count` times."""
        wait_until(
            lambda: self.output(stream).count(text) >= count,
            SECONDS,
            lambda: f"{text!r} was not printed:\n{self.everything()}",
            lambda: self.process.poll() is None,
        )

    def code(self) -> int:
        """Waits for the end of the launcher and returns its exit code."""
        try:
            return self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the launcher still runs:\n{self.everything()}") from None

    def press_ctrl_c(self) -> None:
        """Sends SIGINT to the foreground process group, as a terminal does."""
        os.killpg(self.process.pid, signal.SIGINT)

    def pid(self, name: str, rank: int) -> int:
        """Returns the number in a rank's note."""
        return int((self.notes / f"{name}_{rank}").read_text())

    def everything(self) -> str:
        return f"stdout:\n{self.output()}\nstderr:\n{self.output('stderr')}"


def command_of(
    script: str,
    ranks: int = 2,
    limits: Limits = LIMITS,
    options: Mapping[str, object] | None = None,
    forked: bool = False,
    preparation: str = "",
) -> list[str]:
    """Returns the command of a launcher whose ranks run a script.

    Args:
        options: of the launcher.
        forked: whether the ranks are forked from one process, which does the `preparation` first.
    """
    config = dataclasses.asdict(LaunchConfig(num_proc=ranks, **(options or {})))
    program = [sys.executable, "-c", PRELUDE + script]
    server = [sys.executable, "-c", FORK_SERVER.format(preparation=preparation, script=PRELUDE + script)]
    return [sys.executable, "-c", PROGRAM, json.dumps([config, limits, program, server if forked else None])]


def environment(notes: Path, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "NOTES": str(notes), **(environ or {})}


@contextlib.contextmanager
def started(
    notes: Path,
    script: str,
    ranks: int = 2,
    environ: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
    **how: Any,
) -> Iterator[FakeJob]:
    """Starts a job in a folder for notes and output, and yields it; kills the launcher at the end.

    Args:
        environ: further environment variables.
        prefix: a command that starts the launcher.
        how: see `command_of`.
    """
    with (notes / "stdout").open("wb") as stdout, (notes / "stderr").open("wb") as stderr:
        process = subprocess.Popen(
            [*prefix, *command_of(script, ranks, **how)],
            cwd=ROOT,
            env=environment(notes, environ),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            preexec_fn=default_signals,
        )
    try:
        yield FakeJob(process, notes)
    finally:
        process.kill()
        process.wait()


def default_signals() -> None:
    """Undoes what the tests themselves were started with: nohup ignores SIGHUP, and a background job SIGINT."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
