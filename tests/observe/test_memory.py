"""Memory by kind: exact where it is known, complete in any case, and told once."""

import dataclasses
import json
import math
from types import SimpleNamespace

import pytest

from tests.kit.runs import configured
from tftrain.config.parallel import ParallelConfig
from tftrain.inputs.inputs import Inputs
from tftrain.observe import memory, planned
from tftrain.observe.rows import PlannedRow
from tftrain.parallel.mesh import Mesh
from tftrain.state.checkpoints import Checkpoints
from tftrain.state.new_run import new_run
from tftrain.tasks import make_task

# Two layers of width 32 with 101 words, 512 positions and 2 types: embeddings 615 * 32 and a norm of 64; per layer 4
# projections of 1056, 2 norms of 64, 32 * 128 + 128 and 128 * 32 + 32; pooler 1056; heads 1056 + 64 + 101 and 66.
WEIGHTS = 19680 + 64 + 2 * (4 * 1056 + 2 * 64 + 4224 + 4128) + 1056 + 1221 + 66
GROWN = ("--num_hidden_layers=2", "--global_batch_size=12", "--output_dir=unused")


def plan(config, mesh, samples=12):
    return planned.plan_step(SimpleNamespace(config=config, mesh=mesh, task=SimpleNamespace(sequences=1)), samples)


def planned_memory(config, ranks):
    return plan(config, Mesh(size=ranks)).memory


@pytest.mark.parametrize(
    ("args", "state"),
    [
        ((), (4, 0, 8)),  # The weights are their own masters.
        (("--precision=fp16",), (2, 4, 8)),
    ],
)
def test_state_is_what_its_variables_take_and_what_was_expected(args, state):
    config = configured(*GROWN, *args)
    run = new_run(config, Mesh())
    found = memory.state_bytes(run.task.model.named_variables().values(), run.optimizer.state)
    sizes = dict(zip(memory.STATE, (WEIGHTS * size for size in state), strict=True))
    assert found == sizes
    foreseen = planned_memory(config, 1)
    assert {kind: foreseen[kind] for kind in sizes} == sizes
    assert memory.state_line(run) == f"state bytes per rank: {WEIGHTS * sum(state)}"


SUMS = ("gradients", "accumulation", "communication")
SAVES = ("--max_steps=4", "--checkpoint_every=2")


@pytest.mark.parametrize(
    ("args", "ranks", "kinds", "bytes_of_a_weight"),
    [
        ((), 1, SUMS, (4, 0, 0)),
        (("--micro_batch_size=3",), 1, SUMS, (4, 4, 0)),
        (("--micro_batch_size=3", "--precision=bf16", "--grad_accum_dtype=bf16"), 1, SUMS, (2, 2, 0)),
        (("--micro_batch_size=3", "--split_grad_accum"), 2, SUMS, (4, 2, 4)),
        (("--hvd_fp16_compression",), 2, SUMS, (4, 0, 2)),
        (("--split_opt_state",), 5, memory.STATE, (4, 4 / 5, 8 / 5)),  # 5 divides the number of weights.
        (("--max_steps=4",), 1, ["checkpoint_copy"], [0]),
        (SAVES, 1, ["checkpoint_copy"], [12]),
        (SAVES, 4, ["checkpoint_copy"], [12 / 4]),  # Each rank writes a part of what all have.
        ((*SAVES, "--split_opt_state"), 4, ["checkpoint_copy"], [12 / 4]),
        ((*SAVES, "--nocheckpoint_async"), 1, ["checkpoint_copy"], [0]),
        ((*SAVES, "--memory_checkpoint_steps=1"), 4, ["checkpoint_copy"], [12 * 3 / 4]),
    ],
)
def test_bytes_that_are_expected_follow_from_the_flags(args, ranks, kinds, bytes_of_a_weight):
    found = planned_memory(configured(*GROWN, *args), ranks)
    assert [found[kind] for kind in kinds] == [round(WEIGHTS * size) for size in bytes_of_a_weight]


def test_the_first_updates_of_a_ramp_accumulate_nothing():
    config = configured(*GROWN, "--micro_batch_size=3")
    assert plan(config, Mesh(), samples=3).memory["accumulation"] == 0


def test_the_copy_is_counted_as_large_as_it_is():
    run = new_run(configured(*GROWN, *SAVES), Mesh())
    checkpoints = Checkpoints(run, Inputs.open(run.whole))
    checkpoints.prepare().join()
    counters = sum(variable.dtype.size * variable.shape.num_elements() for variable in run.counters().values())
    assert checkpoints.copy_bytes == planned_memory(run.config, 1)["checkpoint_copy"] + counters


def test_tensor_parallel_ranks_are_expected_to_hold_what_they_hold():
    config = configured(*GROWN)
    config = dataclasses.replace(config, parallel=ParallelConfig(tensor_parallel_size=2))
    held = [make_task(config, Mesh(rank, 2, tensor_parallel_size=2)).model.named_variables() for rank in range(2)]
    weights = [sum(variable.shape.num_elements() for variable in each.values()) for each in held]
    # One rank has 51 of 101 words and the other 50.
    found = plan(config, Mesh(size=2, tensor_parallel_size=2)).memory
    assert (found["weights"], found["moments"]) == (sum(weights) / 2 * 4, sum(weights) / 2 * 8)


@pytest.mark.parametrize("content", [None, "{}"])
def test_without_measurements_the_run_says_how_to_make_them(tmp_path, content):
    path = tmp_path / "machine.json"
    if content:
        path.write_text(content)
    found = plan(configured(*GROWN, f"--machine_file={path}"), Mesh())
    assert found.seconds is None
    assert all(words in found.unknown for words in (f"--machine_file={path}", "python -m tftrain.plan --measure"))


def test_nobody_is_told_of_a_machine_file_that_nobody_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = plan(configured(*GROWN), Mesh())
    assert (found.seconds, found.unknown) == (None, "")
    lines = planned.time_lines(PlannedRow(2, {}, found.seconds, 0.5), found.unknown).splitlines()
    assert [line.split() for line in lines] == [["time", "of", "a", "step", "s"], ["step", "2", "0.500"]]
    # The time of one step alone, which compiles, is not known.
    alone = PlannedRow(1, {}, found.seconds, math.nan)
    assert planned.time_lines(alone, found.unknown).split("\n")[1].split() == ["step", "1", "-"]


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


@pytest.mark.multirank
def test_planned_memory_and_time_stand_beside_the_measured(ramped_on_two):
    folder, output = ramped_on_two
    records = [json.loads(line) for line in (folder / "metrics.jsonl").open()]
    (row,) = [each for each in records if "planned_step_time_s" in each]
    (measured,) = [each for each in records if "memory_rank" in each]
    assert row["planned_weights_bytes"] == measured["memory_weights_bytes"]
    kinds = [value for name, value in row.items() if name.endswith("_bytes") and name != "planned_peak_bytes"]
    assert sum(kinds) == row["planned_peak_bytes"]
    assert f"{measured['memory_peak_bytes'] / 1e9:10.3f}{row['planned_peak_bytes'] / 1e9:10.3f}\n" in output
    # The second update has as many samples as the first, so it was not compiled and counts.
    assert 0 < row["measured_step_time_s"] < 600
    assert f"{row['measured_step_time_s']:10.3f}{row['planned_step_time_s']:10.3f}\n" in output
