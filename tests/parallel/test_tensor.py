"""A model partitioned over ranks is the whole model. Real ranks: `tests/train/test_layouts.py`."""

import numpy as np
import pytest
import tensorflow as tf

from tests.checkpoint.states import coverage
from tests.model.samples import (
    VOCAB,
    dropout_key,
    half_unit,
    loss_and_gradients,
    small_batch,
    small_config,
    small_model,
)
from tests.parallel.simulated_ranks import SimulatedRanks
from tftrain.architecture import parts
from tftrain.architecture.shard import even_bounds
from tftrain.model.bert import BertPretrainer
from tftrain.model.checkpointing import Checkpointing
from tftrain.model.implementations import FLAGS
from tftrain.model.output_layer import output_cross_entropy
from tftrain.model.parameters import Parameters
from tftrain.optim.state_layout import slice_of
from tftrain.parallel.mesh import Group
from tftrain.parallel.tensor import TensorRanks, copy_to_ranks, sum_over_ranks


@pytest.fixture
def three(monkeypatch):
    return SimulatedRanks(3, monkeypatch)


@pytest.mark.parametrize(
    ("size", "ranks", "unit", "bounds"),
    [
        (12, 4, 1, (0, 3, 6, 9, 12)),
        (101, 4, 1, (0, 25, 50, 75, 101)),
        (12, 2, 4, (0, 4, 12)),  # three heads of four elements
        (2, 3, 1, (0, 0, 1, 2)),
    ],
)
def test_bounds_are_even_and_cut_no_unit(size, ranks, unit, bounds):
    assert even_bounds(size, ranks, unit) == list(bounds)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_parts_of_a_whole_variable_join_to_it(ranks, axis):
    values, shards, described = [], [], parts.Variable("kernel", (4, 5), axis)
    whole = Parameters("float32", 1, 0.02).make(described).numpy()
    for rank in range(ranks):
        parameters = Parameters("float32", 1, 0.02, TensorRanks(Group("tensor", tuple(range(ranks)), rank)))
        values.append(parameters.make(described).numpy())
        shards.append(parameters.made["kernel"].shard)
        assert values[-1].shape == shards[-1].shape
        assert parameters.offset("kernel") == shards[-1].offset[axis]
        np.testing.assert_array_equal(shards[-1].take(whole), values[-1])
        np.testing.assert_array_equal(shards[-1].take(tf.constant(whole)), values[-1])
    np.testing.assert_array_equal(np.concatenate(values, axis), whole)
    assert coverage(list(map(slice_of, shards))) is None
    assert {shard.replica for shard in shards} == {0}


def test_a_variable_that_every_rank_has_is_saved_by_the_first():
    found = [Parameters("float32", 1, 0.02, TensorRanks(Group("tensor", (0, 1, 2), rank))) for rank in range(3)]
    for parameters in found:
        parameters.make(parts.Variable("gamma", (4,), initial=1.0))
    shards = [parameters.made["gamma"].shard for parameters in found]
    assert [slice_of(shard).replica_id for shard in shards] == [0, 1, 2]
    assert not any(shard.is_divided for shard in shards)


