"""A model divided among ranks is the whole model: places, loss and names in one process, all of it on real ranks."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from tests.checkpoint.states import coverage
from tests.distributed import run_ranks
from tests.model.samples import VOCAB, dropout_key, loss_and_gradients, small_batch, small_config
from tests.parallel import tensor_ranks
from tftrain.model.bert import BertPretrainer, Outputs
from tftrain.model.embedding import SlicedLogits
from tftrain.model.parameters import Parameters
from tftrain.parallel import collectives
from tftrain.parallel.mesh import Group
from tftrain.parallel.state_layout import even_bounds
from tftrain.parallel.tensor import TensorRanks, copy_to_ranks, sum_over_ranks
from tftrain.tasks.bert_pretraining import LossSums, pretraining_loss_sums


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
    parts, pieces = [], []
    whole = Parameters("float32", 1, 0.02).normal("kernel", [4, 5]).numpy()
    for rank in range(ranks):
        parameters = Parameters("float32", 1, 0.02, TensorRanks(Group("tensor", tuple(range(ranks)), rank)))
        parts.append(parameters.normal("kernel", [4, 5], axis).numpy())
        pieces.append(parameters.pieces["kernel"])
        assert parts[-1].shape == pieces[-1].shape
        assert parameters.offset("kernel") == pieces[-1].offset[axis]
        np.testing.assert_array_equal(pieces[-1].take_block(whole), parts[-1])
        np.testing.assert_array_equal(pieces[-1].take_block(tf.constant(whole)), parts[-1])
    np.testing.assert_array_equal(np.concatenate(parts, axis), whole)
    assert coverage(pieces) is None
    assert {piece.replica_id for piece in pieces} == {0}


def test_a_variable_that_every_rank_has_is_saved_by_the_first():
    ranks = (0, 1, 2)
    found = [Parameters("float32", 1, 0.02, TensorRanks(Group("tensor", ranks, rank))) for rank in ranks]
    for parameters in found:
        parameters.ones("gamma", [4])
    assert [parameters.pieces["gamma"].replica_id for parameters in found] == [0, 1, 2]
    assert not any(parameters.pieces["gamma"].is_divided for parameters in found)


def test_one_rank_computes_as_if_there_were_no_others():
    x = tf.ones([2])
    assert copy_to_ranks(Group(), x, "x") is x
    assert sum_over_ranks(Group(), x, "x") is x
    assert not any(piece.is_divided for piece in BertPretrainer(small_config(), VOCAB, "float32", 1).pieces.values())


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


def test_loss_of_sliced_logits_is_the_loss_of_the_whole(three):
    """With labels on every rank, some right, some not, some that share the best logit with others."""
    random = np.random.default_rng(7)
    batch = small_batch(samples=40)
    logits = random.integers(-3, 4, size=(40, 4, VOCAB)).astype(np.float32)  # many share the best
    best = np.argmax(logits, -1)
    labels = np.where(random.random([40, 4]) < 0.5, best, batch["masked_lm_ids"])
    batch["masked_lm_ids"] = tf.constant(labels, tf.int32)
    nsp_logits, bounds = tf.constant(random.normal(size=(40, 2)), tf.float32), even_bounds(VOCAB, 3)

    def sums_and_gradient(logits, wrap):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            sums = pretraining_loss_sums(Outputs(wrap(logits), nsp_logits), batch)
        return sums, tape.gradient(sums.mlm_sum, logits)

    def divided(group):
        def wrap(local):
            return SlicedLogits(local, bounds[group.rank], group, "masked_lm")

        return sums_and_gradient(tf.constant(logits[:, :, bounds[group.rank] : bounds[group.rank + 1]]), wrap)

    expected, gradient = sums_and_gradient(tf.constant(logits), lambda whole: whole)
    assert 0.4 < expected.mlm_correct / expected.mlm_weight < 0.6
    found = three.run(divided)
    for sums, _ in found:
        for name, ours, reference in zip(LossSums._fields, sums, expected, strict=True):
            np.testing.assert_allclose(ours, reference, rtol=1e-6, err_msg=name)
        assert sums.mlm_correct == expected.mlm_correct
    np.testing.assert_allclose(np.concatenate([part for _, part in found], 2), gradient, rtol=1e-5, atol=1e-7)


def test_collectives_have_names_of_their_own_that_are_equal_on_all_ranks(three):
    def use(group):
        model = BertPretrainer(small_config(activation="geglu"), VOCAB, "float32", 1, ranks=TensorRanks(group))
        return loss_and_gradients(model, small_batch(), dropout_key())[0]

    losses = three.run(use)
    assert losses[0] == losses[1] == losses[2]
    names = three.names[0]
    assert names == three.names[1] == three.names[2]
    assert len(set(names)) == len(names) == 1 + 3 * 4 + 3  # embedding, blocks, head and loss


def test_more_ranks_than_heads_are_refused():
    with pytest.raises(ValueError, match="--tensor_parallel_size=4: expected at most 3"):
        BertPretrainer(small_config(), VOCAB, "float32", 1, ranks=TensorRanks(Group("tensor", (0, 1, 2, 3))))


@pytest.mark.multirank
@pytest.mark.parametrize("ranks", [2, 4])
def test_loss_and_gradients_on_real_ranks(ranks):
    output = run_ranks(ranks, ["-m", tensor_ranks.__name__])
    assert output.count("the divided model is the whole one") == ranks
