"""Whole states for tests: made of what ranks own, or read from checkpoints by another way than the product's."""

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import safetensors.numpy

from tftrain.checkpoint import folder, save
from tftrain.checkpoint.reader import Reader
from tftrain.checkpoint.save import Attempt
from tftrain.checkpoint.tensor_slice import DTYPES, TensorData, TensorSlice, coverage_error

NAMES = {dtype: name for name, dtype in DTYPES.items()}


def owned(state):
    """Returns a copy of every tensor that a lone rank gives to a checkpoint."""
    return {piece.name: values.reshape(piece.whole).copy() for piece, values in state.tensors_to_save()}


def saved(output_dir, tensors, step=1, run=None, keep_last=3, keep_every=0, number=1):
    """Saves whole tensors as one rank does, and opens the checkpoint."""
    attempt = Attempt(Path(output_dir), step, number)
    attempt.folder.parent.mkdir(exist_ok=True)
    save.write(attempt, whole_pieces(tensors))
    return Reader(save.complete(attempt, run or {}, keep(keep_last, keep_every), 1, lambda: False))


def keep(last, every=0):
    """Returns which checkpoints are superseded."""
    return lambda checkpoints: folder.superseded(checkpoints, last, every)


def whole_pieces(tensors):
    """Returns tensors as what a lone rank owns."""
    return [
        TensorData(TensorSlice.block(name, value.shape, NAMES[value.dtype]), value.reshape(-1))
        for name, value in tensors.items()
    ]


def stored(path):
    """Returns every whole tensor of a checkpoint, by the safetensors library and an index of every element."""
    content = json.loads((Path(path) / "manifest.json").read_text())
    files = [safetensors.numpy.load_file(Path(path) / file) for file in sorted(content["files"])]
    used = [set() for _ in files]
    tensors = {}
    for name, tensor in content["tensors"].items():
        whole, times = np.zeros(tensor["shape"], DTYPES[tensor["dtype"]]), np.zeros(tensor["shape"], int)
        for block in tensor["blocks"]:
            index = np.arange(whole.size).reshape(whole.shape)
            for axis, begin in enumerate(block.get("offset", [])):
                index = index.take(range(begin, begin + block["shape"][axis]), axis)
            for file, start, stop, *series in block["pieces"]:
                count, file_step, step = series or (1, 0, 0)
                for number in range(count):
                    elements = index.reshape(-1)[start + number * step : stop + number * step]
                    whole.flat[elements] = files[file + number * file_step][name].reshape(-1)
                    times.flat[elements] += 1
                    used[file + number * file_step].add(name)
        assert (times == 1).all()
        tensors[name] = whole
    assert [file.keys() for file in files] == used
    return tensors


def flip(path):
    """Changes the last byte of a file; a second time, it is what it was."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def coverage(pieces):
    """Returns the error of pieces of one tensor, see `coverage_error`."""
    blocks = {}
    for piece in pieces:
        if piece.size:
            blocks.setdefault((piece.offset, piece.shape), []).append((piece.start, piece.stop))
    return coverage_error(pieces[0].whole, {block: np.array(cuts) for block, cuts in blocks.items()})


def collected(run):
    """Returns the whole state of a run on the chief, by way of a checkpoint; every rank must call it."""
    from tftrain.parallel.collectives import gather_values  # Tests of files alone load no TensorFlow.

    world = run.mesh.world
    (folder, *_) = gather_values(world, tempfile.mkdtemp() if run.mesh.is_chief else "", "collected.folder")
    attempt = Attempt(Path(folder), 0, 0, world.rank, world.size)
    attempt.folder.parent.mkdir(exist_ok=True)
    save.write(attempt, list(run.tensors_to_save()))
    if not run.mesh.is_chief:
        return {}
    found = stored(save.complete(attempt, {}, keep(1), 60, lambda: False))
    shutil.rmtree(folder)
    return found


def assert_same_end(output_dir, expected_dir):
    """Compares two runs: the losses of their steps, and every tensor of their newest checkpoints, bit for bit."""
    from tests.kit.runs import losses  # This loads TensorFlow, which most tests of checkpoints do without.

    assert losses(output_dir) == losses(expected_dir)
    found, expected = (stored(folder.newest(path)) for path in (output_dir, expected_dir))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(found[name], tensor, err_msg=name)


def begun_from(path, output_dir):
    """Makes the folder of a run that was killed after the checkpoint `path` of another one; returns it."""
    shutil.copytree(path, folder.checkpoint_folder(output_dir) / path.name)
    shutil.copy(path.parents[1] / "metrics.jsonl", output_dir)
    return output_dir
