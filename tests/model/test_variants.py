"""Every kind of block against float64 NumPy, and its gradients against finite differences."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.model.numpy_oracle import forward
from tests.model.samples import (
    loss_and_gradients,
    loss_sums,
    mean_loss,
    outputs,
    small_batch,
    small_config,
    small_model,
)

pytestmark = pytest.mark.slow

VARIANTS = [
    {"norm_position": norm, "activation": activation, "gelu_form": form, "use_bias_in_keys": bias}
    for (norm, activation), (form, bias) in zip(
        itertools.product(["post", "pre"], ["gelu", "geglu"]),
        [("tanh", False), ("erf", True), ("erf", False), ("tanh", True)],
        strict=True,
    )
]


@pytest.fixture(scope="module", params=VARIANTS, ids=lambda variant: "-".join(map(str, variant.values())))
def variant(request):
    config = small_config(**request.param)
    batch = small_batch(samples=3, length=11, predictions=3)
    batch["input_mask"] *= tf.constant([[1], [1], [0]])  # the last sample has no token
    return config, small_model(config, "float64"), batch


def test_outputs_equal_numpy(variant):
    config, model, batch = variant
    weights = {name: value.numpy() for name, value in model.named_variables().items()}
    mlm_logits, nsp_logits = forward(config, weights, {name: value.numpy() for name, value in batch.items()})
    found = outputs(model, batch)
    np.testing.assert_allclose(found.mlm_logits, mlm_logits, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found.nsp_logits, nsp_logits, rtol=1e-10, atol=1e-10)


def test_sums_of_the_masked_words_equal_numpy(variant):
    _, model, batch = variant
    names = ("masked_lm_ids", "masked_lm_weights")
    logits, labels, weights = (each.numpy() for each in (outputs(model, batch).mlm_logits, *map(batch.get, names)))
    entropy = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, labels[..., None], -1)[..., 0]
    sums = loss_sums(model, batch)
    np.testing.assert_allclose(sums.mlm_sum, (entropy * weights).sum(), rtol=1e-10)
    assert sums.mlm_correct == ((logits.argmax(-1) == labels) * weights).sum()


def test_gradients_equal_finite_differences(variant):
    """Along a random direction of each variable: central differences are exact to the step squared."""
    _, model, batch = variant
    loss = tf.function(lambda: mean_loss(loss_sums(model, batch)))
    _, gradients = loss_and_gradients(model, batch)
    random, step = np.random.default_rng(4), 1e-5
    for name, variable in model.named_variables().items():
        start, direction = variable.numpy(), random.normal(size=variable.shape)
        above, below = ([variable.assign(start + sign * step * direction), loss()][1] for sign in (1, -1))
        variable.assign(start)
        slope = float(above - below) / (2 * step)
        assert np.vdot(gradients[name], direction) == pytest.approx(slope, rel=1e-5, abs=1e-8), name


def test_key_bias_changes_nothing_but_the_variables():
    with_bias, without = (small_model(small_config(use_bias_in_keys=use), "float64") for use in (True, False))
    names = set(with_bias.named_variables()) - set(without.named_variables())
    assert names == {f"layer_{layer:02d}/attention/key/bias" for layer in range(3)}
    for name, variable in without.named_variables().items():
        variable.assign(with_bias.named_variables()[name])
    batch = small_batch()
    found, expected = (outputs(model, batch).mlm_logits for model in (with_bias, without))
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
