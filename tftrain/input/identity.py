"""The identity of a data set, from a few small reads. Ranks compare it before training."""

import hashlib
import os

from tftrain.config.train import DataConfig
from tftrain.input.manifest import NAME, file_sha256, read_manifest
from tftrain.input.records import match_files


def identity(data: DataConfig) -> dict[str, str]:
    """Returns the properties of the data that must be equal on all ranks and after a resume.

    A prepared data set is identified by its vocabulary and its manifest, which lists the shards and their sizes. Other
    records are identified by the names and sizes of their files, in order. Synthetic data has no properties.

    Returns:
        The values by the name of the property.

    Raises:
        DataError: the data cannot be read.
    """
    if data.data_dir:
        manifest = read_manifest(data.data_dir)
        return {
            "the vocabulary": f"{manifest.vocab_size} tokens with SHA-256 {manifest.vocab_sha256[:16]}",
            f"{NAME} of the data": f"SHA-256 {file_sha256(manifest.path(NAME))[:16]}",
        }
    properties = {}
    for flag in ("train_files", "eval_files"):
        if pattern := getattr(data, flag):
            paths = match_files(pattern, flag)
            names_and_sizes = "\n".join(f"{os.path.basename(path)} {os.path.getsize(path)}" for path in paths)
            digest = hashlib.sha256(names_and_sizes.encode()).hexdigest()
            properties[f"what --{flag} names"] = f"{len(paths)} files whose names and sizes have SHA-256 {digest[:16]}"
    return properties
