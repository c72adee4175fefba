"""What tells one data set from another at the price of a few small reads: ranks compare it before they start."""

import hashlib
import os

from tftrain.config import DataConfig
from tftrain.data.manifest import NAME, file_sha256, read_manifest
from tftrain.data.records import match_files


def identity(data: DataConfig) -> dict[str, str]:
    """Returns what must be the same wherever this data is read; nothing of synthetic data.

    Of a prepared data set the vocabulary and its manifest, which has the shards with their sizes; of other records the
    names of the files, in order, with their sizes.

    Raises:
        DataError: the data can't be read.
    """
    if data.data_dir:
        manifest = read_manifest(data.data_dir)
        return {
            "the vocabulary": f"{manifest.vocab_size} tokens with SHA-256 {manifest.vocab_sha256[:16]}",
            f"{NAME} of the data": f"SHA-256 {file_sha256(manifest.path(NAME))[:16]}",
        }
    found = {}
    for flag in ("train_files", "eval_files"):
        if pattern := getattr(data, flag):
            paths = match_files(pattern, flag)
            listed = "\n".join(f"{os.path.basename(path)} {os.path.getsize(path)}" for path in paths)
            digest = hashlib.sha256(listed.encode()).hexdigest()
            found[f"what --{flag} names"] = f"{len(paths)} files whose names and sizes have SHA-256 {digest[:16]}"
    return found
