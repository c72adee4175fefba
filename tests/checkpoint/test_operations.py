"""What saves and restores ask of the file system: a rank the same among many ranks, the chief in proportion to them."""

import contextlib
import os
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.checkpoint import states
from tftrain.checkpoint import folder, save
from tftrain.checkpoint.reader import Reader
from tftrain.checkpoint.save import Attempt
from tftrain.checkpoint.tensor_slice import TensorData, TensorSlice

SIZE = 640
WHOLE = np.arange(SIZE, dtype=np.float32)


class Operations:
    """Counts what Python asks of the file system while it is watched."""

    AUDITED = ("open", "os.mkdir", "os.rename", "os.remove", "os.scandir", "os.listdir")
    OTHERS = ((os, "fsync"), (os, "preadv"), (Path, "exists"))  # which Python does not audit

    def __init__(self):
        self.counts = None
        sys.addaudithook(lambda event, _: self.count(event) if event in self.AUDITED else None)

    def count(self, name):
        if self.counts is not None:
            self.counts[name] += 1

    @contextlib.contextmanager
    def watched(self):
        with pytest.MonkeyPatch.context() as patch:
            for owner, name in self.OTHERS:
                patch.setattr(owner, name, self.counting(name, getattr(owner, name)))
            self.counts = Counter()
            yield self.counts
            self.counts = None

    def counting(self, name, ask):
        return lambda *args: (self.count(name), ask(*args))[1]


OPERATIONS = Operations()


def piece_of(rank, ranks):
    return TensorSlice.block("master/x", (SIZE,), "F32", elements=(SIZE * rank // ranks, SIZE * (rank + 1) // ranks))


def tensors_of(rank, ranks):
    piece = piece_of(rank, ranks)
    return [TensorData(piece, WHOLE[piece.start : piece.stop])]


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    """By number of ranks: the operations of a rank that saves, of the chief that completes, of a rank that reads."""
    found = {}
    for ranks in (2, 16, 32):
        output_dir = tmp_path_factory.mktemp("saved")
        folder.checkpoint_folder(output_dir).mkdir()
        attempts = [Attempt(output_dir, 1, 1, rank, ranks) for rank in range(ranks)]
        for attempt in attempts[:-1]:
            save.write(attempt, tensors_of(attempt.rank, ranks))
        with OPERATIONS.watched() as writing:
            save.write(attempts[-1], tensors_of(ranks - 1, ranks))
        with OPERATIONS.watched() as completing:
            path = save.complete(attempts[0], {}, states.keep(1), 5, lambda: False)
        with OPERATIONS.watched() as reading:
            wanted = {piece_of(1, ranks): np.empty(piece_of(1, ranks).size, np.float32)}
            Reader(path).verify(1, ranks, wanted)
        np.testing.assert_array_equal(states.stored(path)["master/x"], WHOLE)
        found[ranks] = writing, completing, reading
    return found


def test_a_rank_writes_as_few_files_among_many_ranks(counted):
    for writing, _, _ in counted.values():
        assert writing == counted[2][0]
        # A shard and an announcement, each flushed with the folder that names it.
        assert writing["fsync"] <= 5
        assert writing["open"] <= 5
        assert writing["os.rename"] == 1


def test_the_chief_asks_for_each_rank_once(counted):
    for name, count in counted[32][1].items():
        assert count <= 2 * counted[16][1][name], name
        assert count <= 2 * 32 + 10, name


def test_a_rank_opens_the_manifest_and_its_own_file(counted):
    for _, _, reading in counted.values():
        # Python reports the manifest twice: when it is opened, and when its descriptor becomes a file.
        assert reading["open"] == 3
        assert reading == counted[2][2]
