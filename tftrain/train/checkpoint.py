"""Checkpoints: OUTPUT_DIR/checkpoints/step_00001000/ with the state as safetensors and a JSON manifest beside it.

A checkpoint is written into a temporary folder, flushed to disk and renamed: it exists whole or not at all. Tensors go
by their global names and whole shapes, so the file says nothing of the number of ranks that wrote it.
"""

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

FORMAT_VERSION = 1
TENSORS = "state.safetensors"
MANIFEST = "manifest.json"
_NAME = re.compile(r"step_(\d{8,})")


class CheckpointError(RuntimeError):
    """A checkpoint that can't be written or read; the message names the file and the reason."""


def folder(output_dir: str | Path) -> Path:
    """Returns where a run keeps its checkpoints."""
    return Path(output_dir) / "checkpoints"


def find(output_dir: str | Path) -> list[Path]:
    """Returns the finished checkpoints of a run, oldest first."""
    found = [
        (int(match[1]), path)
        for path in folder(output_dir).glob("step_*")
        if (match := _NAME.fullmatch(path.name)) and (path / MANIFEST).is_file()
    ]
    return [path for _, path in sorted(found)]


def save(output_dir: str | Path, step: int, tensors: dict[str, np.ndarray], about: dict, keep_last: int) -> Path:
    """Writes one checkpoint and removes all but the newest ones.

    Args:
        output_dir: the run's folder.
        step: updates done so far; the checkpoint's name.
        tensors: the whole state by global name.
        about: what else the manifest says (configuration, versions); JSON-serialisable.
        keep_last: how many checkpoints remain, this one included.

    Returns:
        The checkpoint's folder.

    Raises:
        CheckpointError: it can't be written; older checkpoints are as they were.
    """
    final = folder(output_dir) / f"step_{step:08d}"
    partial = final.with_name(f".partial_{final.name}")
    try:
        for leftover in final.parent.glob(".partial_*"):
            shutil.rmtree(leftover)
        partial.mkdir(parents=True)
        safetensors.numpy.save_file(tensors, partial / TENSORS)
        manifest = {
            "format_version": FORMAT_VERSION,
            "step": step,
            "sha256": {TENSORS: _sha256(partial / TENSORS)},
            **about,
        }
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=1))
        for path in (partial / TENSORS, partial / MANIFEST, partial):
            _flush(path)
        if final.exists():
            shutil.rmtree(final)
        partial.rename(final)
        _flush(final.parent)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(f"{final}: the checkpoint can't be written: {error}") from error
    for old in find(output_dir)[:-keep_last]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def set_aside(output_dir: str | Path, step: int) -> Path | None:
    """Moves what lies after `step` out of the way of a run that starts over from there; nothing is deleted.

    Args:
        output_dir: the run's folder.
        step: the step that the run goes on from, 0 for a fresh start.

    Returns:
        The folder `checkpoints/set_aside_N` that now holds the later checkpoints and a copy of metrics.jsonl; None if
        there were none.

    Raises:
        CheckpointError: it can't be done.
    """
    later = [path for path in find(output_dir) if int(_NAME.fullmatch(path.name)[1]) > step]
    if not later:
        return None
    number = 1 + len(list(folder(output_dir).glob("set_aside_*")))
    aside = folder(output_dir) / f"set_aside_{number}"
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


def load(path: str | Path) -> tuple[dict[str, np.ndarray], dict]:
    """Reads one checkpoint and checks its digest.

    Returns:
        The tensors by global name, and the manifest.

    Raises:
        CheckpointError: it is missing, incomplete or damaged.
    """
    path = Path(path)
    try:
        manifest = json.loads((path / MANIFEST).read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path / MANIFEST}: not the manifest of a checkpoint: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format_version") != FORMAT_VERSION:
        raise CheckpointError(f"{path / MANIFEST}: expected format_version {FORMAT_VERSION}")
    try:
        if _sha256(path / TENSORS) != manifest.get("sha256", {}).get(TENSORS):
            raise CheckpointError(f"{path / TENSORS}: damaged: its SHA-256 is not the one in {MANIFEST}")
        return safetensors.numpy.load_file(path / TENSORS), manifest
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path / TENSORS}: can't be read: {error}") from error


def locate(resume: str, output_dir: str | Path) -> Path | None:
    """Returns the checkpoint that `--resume` means, or None for a fresh start.

    Raises:
        CheckpointError: `--resume` names a folder that is no checkpoint.
    """
    if resume == "none":
        return None
    if resume == "auto":
        found = find(output_dir)
        return found[-1] if found else None
    path = Path(resume)
    if not (path / MANIFEST).is_file():
        raise CheckpointError(
            f"--resume={resume}: expected auto, none, or the folder of a checkpoint (…/step_NNNNNNNN)"
        )
    return path


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def _flush(path: Path) -> None:
    """Makes a file's content or a folder's entries survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
