"""The simulation of many ranks: it does what each rank does, and what it counts grows with the ranks and not faster."""

import pytest

from tests.checkpoint import simulation
from tests.checkpoint.simulation import Simulation, requests
from tftrain.checkpoint import manifest, shard, tensor_slice
from tftrain.checkpoint.manifest import CheckpointManifest
from tftrain.cli import flags
from tftrain.config.parallel import BUCKET_BYTES
from tftrain.config.train import TrainConfig

SMALL = ("--num_hidden_layers=2", "--hidden_size=24", "--num_attention_heads=4", "--vocab_size=67", "--synthetic_data")
XXLARGE = ("--flagfile=configs/xxlarge_48.flags", "--precision=bf16", "--split_opt_state")


def configured(*args):
    return flags.parse(TrainConfig, ["x", *args])


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("--split_opt_state",),
        ("--split_opt_state", "--state_split_strategy=naive"),
        ("--split_opt_state", "--state_split_strategy=greedy:3", "--activation=geglu"),
        ("--tensor_parallel_size=3",),
        ("--tensor_parallel_size=2", "--split_opt_state", "--precision=bf16", "--norm_position=pre"),
    ],
)
def test_the_checkpoint_of_all_ranks_is_what_each_rank_writes(args, monkeypatch):
    monkeypatch.setattr(simulation, "BUCKET_BYTES", 4096)
    monkeypatch.setattr(shard, "SHARD_BYTES", 3000)
    simulated = Simulation(configured(*SMALL, *args), 12)
    written = {name: file for rank in range(12) for name, file in simulated.files_of(rank).items()}
    saved = simulated.checkpoint()
    assert {name: file.pieces for name, file in saved.items()} == {name: file.pieces for name, file in written.items()}
    assert saved.files.keys() == written.keys()
    for name, file in written.items():
        assert saved.files[name].bytes == sum(each.nbytes for each in file.pieces)
    read = manifest.decode(manifest.encode(CheckpointManifest(1, saved, {})), "x").files
    for rank in range(12):
        found, wanted = simulated.read_by(rank, read), [held.piece for held in simulated.layout_of(rank).held()]
        expected = {name for name, file in written.items() if any(shard_has(file, each) for each in wanted)}
        assert expected <= found.keys()
        assert sum(found.values()) >= sum(each.nbytes for each in wanted)


def shard_has(file, wanted):
    return any(tensor_slice.overlap(each, wanted) for each in file.pieces if each.name == wanted.name)


# Without tensor parallel ranks, the same functions do the same in a third of the time.
@pytest.mark.parametrize("args", [(), pytest.param(("--tensor_parallel_size=8",), marks=pytest.mark.nightly)])
def test_nothing_grows_faster_than_the_ranks(args):
    half, whole = (Simulation(configured(*XXLARGE, *args), ranks).counts() for ranks in (2048, 4096))
    for name in ("pieces", "files", "manifest_mb", "requests"):
        assert getattr(whole, name) <= 2.01 * getattr(half, name), name
    # What a rank does, and the checkpoint, do not grow with the ranks.
    for name in (
        "buckets",
        "reduced_gb",
        "gathered_gb",
        "tensor_sums",
        "saved_gb",
        "announcement_kb",
        "opened",
        "read_gb",
    ):
        assert getattr(whole, name) <= 1.01 * getattr(half, name), name
    # Two sums of a block forward and two backward, and those of the embeddings and of the logits.
    assert whole.tensor_sums in (0, 4 * 48 + 4)
    assert whole.requests <= 4 * 4096
    assert whole.requests_per_s <= 400
    assert whole.files == 4096
    assert whole.opened <= 2
    assert whole.read_gb <= 1.05 * whole.saved_gb / 4096
    assert whole.manifest_mb * 1e6 <= manifest.MAX_BYTES / 30
    assert whole.manifest_s <= 10
    assert whole.announcement_kb <= 200


def test_without_split_state_too_the_manifest_is_small():
    counts = Simulation(configured("--flagfile=configs/large.flags"), 64).counts()
    assert counts.manifest_mb < 1
    assert counts.pieces < 3 * 400 + 64


def test_xxlarge_has_no_tiny_buckets():
    """Before, 290 of 582 buckets had less than 1 MB."""
    (buckets,) = Simulation(configured(*XXLARGE), 512).buckets
    sizes = [bucket.bounds[-1] * 4 for bucket in buckets]
    assert len(sizes) <= 300
    assert sum(size < BUCKET_BYTES / 4 for size in sizes) <= 1
    assert max(sizes) < 500e6


@pytest.mark.parametrize("ranks", [1, 2, 64])
def test_requests_are_four_a_rank_at_most(ranks):
    assert requests(ranks) <= 4 * ranks
