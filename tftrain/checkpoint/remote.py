"""Runs, checkpoints and models at an address: which checkpoints are complete there, and copies of them here.

The folder of a run has the same files at an address as on a disk. A checkpoint there is complete if it has its
manifest, which is copied last and removed first.
"""

import errno
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from tftrain.checkpoint import folder, manifest, memory_slot, scores
from tftrain.checkpoint.errors import CheckpointError
from tftrain.checkpoint.reader import Reader
from tftrain.files import addresses, durable
from tftrain.files.addresses import Cache, join
from tftrain.files.complete_folder import complete_folder, locked

logger = logging.getLogger(__name__)

CHECKPOINTS, TOKENIZER = "checkpoints", "tokenizer"
_MAX_SCORES = 16 << 20


def checkpoints(files: Iterable[str]) -> list[PurePosixPath]:
    """Returns the complete checkpoints among the files of a run, oldest first, as paths in the run's folder."""
    manifests = [path for path in map(PurePosixPath, files) if path.name == manifest.NAME and len(path.parts) == 3]
    complete = [path.parent for path in manifests if path.parts[0] == CHECKPOINTS and folder.order(path.parent)]
    return sorted(complete, key=folder.order)


def fetch_run(address: str, output_dir: Path, with_best: bool = False) -> None:
    """Downloads the newest complete checkpoint of a run and its reports, unless the folder has it or a newer one.

    With `with_best`, the best checkpoint is downloaded too. One process at a time does it.

    Raises:
        OSError: the address can't be read, or the folder not be written.
        CheckpointError: there is no checkpoint here, and none of those there can be used.
    """
    files = addresses.listing(address)
    with locked(output_dir / "fetch"):
        here = folder.newest(output_dir)
        found = checkpoints(files)
        if here and found and found[-1].name == here.name:
            name = join(address, str(found[-1]), manifest.NAME)
            if addresses.read_small(name, manifest.MAX_BYTES) != (here / manifest.NAME).read_bytes():
                logger.info(f"{name} is of another run than {here}, moved to {folder.set_aside(output_dir, -1)}")
                here = None
        newer = [name for name in found if here is None or folder.order(name) > folder.order(here)]
        has_fetched = any(_fetch(address, files, name, output_dir) for name in reversed(newer))
        if newer and not has_fetched and here is None:
            raise CheckpointError(f"none of its {len(newer)} checkpoints can be used; --resume=none starts over")
        reports = [name for name in files if not name.startswith(f"{CHECKPOINTS}/")]
        missing = [each for each in reports if has_fetched or not (output_dir / each).exists()]
        addresses.download_all(address, missing, output_dir)
        if has_fetched:  # What is in memory here was copied before another run went on.
            (output_dir / CHECKPOINTS / memory_slot.SESSION).unlink(missing_ok=True)
        if with_best and (best := _best(address, files)) and not (output_dir / best).is_dir():
            _fetch(address, files, best, output_dir)


def fetch_again(address: str, path: Path) -> bool:
    """Copies a checkpoint of a run from its address to its path, in place of a damaged one; returns whether it is good.

    Raises:
        OSError: the address can't be read, or the folder not be written.
    """
    files, name = addresses.listing(address), PurePosixPath(CHECKPOINTS, path.name)
    return name in checkpoints(files) and _fetch(address, files, name, path.parent.parent)


def _fetch(address: str, files: Mapping[str, str], name: PurePosixPath, output_dir: Path) -> bool:
    """Copies a checkpoint and checks its digests; returns whether it is good."""
    try:
        with complete_folder(output_dir / name) as partial:
            inside = [file.removeprefix(f"{name}/") for file in files if is_in(file, str(name))]
            addresses.download_all(join(address, str(name)), inside, partial)
            Reader(partial).verify()
            if (output_dir / name).exists():
                durable.remove(output_dir / name, output_dir / CHECKPOINTS / f".trash_{name.name}")
    except CheckpointError as error:
        logger.warning(f"{join(address, str(name))}: this checkpoint can't be used: {error}")
        return False
    logger.info(f"fetched {join(address, str(name))}")
    return True


def local_copy(address: str, cache: Cache, last: int = 1) -> Path:
    """Returns a folder with a copy of what is at an address: a model, a checkpoint or a run.

    The copy of a run has its tokenizer, its best checkpoint by score, and its newest `last` ones. A checkpoint of a run
    comes with the tokenizer of the run. Of anything else, all files are copied. What is there already, unchanged, is
    not copied again.

    Raises:
        OSError: there is nothing at the address, or it can't be read, or not be copied.
    """
    run, _, name = address.rstrip("/").rpartition(f"/{CHECKPOINTS}/")
    root, inside = (run, f"{CHECKPOINTS}/{name}") if run and "/" not in name else (address, "")
    files = addresses.listing(root)
    chosen = {inside, TOKENIZER}
    if not inside and (complete := checkpoints(files)):
        chosen = {scores.NAME, TOKENIZER, *map(str, [*complete[-last:], _best(root, files)])}
    if inside or complete:
        files = {file: version for file, version in files.items() if any(is_in(file, each) for each in chosen)}
    if not any(is_in(file, inside) for file in files):
        raise FileNotFoundError(errno.ENOENT, "no such folder", address)
    path = cache.path("models", addresses.local_name(root, str(files)))
    with locked(path):
        if not path.is_dir():
            with complete_folder(path) as partial:
                addresses.download_all(root, files, partial)
    return path / inside


def is_in(file: str, place: str) -> bool:
    """Whether a file is at a place, or in the folder there; "" is the folder that has all."""
    return not place or f"{file}/".startswith(f"{place}/")


def _best(address: str, files: Mapping[str, str]) -> PurePosixPath | None:
    """Returns the checkpoint of a run with the best score; None if there is none."""
    content = addresses.read_small(join(address, scores.NAME), _MAX_SCORES) if scores.NAME in files else b""
    stored = scores.decode(content)
    step = stored and stored.best and stored.best.step
    return next((name for name in reversed(checkpoints(files)) if folder.order(name)[0] == step), None)
