"""Memory by kind: exact where it is known, complete in any case, and told once."""

import json

import pytest

from tests.test_run import configured
from tftrain.parallel.mesh import Mesh
from tftrain.train import memory
from tftrain.train.session import Run

# Of two layers of width 32 with 101 words, 512 positions and 2 types: embeddings 615 * 32 and a norm of 64; per layer 4
# projections of 1056, 2 norms of 64, 32 * 128 + 128 and 128 * 32 + 32; pooler 1056; heads 1056 + 64 + 101 and 66.
WEIGHTS = 19680 + 64 + 2 * (4 * 1056 + 2 * 64 + 4224 + 4128) + 1056 + 1221 + 66
GROWN = ("--global_batch_size=12", "--output_dir=unused")


@pytest.mark.parametrize(
    ("args", "state"),
    [
        ((), (4, 0, 8)),  # The weights are their own masters.
        (("--precision=fp16",), (2, 4, 8)),
    ],
)
def test_state_is_what_its_variables_take_and_what_was_expected(args, state):
    config = configured(*GROWN, *args)
    run = Run(config, Mesh())
    found = memory.state_bytes(run.model.named_variables().values(), run.optimizer.state)
    expected = dict(zip(("weights", "master_weights", "moments"), (WEIGHTS * size for size in state), strict=True))
    assert found == expected
    foreseen = memory.expected_bytes(config, 1)
    assert {kind: foreseen[kind] for kind in expected} == expected
    assert foreseen["activations"] is None
    assert memory.state_line(run) == f"state bytes per rank: {WEIGHTS * sum(state)}"


@pytest.mark.parametrize(
    ("args", "ranks", "expected"),
    [
        ((), 1, (40, 0, 0)),
        (("--micro_batch_size=3",), 1, (40, 40, 0)),
        (("--micro_batch_size=3", "--precision=bf16", "--grad_accum_dtype=bf16"), 1, (20, 20, 0)),
        (("--micro_batch_size=3", "--split_grad_accum"), 2, (40, 20, 40)),
        (("--hvd_fp16_compression",), 2, (40, 0, 20)),
    ],
)
def test_gradients_and_their_sums_follow_from_the_flags(args, ranks, expected):
    found = memory.passing_bytes(configured(*GROWN, *args), 10, ranks)
    assert tuple(found[kind] for kind in ("gradients", "accumulation", "communication")) == expected


def test_split_state_is_expected_as_its_share():
    found = memory.expected_bytes(configured(*GROWN, "--split_opt_state"), 5)
    # 47495 divides by 5.
    assert (found["weights"], found["master_weights"], found["moments"]) == (
        WEIGHTS * 4,
        WEIGHTS * 4 / 5,
        WEIGHTS * 8 / 5,
    )


@pytest.mark.parametrize(
    ("peak", "baseline", "passing", "activations"),
    [
        (1000, 100, (40, 50, 60), 1000 - 100 - 600 - 150),
        (800, 100, (40, 50, 10), 0),  # Not all at once: of what was sent, 50 are missing.
        (720, 100, (0, 20, 0), 0),
        (690, 90, (0, 0, 0), 0),  # The state lies in memory that was free before.
    ],
)
def test_kinds_add_up_to_the_peak(peak, baseline, passing, activations):
    state = {"weights": 100, "master_weights": 200, "moments": 300}
    sent = {"gradients": 40, "accumulation": 50, "communication": 60}
    found = memory.breakdown(100, peak, state, sent)
    assert sum(found.values()) == peak
    assert {kind: found[kind] for kind in state} == state
    assert found["baseline"] == baseline
    assert (found["gradients"], found["accumulation"], found["communication"]) == passing
    assert found["activations"] == activations


def test_what_is_measured_has_grown_by_what_is_held():
    before = memory.measure()
    held = b"x" * 300_000_000
    after = memory.measure()
    assert before.now + 250_000_000 < after.now <= after.peak
    del held


@pytest.mark.multirank
def test_the_fullest_rank_is_named_once(ramped_on_two):
    folder, output = ramped_on_two
    assert output.count("memory of rank 1, the fullest of 2") == 1
    assert "memory of rank 0" not in output
    (row,) = [row for line in (folder / "metrics.jsonl").open() if "memory_rank" in (row := json.loads(line))]
    assert (row["step"], row["memory_rank"]) == (2, 1)
    kinds = [value for name, value in row.items() if name.endswith("_bytes") and name != "memory_peak_bytes"]
    assert sum(kinds) == row["memory_peak_bytes"]
    assert row["memory_baseline_bytes"] > 300_000_000
    assert row["memory_moments_bytes"] == 2 * row["memory_weights_bytes"]
    assert f"state bytes per rank: {3 * row['memory_weights_bytes']}" in output
