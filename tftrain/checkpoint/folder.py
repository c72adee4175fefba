"""The folder OUTPUT_DIR/checkpoints: which names mean what, which checkpoints there are, and which are kept.

- `step_00001000`: a checkpoint; without a manifest it is none.
- `step_00001000_again_2`: the same step, saved once more; the old one goes when the new one is there.
- `.partial_step_...`, `.trash_step_...`: a save or a removal under way, or interrupted.
- `set_aside_1`: what lay after the step that a run went back to.
"""

import os
import re
import shutil
from pathlib import Path

from tftrain.checkpoint import durable, manifest
from tftrain.checkpoint.errors import CheckpointError

_NAME = re.compile(r"step_(\d{8,18})(?:_again_(\d{1,9}))?", re.ASCII)


def of(output_dir: str | Path) -> Path:
    """Returns where a run keeps its checkpoints."""
    return Path(output_dir) / "checkpoints"


def order(path: Path) -> tuple[int, int] | None:
    """Returns step and number of a folder that may be a checkpoint, from its name; None of any other name."""
    found = _NAME.fullmatch(path.name)
    return (int(found[1]), int(found[2] or 1)) if found else None


def find(output_dir: str | Path) -> list[Path]:
    """Returns the checkpoints of a run, oldest first; a symbolic link is none, nor is a folder without manifest."""
    return [path for path in _steps(of(output_dir)) if (path / manifest.NAME).is_file() and not path.is_symlink()]


def free_name(output_dir: str | Path, step: int) -> Path:
    """Returns the folder for a checkpoint of a step: one that does not exist, and the newest of its step."""
    taken = [order(path)[1] for path in _steps(of(output_dir)) if order(path)[0] == step]
    again = f"_again_{max(taken) + 1}" if taken else ""
    return of(output_dir) / f"step_{step:08d}{again}"


def partial(output_dir: str | Path, step: int, attempt: int) -> Path:
    """Returns where the ranks write, in an attempt whose number they have agreed on."""
    return of(output_dir) / f".partial_step_{step:08d}_{attempt:012x}"


def sweep(output_dir: str | Path, but: Path | None = None) -> None:
    """Removes what interrupted saves and removals have left, as far as it can; `but` is the save that is under way."""
    for pattern in (".partial_step_*", ".trash_step_*"):
        for path in of(output_dir).glob(pattern):
            if path != but:
                shutil.rmtree(path, ignore_errors=True)


def keep(output_dir: str | Path, last: int, every: int) -> None:
    """Removes checkpoints that are not to be kept, the oldest first.

    Args:
        output_dir: the run's folder.
        last: how many steps remain, the newest.
        every: those whose step is a multiple of it remain as well; 0: none. Of a step, the newest checkpoint remains.

    Raises:
        OSError: one can't be removed.
    """
    found = find(output_dir)
    newest = {order(path)[0]: path for path in found}
    steps = sorted(newest)
    kept = {newest[step] for step in steps if step in steps[-last:] or (every and step % every == 0)}
    for path in found:
        if path not in kept:
            durable.remove(path, path.with_name(f".trash_{path.name}"))


def set_aside(output_dir: str | Path, step: int) -> Path | None:
    """Moves what lies after `step` out of the way of a run that starts over from there; nothing is deleted.

    Args:
        output_dir: the run's folder.
        step: the step that the run goes on from, 0 for a fresh start.

    Returns:
        The folder `checkpoints/set_aside_N` that now holds the later checkpoints, damaged ones too, and a copy of
        metrics.jsonl; None if there were none.

    Raises:
        CheckpointError: it can't be done.
    """
    later = [path for path in _steps(of(output_dir)) if order(path)[0] > step]
    if not later:
        return None
    numbers = [int(path.name[10:]) for path in of(output_dir).glob("set_aside_*") if path.name[10:].isdecimal()]
    aside = of(output_dir) / f"set_aside_{max(numbers, default=0) + 1}"
    try:
        aside.mkdir()
        metrics = Path(output_dir) / "metrics.jsonl"
        if metrics.exists():
            shutil.copy(metrics, aside)
        for path in later:
            path.rename(aside / path.name)
    except OSError as error:
        raise CheckpointError(f"{aside}: the later checkpoints can't be moved there: {error}") from error
    return aside


def _steps(folder: Path) -> list[Path]:
    """Returns everything that has the name of a checkpoint, in the order of steps."""
    try:
        entries = [Path(entry.path) for entry in os.scandir(folder)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"{folder}: can't be listed: {error.strerror}") from error
    return sorted(filter(order, entries), key=order)
