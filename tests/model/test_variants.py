"""Every kind of encoder block against float64 NumPy, and its gradients against finite differences."""

import numpy as np
import pytest
import tensorflow as tf

from tests.model.numpy_oracle import Oracle
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
    ("post", "gelu", "tanh", False),
    ("post", "geglu", "erf", True),
    ("pre", "gelu", "erf", False),
    ("pre", "geglu", "tanh", True),
]


@pytest.fixture(scope="module", params=VARIANTS, ids=str)
def variant(request):
    names = ("norm_position", "activation", "gelu_form", "use_bias_in_keys")
    config = small_config(**dict(zip(names, request.param, strict=True)))
    batch = small_batch(samples=3, length=11, predictions=3)
    batch["input_mask"] *= tf.constant([[1], [1], [0]])  # the last sample has no token
    return config, small_model(config, "float64"), batch


def test_outputs_and_sums_of_the_masked_words_equal_numpy(variant):
    config, model, batch = variant
    arrays = {name: value.numpy() for name, value in batch.items()}
    expected = Oracle(config, {name: value.numpy() for name, value in model.named_variables().items()}).encoder(arrays)
    for found, reference in zip(outputs(model, batch), expected, strict=True):
        np.testing.assert_allclose(found, reference, rtol=1e-10, atol=1e-10)
    logits, labels, weights = expected[0], arrays["masked_lm_ids"], arrays["masked_lm_weights"]
    entropy = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, labels[..., None], -1)[..., 0]
    sums = loss_sums(model, batch)
    np.testing.assert_allclose(sums.mlm_sum, (entropy * weights).sum(), rtol=1e-10)
    assert sums.mlm_correct == ((logits.argmax(-1) == labels) * weights).sum()


def test_gradients_equal_finite_differences(variant):
    """Along a random direction of each variable: central differences are exact to the step squared."""
    _, model, batch = variant
    loss = tf.function(lambda: mean_loss(loss_sums(model, batch)), autograph=False)
    _, gradients = loss_and_gradients(model, batch)
    random, step = np.random.default_rng(4), 1e-5
    for name, variable in model.named_variables().items():
        start, direction = variable.numpy(), random.normal(size=variable.shape)
        above, below = ([variable.assign(start + sign * step * direction), loss()][1] for sign in (1, -1))
        variable.assign(start)
        slope = float(above - below) / (2 * step)
        assert np.vdot(gradients[name], direction) == pytest.approx(slope, rel=1e-5, abs=1e-8), name
