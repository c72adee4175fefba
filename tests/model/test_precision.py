"""Half precision stays within its rounding of float32, and XLA within that of graph mode.

Gradients in half precision: `tests/parallel/test_tensor.py`.
"""

import numpy as np
import pytest
import tensorflow as tf

from tests.model.samples import (
    assert_close,
    dropout_key,
    half_unit,
    loss_and_gradients,
    outputs,
    small_batch,
    small_config,
    small_model,
)
from tftrain.model.embedding import lookup
from tftrain.ops.layer_norm import reference_layer_norm as layer_norm

pytestmark = pytest.mark.slow

DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
# A token passes the embedding (3 sums, norm, dropout), 3 blocks of 2 sub-layers (2 to 4 products, residual sum, norm,
# dropout) and a head of 4: about 50 results rounded to half precision, each by half a unit in the last place.
ROUNDINGS = 50


@pytest.mark.parametrize(
    ("dtype", "norm_position"),
    [
        *(("bfloat16", "pre"), ("float16", "post")),
        *(pytest.param(*each, marks=pytest.mark.nightly) for each in (("bfloat16", "post"), ("float16", "pre"))),
    ],
)
def test_half_precision_outputs_stay_near_float32(dtype, norm_position):
    config = small_config(num_hidden_layers=3, norm_position=norm_position, **DROPOUT)
    half, full = small_model(config, dtype), small_model(config)
    for name, variable in full.named_variables().items():  # the very same, rounded, weights
        variable.assign(tf.cast(half.named_variables()[name], tf.float32))
    batch, key = small_batch(), dropout_key()
    actual, expected = (outputs(model, batch, key) for model in (half, full))
    for ours, reference in zip(actual, expected, strict=True):
        assert ours.dtype == tf.float32
        assert_close(ours, reference, rtol=0, dtype=dtype, roundings=ROUNDINGS)


# `test_step` compares XLA and graph mode in float32.
@pytest.mark.parametrize(
    "dtype", ["float16", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("float32", "bfloat16"))]
)
def test_xla_agrees_with_graph_mode_with_dropout_on(dtype):
    model, batch, key = small_model(small_config(num_hidden_layers=1, **DROPOUT), dtype), small_batch(), dropout_key()

    def step(step, first_sample):
        return loss_and_gradients(model, batch, key._replace(step=step, first_sample=first_sample))

    loss, gradients = tf.function(step, autograph=False)(key.step, key.first_sample)
    jit_loss, jit_gradients = tf.function(step, jit_compile=True, autograph=False)(key.step, key.first_sample)
    assert_close(jit_loss, loss, rtol=0, dtype=dtype, roundings=ROUNDINGS)
    for name, expected in gradients.items():  # As whole tensors: forward and backward round.
        size = np.linalg.norm(gradients[name.replace("key/bias", "key/kernel")])  # The bias's is 0 but for rounding.
        assert np.linalg.norm(jit_gradients[name] - expected) <= 2 * ROUNDINGS * half_unit(dtype) * size, name


def test_norm_statistics_survive_values_whose_squares_overflow_half_precision():
    row = tf.constant([[1000.0, -3000.0, 500.0, 1500.0]])
    ones, zeros = tf.ones([4]), tf.zeros([4])
    half = layer_norm(tf.cast(row, tf.float16), tf.cast(ones, tf.float16), tf.cast(zeros, tf.float16), 1e-12)
    assert_close(half, layer_norm(row, ones, zeros, 1e-12), rtol=0, dtype="float16", roundings=1)


def test_gradients_of_a_frequent_word_add_up_in_bfloat16():
    table = tf.zeros([3, 2], tf.bfloat16)
    with tf.GradientTape() as tape:
        tape.watch(table)
        total = tf.reduce_sum(lookup(table, tf.fill([1000], 1)))
    np.testing.assert_array_equal(tape.gradient(total, table), [[0, 0], [1000, 1000], [0, 0]])
