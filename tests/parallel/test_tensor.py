"""A model divided among ranks is the whole model: places, loss and names in one process, all of it on real ranks."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from tests.checkpoint.states import coverage
from tests.kit.ranks import run_ranks
from tests.model.samples import VOCAB, dropout_key, loss_and_gradients, small_batch, small_config
from tests.parallel import tensor_ranks
from tftrain.architecture import parts
from tftrain.architecture.shard import even_bounds
from tftrain.model.bert import BertPretrainer
from tftrain.model.output_layer import output_cross_entropy
from tftrain.model.parameters import Parameters
from tftrain.optim.state_layout import slice_of
from tftrain.parallel import collectives
from tftrain.parallel.mesh import Group
from tftrain.parallel.tensor import TensorRanks, copy_to_ranks, sum_over_ranks


class Threads:
    """A group whose ranks are threads; its collectives are plain arithmetic, and their names are kept."""

    def __init__(self, ranks: int, monkeypatch):
        self.groups = [Group("tensor", tuple(range(ranks)), rank) for rank in range(ranks)]
        self.names = [[] for _ in self.groups]
        self._sent, self._barrier = [None] * ranks, threading.Barrier(ranks, timeout=60)
        monkeypatch.setattr(collectives, "all_reduce", self._all_reduce)

    def run(self, function) -> list:
        """Returns function(group) of every rank."""
        with ThreadPoolExecutor(len(self.groups)) as pool:
            return list(pool.map(function, self.groups))

    def _all_reduce(self, group, tensor, name, operation="sum"):
        self.names[group.rank].append(name)
        self._sent[group.rank] = tensor
        self._barrier.wait()
        result = {"sum": tf.reduce_sum, "max": tf.reduce_max}[operation](tf.stack(self._sent), axis=0)
        self._barrier.wait()
        return result


@pytest.fixture
def three(monkeypatch):
    return Threads(3, monkeypatch)


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
    ranks = (0, 1, 2)
    found = [Parameters("float32", 1, 0.02, TensorRanks(Group("tensor", ranks, rank))) for rank in ranks]
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


def test_collectives_have_names_of_their_own_that_are_equal_on_all_ranks(three):
    def use(group):
        model = BertPretrainer(small_config(activation="geglu"), "float32", 1, ranks=TensorRanks(group))
        return loss_and_gradients(model, small_batch(), dropout_key())[0]

    losses = three.run(use)
    assert losses[0] == losses[1] == losses[2]
    names = three.names[0]
    assert names == three.names[1] == three.names[2]
    assert len(set(names)) == len(names) == 1 + 3 * 4 + 3  # embedding, blocks, head and loss


def test_more_ranks_than_heads_are_refused():
    with pytest.raises(ValueError, match="--tensor_parallel_size=4: expected at most 3"):
        BertPretrainer(small_config(), "float32", 1, ranks=TensorRanks(Group("tensor", (0, 1, 2, 3))))


@pytest.mark.nightly
@pytest.mark.multirank
@pytest.mark.parametrize("ranks", [2, 4])
def test_loss_and_gradients_on_real_ranks(ranks):
    output = run_ranks(ranks, ["-m", tensor_ranks.__name__])
    assert output.count("the divided model is the whole one") == ranks
