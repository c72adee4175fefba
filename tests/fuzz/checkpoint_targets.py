"""Fuzz targets of checkpoints: their manifests, and the safetensors files that those name."""

import json
import tempfile
from pathlib import Path

import numpy as np

from tests.fuzz.harness import Target
from tests.fuzz.mutations import mutate, mutate_json
from tftrain.checkpoint.errors import CheckpointError
from tftrain.checkpoint.reader import Reader
from tftrain.checkpoint.shard import DIGESTS
from tftrain.checkpoint.tensor_slice import TensorSlice

MANIFEST = "manifest.json"


class CheckpointManifest(Target):
    """Manifests beside good shards: what is accepted holds the tensors that were saved, and no others."""

    name, clean = "checkpoint", (CheckpointError,)

    def begin(self):
        from tests.checkpoint import states

        draw = np.random.default_rng(0)
        shapes = {"a": (5, 4), "b/c": (3,), "empty/d": (), "e": (2, 3, 2)}
        self._tensors = {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
        self._tensors["steps"] = np.array(7, np.int64)
        with tempfile.TemporaryDirectory() as folder:
            path = states.saved(folder, self._tensors, run={"seed": 1, "config": {"model": {"layers": 2}}}).path
            self._files = {file.name: file.read_bytes() for file in path.iterdir()}
        self._shard = next(name for name in self._files if name != MANIFEST)

    def damage(self, rng, folder):
        files, content = dict(self._files), self._files[MANIFEST]
        if rng.random() < 0.7:
            names = ("a", "e", self._shard, "../precious", "F64", "I64", "0" * 64)
            files[MANIFEST] = json.dumps(mutate_json(rng, json.loads(content), names)).encode()
        else:
            files[MANIFEST] = mutate(rng, content)
        return self._write(folder, files)

    def _write(self, folder, files):
        for name, content in files.items():
            (folder / name).write_bytes(content)
        return str(folder)

    def use(self, folder):
        reader = Reader(Path(folder))
        reader.verify()
        self._check(reader)

    def _check(self, reader):
        for name, value in self._tensors.items():
            found = reader.read(TensorSlice.block(name, value.shape, {"f": "F32", "i": "I64"}[value.dtype.kind]))
            assert found.tobytes() == value.tobytes(), name


class Safetensors(CheckpointManifest):
    """Damaged shards; half of them with the size and the SHA-256 that the manifest says, so that headers are read."""

    name = "safetensors"

    def damage(self, rng, folder):
        files, content = dict(self._files), self._files[self._shard]
        length = int.from_bytes(content[:8], "little")
        if rng.random() < 0.4:
            header = json.dumps(mutate_json(rng, json.loads(content[8 : 8 + length]), ("a", "F64", "e"))).encode()
            files[self._shard] = len(header).to_bytes(8, "little") + header + content[8 + length :]
        else:
            files[self._shard] = mutate(rng, content)
        self._sealed = rng.random() < 0.5
        if self._sealed:
            manifest = json.loads(files[MANIFEST])
            damaged = files[self._shard]
            digests = {name: make(damaged).hexdigest() for name, make in DIGESTS.items()}
            manifest["files"][self._shard] |= {"bytes": len(damaged), **digests}
            files[MANIFEST] = json.dumps(manifest).encode()
        return self._write(folder, files)

    def _check(self, reader):
        if not self._sealed:
            super()._check(reader)
            return
        # Whoever seals a file may put other numbers into it.
        for name, (dtype, shape) in reader.tensors.items():
            reader.read(TensorSlice.block(name, shape, dtype))
