"""A state saved under any layout is read exactly under any other one; every rank of each, in one process."""

import dataclasses
import itertools
import os

import numpy as np
import pytest
import tensorflow as tf

from tests.checkpoint import states
from tests.checkpoint.test_scale import Division
from tests.train.test_step import BASE
from tftrain.checkpoint import save
from tftrain.checkpoint.reader import Reader, share
from tftrain.checkpoint.save import Attempt
from tftrain.config.parallel import BatchConfig, ParallelConfig
from tftrain.inputs.inputs import Inputs
from tftrain.optim import state_split
from tftrain.optim.state import OptimizerState
from tftrain.parallel import collectives
from tftrain.parallel.mesh import Mesh
from tftrain.state.checkpoints import Checkpoints
from tftrain.state.new_run import new_run

pytestmark = pytest.mark.slow

ZERO_1, ZERO_2 = {"split_opt_state": True}, {"split_opt_state": True, "split_grad_accum": True}
ZERO_3 = {**ZERO_2, "split_weights": True}
# By name: ranks, precision, and how they divide the work. The vocabulary of 67 divides by nothing.
LAYOUTS = {
    "dp1": (1, "fp32", {}),
    "dp2": (2, "fp32", {}),
    "dp2-zero1-even": (2, "fp32", ZERO_1),
    "dp3-zero1-naive-bf16": (3, "bf16", {**ZERO_1, "state_split_strategy": "naive"}),
    "dp3-zero2-greedy": (3, "fp32", {**ZERO_2, "state_split_strategy": "greedy:2"}),
    "tp2": (2, "fp32", {"tensor_parallel_size": 2}),
    "tp2-dp2-zero1-even": (4, "fp32", {"tensor_parallel_size": 2, **ZERO_1}),
    "dp2-zero3": (2, "fp32", ZERO_3),
    "tp2-dp2-zero3-bf16": (4, "bf16", {"tensor_parallel_size": 2, **ZERO_3}),
    "dp4-zero3-host": (4, "fp32", {"split_group": "host", **ZERO_3}),  # on two hosts
}
SMALL_BUCKETS = 2048


@pytest.fixture(scope="module")
def runs():
    """Every rank of every layout, by its name; without collectives, so weights of sharded states are not published."""
    publish = OptimizerState.publish
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collectives, "broadcast_variables", lambda group, variables: None)
        patch.setattr(OptimizerState, "publish", lambda state: None if state.split else publish(state))
        patch.setattr(state_split, "BUCKET_BYTES", SMALL_BUCKETS)
        yield {name: ranks_of(*layout) for name, layout in LAYOUTS.items()}


def ranks_of(ranks, precision, parallel, **optimizer):
    config = dataclasses.replace(
        BASE,
        model=dataclasses.replace(BASE.model, num_hidden_layers=1, num_attention_heads=4),
        batch=BatchConfig(global_batch_size=12),
        compute=dataclasses.replace(BASE.compute, precision=precision),
        parallel=ParallelConfig(**parallel),
        optimizer=dataclasses.replace(BASE.optimizer, **optimizer),
    ).resolve(ranks)
    size, split = config.parallel.tensor_parallel_size, 2 if config.parallel.split_group == "host" else None
    return [new_run(config, Mesh(rank, ranks, rank, ranks, size, split_size=split)) for rank in range(ranks)]


@pytest.fixture(scope="module")
def whole(runs):
    """A random state."""
    return random_state(*runs["dp1"])


def random_state(run):
    random = np.random.default_rng(0)
    shapes = {name: shape for name, shape in run.tensor_shapes().items() if name not in run.counters()}
    found = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    for name, variable in run.counters().items():
        found[name] = np.asarray(random.integers(0, 99, variable.shape), variable.dtype.as_numpy_dtype)
    return found


@pytest.fixture(scope="module")
def checkpoint(request, runs, whole, tmp_path_factory):
    """That state as the ranks of a layout save it."""
    folder = tmp_path_factory.mktemp("saved")
    source = runs[request.param]
    reference = states.saved(tmp_path_factory.mktemp("reference"), whole)
    for run in source:
        run.load(reference)
    return saved_by(source, folder)


