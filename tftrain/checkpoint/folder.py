"""The folder OUTPUT_DIR/checkpoints: the names in it, the list of checkpoints, and the removal of old ones.

- `step_00001000`: a checkpoint, if it has a manifest.
- `step_00001000_again_2`: the same step, saved again; the older checkpoint is removed when the newer is complete.
- `.partial_step_...`, `.trash_step_...`, `.step_...`: a save, a removal or a download in progress, or interrupted.
- `not_finite_step_00001000`: a checkpoint that is only used by its path, see `free_name`.
- `set_aside_1`: checkpoints of later steps than the one that a run was resumed from; or all, of a run that was started
  over or resumed from a checkpoint that is elsewhere.
"""

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path, PurePath

from tftrain.checkpoint import manifest
from tftrain.checkpoint.errors import CheckpointError

_NOT_FINITE = "not_finite_"
_NAME = re.compile(r"step_(\d{8,18})(?:_again_(\d{1,9}))?", re.ASCII)
# What a run reports, in its folder, and what it knows of its evaluations and of its trackers.
REPORTS = (
    *("metrics.jsonl", "metrics.csv", "log.txt", "tensorboard", "goodput.json", "report.html"),
    *("best.json", "predictions.jsonl", "confusion_matrix.png", "trackers.json"),
)


def checkpoint_folder(output_dir: str | Path) -> Path:
    """Returns the folder of a run's checkpoints."""
    return Path(output_dir) / "checkpoints"


def holds(output_dir: str | Path, path: Path) -> bool:
    """Returns whether a checkpoint is in the folder of a run's checkpoints."""
    return path.parent.resolve() == checkpoint_folder(output_dir).resolve()


def order(path: PurePath) -> tuple[int, int] | None:
    """Returns the step, and the number among the saves of the step, from a folder's name; None for another name."""
    match = _NAME.fullmatch(path.name)
    return (int(match[1]), int(match[2] or 1)) if match else None


def find(output_dir: str | Path) -> list[Path]:
    """Returns the checkpoints of a run, oldest first, without symbolic links and folders that lack a manifest."""
    steps = _steps(checkpoint_folder(output_dir))
    return [path for path in steps if (path / manifest.NAME).is_file() and not path.is_symlink()]


def links(output_dir: str | Path) -> str:
    """Returns a line on checkpoints that are symbolic links, which `find` leaves out; "" without any."""
    names = [path.name for path in _steps(checkpoint_folder(output_dir)) if path.is_symlink()]
    words = "symbolic links are left out; move the folders back, or name one by its own path"
    return f"{checkpoint_folder(output_dir)}: {', '.join(names)}: {words}" if names else ""


def newest(output_dir: str | Path) -> Path | None:
    """Returns the newest checkpoint of a run, see `find`; None without one."""
    return next(reversed(find(output_dir)), None)


def free_name(output_dir: str | Path, step: int, is_good: bool = True) -> Path:
    """Returns a path for a checkpoint of a step: it does not exist, and it sorts after the others of the step.

    If the step's loss or gradient was not finite, it does not count among the checkpoints of the run: `find` leaves it
    out, and no older one is removed for it.
    """
    prefix = "" if is_good else _NOT_FINITE
    names = (path.name.removeprefix(prefix) for path in checkpoint_folder(output_dir).glob(f"{prefix}step_*"))
    taken = [number for other, number in filter(None, map(order, map(Path, names))) if other == step]
    return checkpoint_folder(output_dir) / f"{prefix}step_{step:08d}{f'_again_{max(taken) + 1}' if taken else ''}"


def partial(output_dir: str | Path, step: int, attempt: int) -> Path:
    """Returns the folder that the ranks write to during an attempt; `attempt` is equal on all ranks."""
    return checkpoint_folder(output_dir) / f".partial_step_{step:08d}_{attempt:012x}"


def sweep(output_dir: str | Path, except_for: Path | None = None) -> None:
    """Removes the leftovers of interrupted saves and removals where it can; not `except_for`, a save in progress."""
    for pattern in (".partial_step_*", ".trash_step_*", ".step_*"):
        for path in checkpoint_folder(output_dir).glob(pattern):
            if path != except_for:
                shutil.rmtree(path, ignore_errors=True)


def superseded(
    checkpoints: Sequence[PurePath], keep_last: int, keep_every: int, keep_step: int | None = None
) -> list[PurePath]:
    """Returns which checkpoints are to be removed, given all of them, oldest first: all but the newest of each step.

    Args:
        keep_last: the number of newest steps whose checkpoints remain.
        keep_every: checkpoints of steps that are a multiple of it remain as well; 0: no others remain.
        keep_step: one more step whose checkpoint remains.
    """
    newest = {order(path)[0]: path for path in checkpoints}
    steps = sorted(newest)
    kept = {*steps[-keep_last:], keep_step, *(step for step in steps if keep_every and step % keep_every == 0)}
    remaining = {newest[step] for step in steps if step in kept}
    return [path for path in checkpoints if path not in remaining]


def set_aside(output_dir: str | Path, step: int) -> Path | None:
    """Moves checkpoints of later steps out of the way of a run that continues from an earlier one; deletes nothing.

    Args:
        output_dir, step: the run's folder, and the step that the run continues from; -1 if all here is another run's,
            so that what that run reported is moved as well, all of it.

    Returns:
        The folder `checkpoints/set_aside_N` with the later checkpoints, damaged ones included, and with a copy of
        metrics.jsonl, or with the reports themselves; None if there is nothing to move.

    Raises:
        CheckpointError: they can't be moved.
    """
    later = [path for path in _steps(checkpoint_folder(output_dir)) if order(path)[0] > step]
    is_other = step < 0
    if is_other:
        later += sorted(checkpoint_folder(output_dir).glob(f"{_NOT_FINITE}step_*"))
        later += [path for path in (Path(output_dir) / name for name in REPORTS) if path.exists()]
    if not later:
        return None
    numbers = [path.name.removeprefix("set_aside_") for path in checkpoint_folder(output_dir).glob("set_aside_*")]
    last = max((int(number) for number in numbers if number.isdecimal()), default=0)
    aside = checkpoint_folder(output_dir) / f"set_aside_{last + 1}"
    try:
        aside.mkdir()
        metrics = Path(output_dir) / "metrics.jsonl"
        if metrics.exists() and not is_other:
            shutil.copy(metrics, aside)
        for path in later:
            path.rename(aside / path.name)
    except OSError as error:
        raise CheckpointError(f"{aside}: the later checkpoints can't be moved there: {error}") from error
    return aside


def _steps(folder: Path) -> list[Path]:
    """Returns all paths that have the name of a checkpoint, in the order of steps."""
    try:
        entries = [Path(entry.path) for entry in os.scandir(folder)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"{folder}: can't be listed: {error.strerror}") from error
    return sorted(filter(order, entries), key=order)
