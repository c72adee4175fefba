import numpy as np
import pytest
import tensorflow as tf

from tests.ops.comparison import (
    DTYPES,
    FORWARD,
    GRADIENT,
    assert_close,
    assert_same_in_every_way,
    dropout,
    everything,
    exact,
    normal,
    optimized_hlo,
)
from tftrain.ops.dropout import AxisRange, bias_dropout_add, keep_mask, reference_bias_dropout_add, reference_dropout

SHAPES = ((0, 3, 8), (1, 1), (3, 7), (2, 5, 1000), (4, 16, 64))


def arguments(shape, dtype):
    return normal(1, shape, dtype), normal(2, shape[-1:], "float32"), normal(3, shape, dtype)


def add_to_tokens(part):
    x = tf.ones([2, 3, 4])
    return bias_dropout_add(x, tf.ones([4]), x, dropout()._replace(part=part))


def dropped(function, inputs, dropout, dy):
    return everything(lambda *inputs: function(*inputs, dropout), inputs, dy)


@pytest.mark.parametrize("rate", [None, 0.0, 0.1, 0.5])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_output_and_gradients_are_those_of_the_reference_in_fp64(shape, dtype, rate):
    inputs, dy = arguments(shape, dtype), normal(4, shape, dtype)
    wide = [tf.cast(tensor, tf.float64) for tensor in inputs]
    drop = None if rate is None else dropout(rate)
    expected = dropped(reference_bias_dropout_add, wide, drop, tf.cast(dy, tf.float64))
    y, dx, dbias, dresidual = dropped(bias_dropout_add, list(inputs), drop, dy)
    assert_close(y, expected[0].numpy(), FORWARD[dtype])
    assert_close(dx, expected[1].numpy(), GRADIENT[dtype])
    rows = max(1, int(np.prod(shape[:-1])))
    assert_close(dbias, expected[2].numpy(), (1e-6, 5e-6 * np.sqrt(rows)))
    np.testing.assert_array_equal(exact(dresidual), exact(dy))


@pytest.mark.parametrize("seed", [0, 7, 2**40 + 1, -5])
def test_masks_are_those_of_plain_dropout(seed):
    x, drop = tf.ones([3, 5, 11]), dropout(0.3, seed=seed)
    y = bias_dropout_add(x, tf.zeros([11]), tf.zeros_like(x), drop)
    np.testing.assert_array_equal(y != 0, keep_mask([3, 5, 11], drop))
    reference = reference_bias_dropout_add(x, tf.zeros([11]), tf.zeros_like(x), drop)
    np.testing.assert_array_equal(y != 0, reference != 0)


@pytest.mark.parametrize(("dtype", "rounding"), [("float32", 2.0**-23), ("float16", 2.0**-11), ("bfloat16", 2.0**-8)])
def test_plain_dropout_rounds_once(dtype, rounding):
    """A factor that was rounded to 16 bits itself, 1.109 for 1.111 in bf16, would be off by more; fp32 rounds both."""
    x = normal(1, [4, 3, 40], dtype)
    expected = exact(x) * keep_mask([4, 3, 40], dropout()).numpy() * (65536 / (65536 - 6554))
    np.testing.assert_allclose(exact(reference_dropout(x, dropout())), expected, rtol=1.001 * rounding, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bias_may_be_in_x_already(dtype):
    x, bias, residual = arguments([4, 3, 40], dtype)
    apart = reference_bias_dropout_add(x, bias, residual, dropout())
    within = reference_bias_dropout_add(x + tf.cast(bias, dtype), None, residual, dropout())
    np.testing.assert_array_equal(exact(apart), exact(within))


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("add", [bias_dropout_add, reference_bias_dropout_add])
@pytest.mark.parametrize("shape", [[5, 6, 13], [5, 6, 2, 3]])  # no multiple of the eight draws of a count
def test_masks_do_not_depend_on_which_ranks_have_which_tokens(add, shape, ranks):
    x, bias, residual = arguments(shape, "float32")
    dy, tokens = normal(4, shape, "float32"), shape[1] // ranks
    whole = [each.numpy() for each in dropped(add, [x, bias, residual], dropout(0.3), dy)]
    dbias = 0
    for rank in range(ranks):
        own = slice(rank * tokens, (rank + 1) * tokens)
        drop = dropout(0.3)._replace(part=AxisRange(own.start, shape[1]))
        y, dx, dbias_part, _ = dropped(add, [x[:, own], bias, residual[:, own]], drop, dy[:, own])
        np.testing.assert_array_equal(y, whole[0][:, own])
        np.testing.assert_array_equal(dx, whole[1][:, own])
        dbias += dbias_part.numpy()
    np.testing.assert_allclose(dbias, whole[2], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_graph_and_xla_give_the_same_as_eager(dtype):
    inputs, dy = arguments([3, 4, 40], dtype), normal(4, [3, 4, 40], dtype)

    def run(step, *inputs):
        return dropped(bias_dropout_add, list(inputs), dropout(step=step), dy)

    assert_same_in_every_way(run, tf.constant(5, tf.int64), *inputs)


def test_the_compiled_program_calls_the_ops():
    inputs = arguments([2, 3, 16], "float32")
    hlo = optimized_hlo(lambda *inputs: dropped(bias_dropout_add, list(inputs), dropout(), inputs[2]), *inputs)
    assert 'custom_call_target="TftrainBiasDropoutAdd"' in hlo
    assert 'custom_call_target="TftrainBiasDropoutAddGrad"' in hlo


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("x", lambda: bias_dropout_add(tf.ones([4]), tf.ones([4]), tf.ones([4]), None)),
        ("bias", lambda: bias_dropout_add(tf.ones([2, 4]), tf.ones([5]), tf.ones([2, 4]), None)),
        ("residual", lambda: bias_dropout_add(tf.ones([2, 4]), tf.ones([4]), tf.ones([3, 4]), None)),
        ("residual", lambda: bias_dropout_add(tf.ones([2, 4]), tf.ones([4]), tf.ones([2, 4], "float16"), None)),
        ("rate", lambda: bias_dropout_add(tf.ones([2, 4]), tf.ones([4]), tf.ones([2, 4]), dropout(-0.1))),
        ("site", lambda: bias_dropout_add(tf.ones([2, 4]), tf.ones([4]), tf.ones([2, 4]), dropout(site=65536))),
        ("first_row", lambda: add_to_tokens(AxisRange(2, 4))),
        ("first_row", lambda: add_to_tokens(AxisRange(-1, 4))),
    ],
)
def test_bad_input_is_refused_by_name(name, call):
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"\b{name} (is|has)\b"):
        call()