def test_one_rank_computes_as_if_there_were_no_others():
    x = tf.ones([2])
    assert copy_to_ranks(Group(), x, "x") is x
    assert sum_over_ranks(Group(), x, "x") is x
    assert not any(shard.is_divided for shard in BertPretrainer(small_config(), "float32", 1).shards.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_copy_and_sum_are_each_others_gradient(three, dtype):
    def both(group):
        x = tf.constant([1.0 + group.rank], dtype)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            copied, summed = copy_to_ranks(group, x, "copy") * (group.rank + 1), sum_over_ranks(group, x, "sum") * 5
        return [float(value[0]) for value in (copied, tape.gradient(copied, x), summed, tape.gradient(summed, x))]

    assert three.run(both) == [[1, 6, 30, 5], [4, 6, 30, 5], [9, 6, 30, 5]]


def test_the_sum_of_halves_is_rounded_once(three):
    numbers = tf.constant([1.0, 2**-8, 2**-8], tf.bfloat16)  # 1 + 2^-8 is not a bfloat16, 1 + 2^-7 is
    sums = three.run(lambda group: float(sum_over_ranks(group, numbers[group.rank], "sum")))
    assert sums == [1 + 2**-7] * 3


@pytest.mark.parametrize("rows", [None, 7])
def test_cross_entropy_over_ranks_is_that_of_the_whole(three, rows):
    """With labels on every rank, some right, some not, some that share the best logit with others."""
    random, bounds = np.random.default_rng(7), even_bounds(VOCAB, 3)
    x, table, bias = (random.integers(-1, 2, size).astype(np.float64) for size in ((160, 3), (VOCAB, 3), VOCAB))
    best = np.argmax(x @ table.T + bias, -1)
    labels = tf.constant(np.where(random.random(160) < 0.5, best, random.integers(VOCAB, size=160)), tf.int32)

    def compare(group, first, end):
        own = [tf.constant(x), tf.constant(table[first:end]), tf.constant(bias[first:end])]
        with tf.GradientTape() as tape:
            tape.watch(own)
            found = output_cross_entropy(*own[:2], labels, first, group, "masked_lm", rows, own[2])
            loss = tf.reduce_sum(found[0] * tf.constant(x[:, 0]))
        return *found, *tape.gradient(loss, own)

    expected = compare(Group(), 0, VOCAB)
    assert 0.4 < np.mean(expected[1]) < 0.6
    found = three.run(lambda group: compare(group, *bounds[group.rank : group.rank + 2]))
    for entropy, correct, *_ in found:
        np.testing.assert_allclose(entropy, expected[0], rtol=1e-12)
        np.testing.assert_array_equal(correct, expected[1])
    _, _, dx, dtable, dbias = zip(*found, strict=True)
    joined = sum(dx), np.concatenate(dtable), np.concatenate(dbias)
    for ours, reference in zip(joined, expected[2:], strict=True):
        np.testing.assert_allclose(ours, reference, rtol=1e-11, atol=1e-12)


FUSED = dict.fromkeys(FLAGS, "fused")
PRE = {"activation": "geglu", "norm_position": "pre", "gelu_form": "erf"}
WIDE = {"hidden_size": 2560, "num_attention_heads": 40, "intermediate_size": 1280, "initializer_range": 0.02}


@pytest.mark.parametrize(
    ("ranks", "dtype", "checkpointing", "changes"),
    [
        (2, "float32", "none", {}),
        (4, "float32", "full", {**FUSED, "num_hidden_layers": 2}),
        (2, "float32", "selective", {**PRE, "use_bias_in_keys": True}),
        (2, "bfloat16", "full", PRE),
        (2, "float16", "none", FUSED),
        pytest.param(2, "float32", "none", {**FUSED, **PRE}, marks=pytest.mark.nightly),
        pytest.param(2, "bfloat16", "none", FUSED, marks=pytest.mark.nightly),
        pytest.param(2, "float32", "none", WIDE, marks=pytest.mark.nightly),
    ],
)
def test_loss_and_gradients_are_those_of_the_whole_model(ranks, dtype, checkpointing, changes, monkeypatch):
    """With names of the collectives that are unique and equal on all ranks, and equal bits where ranks hold the same.

    In 16 bits, both are compared with the whole model in fp32, from the same rounded weights. About 50 results are
    rounded forward, and as many backward, see `tests.model.test_precision`.
    """
    sizes = {"num_hidden_layers": 1, "hidden_size": 24, "num_attention_heads": 4, "intermediate_size": 36}
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    config = small_config(**{**sizes, **dropout, "use_bias_in_keys": False, **changes})
    weights, whole = small_model(config, dtype).named_variables(), small_model(config)
    for name, variable in whole.named_variables().items():
        variable.assign(tf.cast(weights[name], tf.float32))
    batch, group = small_batch(samples=6), SimulatedRanks(ranks, monkeypatch)

    def contribution(group):
        model = BertPretrainer(config, dtype, 1, Checkpointing(checkpointing), TensorRanks(group))
        for name, variable in model.named_variables().items():
            variable.assign(model.shards[name].take(tf.convert_to_tensor(weights[name])))
        return model.shards, *loss_and_gradients(model, batch, dropout_key(), scale=64.0)

    def distance(actual, expected):
        difference, expected = np.asarray(actual, np.float64) - expected, np.asarray(expected, np.float64)
        if dtype == "float32":
            return np.abs(difference).max() / (1e-5 * np.abs(expected).max())
        return np.linalg.norm(difference) / (100 * half_unit(dtype) * np.linalg.norm(expected))

    loss, gradients = loss_and_gradients(whole, batch, dropout_key())
    found = group.run(contribution)
    for shards, rank_loss, rank_gradients in found:
        assert distance(rank_loss, loss) <= 1
        assert rank_gradients.keys() == gradients.keys()
        for name, gradient in rank_gradients.items():
            if not name.endswith("key/bias"):  # 0 but for rounding
                assert distance(gradient, shards[name].take(gradients[name])) <= 1, name
            if not shards[name].is_divided:
                np.testing.assert_array_equal(gradient, found[0][2][name])
    names = group.names[0]
    assert all(each == names for each in group.names)
    # Embedding and loss, blocks; recomputation repeats those of a block.
    layers = config.num_hidden_layers
    assert len(set(names)) == 1 + 4 * layers + 3
    assert checkpointing == "full" or len(names) == len(set(names))