def saved_by(source, folder):
    (folder / "checkpoints").mkdir()
    attempts = [Attempt(folder, 1, 1, rank, len(source)) for rank in range(len(source))]
    for run, attempt in zip(source, attempts, strict=True):
        save.write(attempt, list(run.tensors_to_save()))
    metadata = Checkpoints(source[0], Inputs.open(source[0].whole)).manifest_metadata()
    return save.complete(attempts[0], metadata, states.keep(1), 1, lambda: False)


def pairs():
    """Yields all pairs of a written and a reading layout; in short, each layout is written and read once."""
    names = list(LAYOUTS)
    for source, target in itertools.product(range(len(names)), repeat=2):
        # What a layout writes is compared with the state itself too, by another reader.
        marks = () if (target - source) % len(names) == 3 else pytest.mark.nightly
        yield pytest.param(names[source], names[target], marks=marks)


@pytest.mark.parametrize(("checkpoint", "target"), list(pairs()), indirect=["checkpoint"])
def test_ranks_write_every_element_once_and_those_of_another_layout_read_their_parts(checkpoint, whole, runs, target):
    found = states.stored(checkpoint)
    assert found.keys() == whole.keys()
    for name, value in whole.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    reader = Reader(checkpoint)
    for run in runs[target]:
        wipe(run)
        run.load(reader)
        check(run, whole)


def wipe(run):
    weights = [] if run.shards_weights else run.task.model.named_variables().values()
    stores = [*run.optimizer.state.masters, *itertools.chain(*run.optimizer.state.slots.values())]
    for variable in filter(lambda each: each is not None, (*run.counters().values(), *stores, *weights)):
        variable.assign(tf.zeros_like(variable))


def check(run, whole):
    """Compares every variable with what slicing and splitting of the whole give."""
    named, shards, state = run.task.model.named_variables(), run.task.model.shards, run.optimizer.state
    for name, variable in run.counters().items():
        np.testing.assert_array_equal(variable, whole[name])
    for kind, stores in {"master": state.masters, **state.slots}.items():
        tensors = {name: whole.get(f"{kind}/{name}", np.zeros(shards[name].whole, np.float32)) for name in named}
        parts = {name: shards[name].take(tensor) for name, tensor in tensors.items()}
        expected = list(parts.values())
        if state.split:
            expected = state.split.take(list(map(tf.constant, expected)).__getitem__)
        for store, value in zip(stores, expected, strict=True):
            if store is not None:
                np.testing.assert_array_equal(store, value)
        if kind == "master" and not state.split:
            for name, variable in named.items():
                np.testing.assert_array_equal(variable, tf.cast(parts[name], variable.dtype), err_msg=name)


@pytest.mark.usefixtures("runs")
def test_slots_of_muon_and_averages_are_read_in_any_layout(tmp_path):
    recipe = {"optimizer": "muon", "ema_decay": 0.9}
    source = ranks_of(*LAYOUTS["tp2-dp2-zero1-even"], **recipe)
    (alone,), sharded = (ranks_of(*LAYOUTS[name], **recipe) for name in ("dp1", "dp2-zero3"))
    state = random_state(alone)
    assert {name.partition("/")[0] for name in state} >= {"master", "muon_m", "adam_m", "adam_v", "ema"}
    reference = states.saved(tmp_path, state)
    for run in source:
        run.load(reference)
    (tmp_path / "saved").mkdir()
    reader = Reader(saved_by(source, tmp_path / "saved"))
    for run in (*sharded, alone):
        wipe(run)
        run.load(reader)
        check(run, state)
    owners = [
        item.tensor
        for run in sharded
        for store, muon in zip(run.optimizer.state.slices, run.optimizer.state.slots["muon_m"], strict=True)
        for item in store
        if muon is not None and item.tensor is not None
    ]
    assert len(owners) == len(set(owners)) == 6  # Each kernel of the block has one owner.


