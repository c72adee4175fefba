"""Runs the programs of a checkout of any revision, on one or several ranks, through the command line alone."""

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

RUN_SECONDS = 600

# Values of flags by the name that an older revision knows, used where its --help does not list the new one.
RENAMED = {("optimizer", "reference_lamb"): "lamb", ("optimizer", "reference_adamw"): "adamw"}


class RunError(Exception):
    """A program has failed; the message names its log."""


class Tree:
    """A checkout whose programs can be run.

    Attributes:
        path: its root.
    """

    def __init__(self, path: Path):
        """Runs nothing yet."""
        self.path, self._help = path, {}

    def run(self, module: str, flags: Mapping[str, Any], folder: Path, ranks: int = 1) -> None:
        """Runs `python -m MODULE` with the values of flags that this revision knows.

        Args:
            module: the program.
            flags: by name.
            folder: the program's working directory, which also gets each rank's output, `rank_0.log` and so on. What a
                program writes may name its paths: relative ones are the same for every revision.
            ranks: how many; 1 is a plain process.

        Raises:
            RunError: a rank has failed, or it took longer than RUN_SECONDS.
        """
        known = {name: known_value(self._help_of(module, folder), name, value) for name, value in flags.items()}
        command = [sys.executable, "-m", module, *(f"--{name}={value}" for name, value in known.items())]
        with places(ranks) as environs, contextlib.ExitStack() as files:
            outputs = [files.enter_context(open(folder / f"rank_{rank}.log", "w")) for rank in range(ranks)]
            settings = {"cwd": folder, "stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
            processes = [
                subprocess.Popen(
                    command, env=self._environ() | environ, stdout=output, start_new_session=True, **settings
                )
                for environ, output in zip(environs, outputs, strict=True)
            ]
            try:
                codes = exit_codes(processes)
            finally:
                for process in processes:
                    if process.poll() is None:
                        os.killpg(process.pid, signal.SIGKILL)
                        process.wait()
        if any(codes):
            raise RunError(f"{module} of {self.path} ended with {codes}, expected 0 of each rank: {folder}/rank_*.log")

    def _help_of(self, module: str, folder: Path) -> str:
        """Returns what a program prints for --helpfull, with each flag on a line."""
        if module not in self._help:
            # A package that is installed in this environment, or lies in the working directory, would hide this tree's.
            location = self._output(["-c", "import tftrain; print(tftrain.__path__[0])"], folder).strip()
            if Path(location).resolve() != (self.path / "tftrain").resolve():
                raise RunError(f"Python imports tftrain from {location or 'nowhere'}, expected {self.path}/tftrain")
            self._help[module] = self._output(["-m", module, "--helpfull"], folder)
        return self._help[module]

    def _output(self, args: Sequence[str], folder: Path) -> str:
        """Returns what Python prints with such arguments."""
        command = [sys.executable, *args]
        return subprocess.run(command, cwd=folder, env=self._environ(), capture_output=True, text=True).stdout

    def _environ(self) -> dict[str, str]:
        """Returns this environment without what launchers and the settings of TensorFlow would change."""
        foreign = ("HOROVOD_", "OMPI_", "PMI_", "SLURM_", "TF_", "XLA_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        return kept | {
            "PYTHONPATH": str(self.path),
            "CUDA_VISIBLE_DEVICES": "-1",
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "1000",
        }


def known_value(help_text: str, name: str, value: Any) -> str:
    """Returns a flag's value, or its older name from RENAMED where the help lists the choices without it."""
    listed = re.search(rf"^\s*--{name}=(\S+)", help_text, re.MULTILINE)
    if listed and "|" in listed[1] and str(value) not in listed[1].split("|"):
        value = RENAMED.get((name, value), value)
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextlib.contextmanager
def places(ranks: int) -> Iterator[list[dict[str, str]]]:
    """Yields each rank's environment variables; for several ranks, Horovod's rendezvous server runs meanwhile."""
    if ranks == 1:
        yield [{}]
        return
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer(0)
    port = server.start()
    slots = get_host_assignments(parse_hosts(f"localhost:{ranks}"), ranks)
    server.init(slots)
    shared = {"GLOO_RENDEZVOUS_ADDR": socket.gethostbyname("localhost"), "GLOO_RENDEZVOUS_PORT": port}
    shared |= {"GLOO_IFACE": "lo", "CONTROLLER": "gloo", "CPU_OPERATIONS": "gloo"}
    numbers = ("hostname", "rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
    own = [shared | {name.upper(): getattr(slot, name) for name in numbers} for slot in slots]
    try:
        yield [{f"HOROVOD_{name}": str(value) for name, value in each.items()} for each in own]
    finally:
        server.stop()


def exit_codes(processes: Sequence[subprocess.Popen]) -> list[int]:
    """Waits for all, or a few seconds more where one has failed, and returns the codes; -1: still running."""
    end = time.monotonic() + RUN_SECONDS
    while any(process.poll() is None for process in processes) and time.monotonic() < end:
        if any(process.poll() for process in processes):
            end = min(end, time.monotonic() + 15)
        time.sleep(0.05)
    codes = [process.poll() for process in processes]
    return [-1 if code is None else code for code in codes]


def write_corpus(path: Path) -> None:
    """Writes some text that is the same everywhere: documents of a few topics, with frequent and rare words."""
    rng = random.Random(5)
    syllables = [first + second for first in "bdfgklmnprst" for second in "aeiou"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(1500)]
    weights = [1 / (rank + 1) for rank in range(60)]
    documents = []
    for _ in range(150):
        topic = rng.sample(words, 60)
        lines = [" ".join(rng.choices(topic, weights, k=rng.randint(4, 16))) + "." for _ in range(12)]
        documents.append("\n".join(lines))
    path.write_text("\n\n".join(documents) + "\n")
