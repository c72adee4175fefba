"""Seconds until ranks start under each launcher: `python -m tests.launching.time_to_start [ROUNDS]`.

The first column is the time until rank 0 runs, as a process that does nothing but print; the second is the time until
the first line of a training. Each is the shortest of some starts, which take turns so that other work on the machine
disturbs all alike.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.launching.fakes import ROOT, command_of, environment

ROUNDS = 4
PRINTS = "print('rank 0 runs', flush=True)"
FLAGS = (
    *("--synthetic_data", "--vocab_size=101", "--max_seq_length=16", "--num_hidden_layers=2", "--hidden_size=32"),
    *("--num_attention_heads=2", "--global_batch_size=8", "--max_steps=1", "--eval_every=-1", "--resume=none"),
)
HOROVODRUN = ("horovodrun", "--gloo", "-np", "2")


def seconds_until(text: str, command: Sequence[str], folder: str) -> float:
    """Returns the seconds from the start of a command until it has printed a text."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {**environment(Path(folder)), "PATH": path}
    begin, found = time.monotonic(), None
    with subprocess.Popen(
        command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout:
            if found is None and text in line:
                found = time.monotonic() - begin
    if found is None:
        raise RuntimeError(f"{' '.join(command)} did not print {text!r}")
    return found


def main(rounds: int = ROUNDS) -> None:
    python = sys.executable
    with tempfile.TemporaryDirectory() as folder:
        train = ("-m", "tftrain.run", *FLAGS, f"--output_dir={folder}")
        rows = {
            "python -m tftrain.run": ((python, "-c", PRINTS), (python, *train)),
            "python -m tftrain.launch -np 2": (
                command_of(PRINTS),
                (python, "-m", "tftrain.launch", "-np", "2", *train[2:]),
            ),
            "horovodrun --gloo -np 2": ((*HOROVODRUN, python, "-c", PRINTS), (*HOROVODRUN, python, *train)),
        }
        shortest = {}
        for _ in range(rounds):
            for name, commands in rows.items():
                for text, command in zip(("rank 0 runs", "model "), commands, strict=True):
                    seconds = seconds_until(text, command, folder)
                    shortest[name, text] = min(seconds, shortest.get((name, text), seconds))
    print("| | rank 0 runs after (s) | its first line after (s) |\n| --- | ---: | ---: |")
    for name in rows:
        print(f"| `{name}` | {shortest[name, 'rank 0 runs']:.1f} | {shortest[name, 'model ']:.1f} |")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
