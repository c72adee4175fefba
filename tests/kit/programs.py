"""Runs a program with bad input in this process; returns its exit code and its lines on standard error."""

import contextlib
import io
import shlex
from collections.abc import Mapping

from tests.kit import runs
from tests.kit.ranks import run_ranks
from tftrain import convert, export, launch, predict, run
from tftrain.bench import __main__ as bench
from tftrain.cli import flags
from tftrain.plan import __main__ as plan
from tftrain.prepare import __main__ as prepare

# `train` is a run with flags that are complete and right but for those of the case. `started` is a run in a process of
# its own, for a fault that only TensorFlow or the checkpoint shows.
PROGRAMS = {"train": run, "run": run, "prepare": prepare, "convert": convert, "launch": launch}
PROGRAMS |= {"plan": plan, "bench": bench, "predict": predict, "export": export}
COMPLETE = "--synthetic_data --vocab_size=90 --output_dir={out} "
HINT = flags.HINT


def outcome(program: str, args: str, code: int, places: Mapping[str, str]) -> tuple[int, list[str]]:
    """Runs a program, a key of PROGRAMS or `started`, which alone needs the expected exit code.

    The arguments are as in a shell, with the names of places in braces. Returns the exit code, and the lines without
    the program's name and the last hint, with the names of places for their paths.
    """
    given = ((COMPLETE if program == "train" else "") + args).format(**places)
    try:
        argv = shlex.split(given)
    except ValueError:  # A quote without its end belongs to the case.
        argv = given.split()
    if program == "started":
        text = run_ranks(1, ["-m", "tftrain.run", *argv], expected_code=code)
        text = "\n".join(line for line in text.splitlines() if line.startswith("tftrain.run: "))
    else:
        code, text = _in_process(program, argv)
    for name, path in sorted(places.items(), key=lambda place: -len(place[1])):
        text = text.replace(path, f"{{{name}}}")
    lines = [line.partition(": ")[2].removeprefix("rank 0: ") for line in text.splitlines()]
    return code, [line for line in lines if line != HINT]


def done(program: str, args: str) -> None:
    """Runs a case that must succeed; a run trains or evaluates in this process, without the program's frame."""
    if program == "run":
        runs.run_alone(*shlex.split(args))
        return
    code, lines = outcome(program, args, 0, {})
    assert code == 0, lines


def _in_process(program: str, argv: list[str]) -> tuple[int, str]:
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        try:
            code = PROGRAMS[program].main([program, *argv])
        except SystemExit as end:
            code = end.code
    return int(code), errors.getvalue()