@pytest.mark.usefixtures("runs")
def test_an_average_begins_with_the_weights_of_a_checkpoint_without_one_and_may_end(tmp_path):
    (plain,), (averaging,) = (ranks_of(1, "fp32", {}, ema_decay=decay) for decay in (0.0, 0.9))
    state = random_state(plain)
    reader = states.saved(tmp_path, state)
    Checkpoints(averaging, Inputs.open(averaging.whole))._check_tensors(reader)
    averaging.load(reader)
    for name in averaging.task.model.named_variables():
        state[f"ema/{name}"] = state[f"master/{name}"]
    check(averaging, state)
    reader = states.saved(tmp_path, random_state(averaging), step=2)
    Checkpoints(plain, Inputs.open(plain.whole))._check_tensors(reader)
    plain.load(reader)


def test_a_rank_reads_what_it_owns_and_nothing_else(runs):
    for layout in runs.values():
        for run in layout:
            state = run.optimizer.state
            owned = sum(store.shape.num_elements() for store in state.masters)
            padding = sum(item.size for store in state.slices for item in store if item.tensor is None)
            read = sum(piece.size for piece in state.restore_buffers())
            assert read == (1 + len(state.slots)) * (owned - padding)


@pytest.mark.parametrize("layout", ["dp2-zero1-even", "dp3-zero2-greedy", "tp2-dp2-zero1-even"])
def test_a_rank_of_the_layout_that_wrote_a_checkpoint_reads_its_own_files(runs, layout, tmp_path, monkeypatch):
    path, ranks = saved_by(runs[layout], tmp_path), len(runs[layout])
    files, read, preadv = dict(Reader(path).manifest.files), [], os.preadv
    headers = {name: file.bytes - sum(piece.nbytes for piece in file.pieces) for name, file in files.items()}
    tensors = runs[layout][0].config.parallel.tensor_parallel_size
    monkeypatch.setattr(os, "preadv", lambda *args: (read.append(preadv(*args)), read[-1])[1])
    for rank, run in enumerate(runs[layout]):
        read.clear()
        wanted = run.restore_buffers()
        Reader(path).verify(rank, ranks, wanted)
        own = {name for name in files if int(name.split("_")[1]) == rank} | {*share(files, rank, ranks)}
        # The counters are in the first file, and what all tensor parallel ranks hold is in that of their first rank.
        others = sum(piece.nbytes for piece in wanted if piece.replica_id)
        headers_of_others = sum(headers[name] for name in sorted(files)[::tensors])
        assert sum(read) <= sum(files[name].bytes for name in own) + others + headers_of_others


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if "host" not in name])  # It knows no hosts.
def test_the_division_among_many_ranks_is_that_of_a_run(runs, layout):
    division = Division(runs[layout][0].config, len(runs[layout]), SMALL_BUCKETS)
    for rank, run in enumerate(runs[layout]):
        state = run.optimizer.state
        assert [each.piece for each in division.saved(rank)] == list(state.pieces_to_save())
        assert {each.piece for each in division.held(rank)} == set(state.restore_buffers())
        assert division.buckets[rank % division.tensor_ranks] == (state.split and state.split.buckets)


def test_there_are_several_buckets_and_ranks_that_own_nothing(runs):
    assert len(runs["dp2-zero1-even"][0].optimizer.state.split.buckets) > 3
    assert not list(runs["dp3-zero2-greedy"][2].optimizer.state.tensors_to_save())


@pytest.mark.parametrize("layout", ["dp2", "dp2-zero1-even"])
def test_data_parallel_ranks_write_equal_bytes(runs, layout):
    written = [sum(piece.nbytes for piece, _ in run.optimizer.state.tensors_to_save()) for run in runs[layout]]
    # An element is not cut, at either end; nor are the last ones of each bucket and kind, when they divide evenly.
    cuts = 3 * len(runs["dp2-zero1-even"][0].optimizer.state.split.buckets)
    assert max(written) - min(written) <= 4 * cuts
