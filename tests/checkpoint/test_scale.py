"""The state of up to 64 ranks: what they write is whole, each finds its part, and nothing grows faster."""

import dataclasses
import itertools
import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from tftrain.architecture.describe import describe
from tftrain.architecture.shard import shard_of
from tftrain.checkpoint import manifest, save, shard
from tftrain.checkpoint.manifest import CheckpointManifest
from tftrain.checkpoint.placement import Placement
from tftrain.checkpoint.reader import share
from tftrain.checkpoint.shard import Written
from tftrain.checkpoint.tensor_slice import overlap
from tftrain.cli import flags
from tftrain.config.parallel import BUCKET_BYTES
from tftrain.config.train import TrainConfig
from tftrain.data.sizes import synthetic
from tftrain.optim.state_layout import held_pieces, layout, partitioned, saved_pieces, slice_of
from tftrain.parallel import rendezvous
from tftrain.parallel.launcher import Launch

SMALL = ("--num_hidden_layers=2", "--hidden_size=24", "--num_attention_heads=4", "--vocab_size=67", "--synthetic_data")
DIGESTS = {"xxh3_128": "0" * 32, "sha256": "0" * 64}
LAYOUTS = (
    (),
    ("--split_opt_state",),
    ("--split_opt_state", "--state_split_strategy=naive"),
    ("--split_opt_state", "--state_split_strategy=greedy:3", "--activation=geglu"),
    ("--tensor_parallel_size=2",),
    ("--tensor_parallel_size=2", "--split_opt_state", "--precision=bf16", "--norm_position=pre"),
)


def configured(*args):
    return flags.parse(TrainConfig, ["x", *args])


