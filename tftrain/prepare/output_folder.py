"""The output folder of a preparation: what may be in it before, and how the finished files come into it."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

from tftrain.cli.program import ENDING
from tftrain.config.prepare import PrepareConfig
from tftrain.data import manifest
from tftrain.data.manifest import Manifest
from tftrain.files.errors import DataError

UNFINISHED = ".unfinished"  # inside the output folder, for the files of a preparation that is under way


def check(config: PrepareConfig) -> None:
    """Raises a DataError if the folder holds other files, or an earlier preparation and --overwrite is not set."""
    folder = config.output_dir
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise DataError(f"--output_dir={folder}: this is a file; expected a folder")
    if os.path.islink(os.path.join(folder, UNFINISHED)):
        raise DataError(f"--output_dir={folder}: {UNFINISHED} in it is a symbolic link; remove it")
    present = set(os.listdir(folder)) - {UNFINISHED} if os.path.isdir(folder) else set()
    if not present:
        return
    expected = "expected a new or an empty folder, or an earlier preparation with --overwrite"
    if manifest.NAME not in present:
        raise DataError(f"--output_dir={folder}: the folder holds other files ({sorted(present)[0]}); {expected}")
    try:
        manifest.listed_files(folder)
    except DataError as error:
        raise DataError(
            f"--output_dir={folder}: its {manifest.NAME} is not one of tftrain.prepare's; {expected}"
        ) from error
    if not config.overwrite:
        expected = "expected --overwrite to replace it, or another folder"
        raise DataError(f"--output_dir={folder}: the folder holds a preparation; {expected}")


def publish(work: str, new_manifest: Manifest) -> None:
    """Replaces the files of an earlier preparation with the finished files in `work`, and writes their manifest.

    Raises:
        DataError: a file that is not of the earlier preparation has the name of a finished file.
    """
    folder = new_manifest.folder
    with _signals_ignored():
        earlier = manifest.listed_files(folder) if os.path.exists(new_manifest.path(manifest.NAME)) else []
        published = [shard.file for shards in new_manifest.splits.values() for shard in shards]
        published += [name + ".index" for name in published]
        published += filter(None, [new_manifest.vocab_file, new_manifest.tokenizer_file])
        for name in published:
            if name not in earlier and os.path.lexists(new_manifest.path(name)):
                fault = f"{name} is in the way: it is not of the earlier preparation; move it away"
                raise DataError(f"--output_dir={folder}: {fault}")
        for name in [manifest.NAME, *earlier]:
            with contextlib.suppress(FileNotFoundError):
                os.remove(new_manifest.path(name))
        for name in published:
            os.replace(os.path.join(work, name), new_manifest.path(name))
        manifest.write_manifest(new_manifest)


@contextlib.contextmanager
def _signals_ignored() -> Iterator[None]:
    """Ignores what ends a program while files are moved, so that a signal cannot leave the move half done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous_handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, *ENDING)}
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
