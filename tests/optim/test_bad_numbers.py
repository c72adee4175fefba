"""A loss or gradient that is not finite is skipped, and named, whole or divided."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.optim.test_optimizer import CONFIG, SHAPES, assert_bits_equal, gradient_steps, make, updated, whole
from tftrain.optim.loss_scale import DynamicLossScale
from tftrain.parallel.mesh import Mesh

pytestmark = pytest.mark.slow

NAMES = list(SHAPES)
POISONS = (
    (["embeddings/word"], [np.nan]),
    (["single/bias"], [np.inf]),
    (["prime_matrix/kernel"], [-np.inf]),
    # Backward comes to the later one first.
    (["embeddings/norm/beta", "prime/kernel", "single/kernel"], [np.nan, np.inf, np.inf]),
)


def poisoned(names, values):
    """Returns one step's gradients, with a value that is not finite in some place of each named one."""
    (gradients,) = gradient_steps(1)
    random = np.random.default_rng(len(names))
    for name, value in zip(names, values, strict=True):
        gradients[name].flat[random.integers(gradients[name].size)] = value
    return gradients


@pytest.mark.parametrize(
    ("rule", "split"),
    [
        *(("reference_lamb", None), ("fused_adamw", None), ("reference_lamb", "even"), ("fused_lamb", "greedy:1")),
        *(("lion", "even"), ("stableadamw", "even"), ("muon", "even")),
    ],
)
def test_the_gradient_that_backward_came_to_first_is_named(rule, split):
    optimizer, _ = make(dataclasses.replace(CONFIG, optimizer=rule), mesh=Mesh(), split_strategy=split)
    before = whole(optimizer)
    infos = updated(optimizer, [poisoned(*each) for each in POISONS])
    for (names, _), info in zip(POISONS, infos, strict=True):
        assert (bool(info.skipped), bool(info.is_nan)) == (True, True), names
        last = max(names, key=NAMES.index)
        assert optimizer.culprit_name(int(info.culprit)) == f"the gradient of {last}"
        assert_bits_equal(whole(optimizer), before)


@pytest.mark.parametrize("how", ["eager", "graph", "xla"])
def test_a_loss_that_is_not_finite_skips_the_update_whatever_the_gradients(how):
    optimizer, _ = make()
    (gradients,) = gradient_steps(1)

    @tf.function(autograph=False, jit_compile=how == "xla")
    def step(losses):
        return optimizer.apply([tf.constant(value) for value in gradients.values()], losses=losses)

    tf.config.run_functions_eagerly(how == "eager")
    try:
        bad, good = step(tf.constant([1.0, np.inf])), step(tf.constant([1.0, 2.0]))
    finally:
        tf.config.run_functions_eagerly(False)
    assert (bool(bad.skipped), bool(bad.is_nan), np.isfinite(bad.grad_norm)) == (True, True, True)
    assert optimizer.culprit_name(int(bad.culprit)) == "the loss"
    assert (bool(good.skipped), bool(good.is_nan), int(good.culprit)) == (False, False, -1)
    assert int(optimizer.step) == 1


def test_only_at_the_smallest_loss_scale_is_a_bad_gradient_a_bad_number():
    optimizer, _ = make()
    scale = DynamicLossScale(initial=4.0, smallest=1.0)
    infos = list(updated(optimizer, [poisoned(["single/kernel"], [np.inf])] * 4, loss_scale=scale))
    assert [float(info.loss_scale) for info in infos] == [4, 2, 1, 1]
    assert [bool(info.skipped) for info in infos] == [True] * 4
    assert [bool(info.is_nan) for info in infos] == [False, False, True, True]


def test_a_norm_that_overflows_although_each_gradient_is_finite_says_so():
    optimizer, _ = make(weights={"a/kernel": np.ones(2, np.float32), "b/kernel": np.ones(2, np.float32)})
    info = optimizer.apply([tf.constant([1.5e19, 0]), tf.constant([0, 1.5e19])])
    assert bool(info.skipped)
    assert optimizer.culprit_name(int(info.culprit)) == "the norm of all gradients together"