class Division:
    """The state of a run as its ranks divide it: by tensor rank, the weights that it holds by name, and the buckets."""

    def __init__(self, config, ranks, bucket_bytes=BUCKET_BYTES):
        model, parallel, precision = config.model, config.parallel, config.compute.precision
        self.ranks, self.tensor_ranks = ranks, parallel.tensor_parallel_size
        self.data_ranks = ranks // self.tensor_ranks
        vocab_size = synthetic(config.data, model.vocab_size).vocab_size
        weights = describe(dataclasses.replace(model, vocab_size=vocab_size)).variables()
        wide = "fp32" if model.ln_dtype == "fp32" else precision
        dtypes = [wide if weight.is_norm else precision for weight in weights]
        self.pieces, self.buckets = [], []
        for rank in range(self.tensor_ranks):
            held = [slice_of(shard_of(*weight[:4], rank, self.tensor_ranks)) for weight in weights]
            self.pieces.append({piece.name: piece for piece in held})
            tensors = [
                partitioned(each, dtype, self.tensor_ranks, False, False, parallel.split_weights)
                for each, dtype in zip(held, dtypes, strict=True)
            ]
            divide = (parallel.state_split_strategy, tensors, self.data_ranks, bucket_bytes // 4)
            self.buckets.append(layout(*divide) if parallel.splits_state and self.data_ranks > 1 else None)

    def held(self, rank):
        """Returns the pieces of one rank, as the optimizer's state has them."""
        data_rank, tensor_rank = divmod(rank, self.tensor_ranks)
        slots = dict.fromkeys(self.pieces[tensor_rank], ("adam_m", "adam_v"))
        return list(held_pieces(self.pieces[tensor_rank], slots, self.buckets[tensor_rank], data_rank))

    def saved(self, rank):
        """Returns those that it saves."""
        is_copy = self.buckets[rank % self.tensor_ranks] is None
        return saved_pieces(self.held(rank), *((rank // self.tensor_ranks, self.data_ranks) if is_copy else (0, 1)))

    def files_of(self, rank):
        """Returns the files that one rank writes."""
        return {
            save.file_name(rank, number): Written(sum(each.nbytes for each in pieces), DIGESTS, tuple(pieces))
            for number, pieces in enumerate(shard.pack(held.piece for held in self.saved(rank)))
        }

    def checkpoint(self):
        """Returns all files by name, the manifest that the chief makes, and the size of the largest announcement."""
        files, largest = {}, 0
        for rank in range(self.ranks):
            content = msgspec.json.encode(save.Announcement(self.files_of(rank)))
            files |= msgspec.json.decode(content, type=save.Announcement).files
            largest = max(largest, len(content))
        return files, manifest.encode(CheckpointManifest(1, Placement.of(files), {})), largest


@settings(max_examples=12, deadline=None)
@given(some.sampled_from(LAYOUTS), some.sampled_from((2, 6, 12, 64)), some.sampled_from((4096, BUCKET_BYTES)))
def test_what_all_ranks_write_is_whole_and_each_finds_its_part(args, ranks, bucket_bytes):
    division = Division(configured(*SMALL, *args), ranks, bucket_bytes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard, "SHARD_BYTES", 3000)
        files, text, _ = division.checkpoint()
    read = manifest.decode(text, "x").files  # It refuses what is not whole.
    assert dict(read) == {name: files[name] for name in read}
    assert read.keys() == files.keys()
    for rank in range(0, ranks, -(-ranks // 6)):
        wanted = [held.piece for held in division.held(rank)]
        for piece in wanted:
            expected = {
                n for n, file in files.items() if any(e.name == piece.name and overlap(e, piece) for e in file.pieces)
            }
            assert read.holders(piece) == expected


@pytest.mark.parametrize("args", [("--split_opt_state",), ("--split_opt_state", "--tensor_parallel_size=4")])
def test_nothing_grows_faster_than_the_ranks(args):
    size = ("--num_hidden_layers=4", "--hidden_size=256", "--num_attention_heads=4", "--synthetic_data")
    texts, opened, largest = [], [], []
    for ranks in (32, 64):
        division = Division(configured(*size, *args), ranks)
        files, text, announced = division.checkpoint()
        read = manifest.decode(text, "x").files
        assert len(files) == ranks
        for rank in (0, 1, ranks // 3, ranks - 1):
            wanted = [held.piece for held in division.held(rank)]
            opened.append(len({*share(files, rank, ranks)}.union(*map(read.holders, wanted))))
        texts.append(len(text))
        largest.append(announced)
    assert texts[1] <= 2.01 * texts[0]
    assert max(opened) <= 2
    assert largest[1] <= 1.1 * largest[0]
    assert texts[1] <= manifest.MAX_BYTES / 30


def test_xxlarge_has_no_tiny_buckets():
    """Before, 290 of 582 buckets had less than 1 MB."""
    args = ("--flagfile=configs/xxlarge_48.flags", "--precision=bf16", "--split_opt_state")
    (buckets,) = Division(configured(*args), 512).buckets
    sizes = [bucket.bounds[-1] * 4 for bucket in buckets]
    assert len(sizes) <= 300
    assert sum(size < BUCKET_BYTES / 4 for size in sizes) <= 1
    assert max(sizes) < 500e6


class Store:
    """A store that counts requests and answers at once, also for ranks that have not come yet."""

    def __init__(self, ranks):
        self.count, self.ranks = 0, ranks

    def put(self, name, value, seconds):
        self.count += 1

    def wait(self, name, seconds, ranks=1):
        self.count += 1
        return json.dumps(["yes"] * self.ranks) if name == "all_present" else "yes"


@pytest.mark.parametrize("ranks", [1, 2, 64])
def test_requests_until_horovod_starts_are_four_a_rank_at_most(ranks, monkeypatch):
    store, environ = Store(ranks), {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "host", "HOROVOD_GLOO_RENDEZVOUS_PORT": "1"}
    monkeypatch.setattr(rendezvous, "LauncherStore", lambda address: store)
    for launch in map(Launch, range(ranks), itertools.repeat(ranks)):
        rendezvous.value_of_rank_0(launch, "tensor_parallel_size", "1", environ)
        assert rendezvous.await_all(launch, environ) == ["yes"] * ranks
    assert store.count <= 4 * ranks
    assert ranks / rendezvous.pause_after(0, ranks) <= 400
