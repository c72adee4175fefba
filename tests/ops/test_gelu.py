import math

import numpy as np
import pytest
import tensorflow as tf

from tests.ops.comparison import (
    DTYPES,
    FORWARD,
    GRADIENT,
    assert_close,
    assert_not_much_worse,
    exact,
    gradients,
    normal,
    optimized_hlo,
    ways,
)
from tftrain.ops.gelu import FORMS, bias_gelu, reference_bias_gelu

SHAPES = ((0, 8), (1, 1), (3, 7), (2, 5, 1000), (17, 2560))


def specification(x, bias, form):
    z = exact(x) + (0 if bias is None else exact(bias))
    if form == "erf":
        return z * np.vectorize(math.erfc, otypes=[np.float64])(-z * math.sqrt(0.5)) / 2
    minus_2u = -2 * math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)
    return z / (1 + np.exp(np.minimum(minus_2u, 700)))  # no overflow


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_the_specification(shape, dtype, form):
    x, bias = normal(1, shape, dtype, 0, 2), normal(2, shape[-1:], "float32")
    y = bias_gelu(x, bias, form)
    assert y.dtype == x.dtype
    assert_close(y, specification(x, bias, form), FORWARD[dtype])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_reference_is_the_specification(dtype, form):
    x, bias = normal(1, [5, 96], dtype, 0, 2), normal(2, [96], "float32")
    assert_close(reference_bias_gelu(x, bias, form), specification(x, bias, form), FORWARD[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bias_can_be_left_out(dtype):
    x = normal(1, [4, 9, 30], dtype, 0, 2)
    assert_close(bias_gelu(x, None, "erf"), specification(x, None, "erf"), FORWARD[dtype])
    zeros = tf.zeros([30])
    (dx,) = gradients(lambda x: bias_gelu(x, None, "erf"), [x], x)
    np.testing.assert_array_equal(exact(dx), exact(gradients(lambda x: bias_gelu(x, zeros, "erf"), [x], x)[0]))


@pytest.mark.parametrize("bias_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bias_has_a_dtype_of_its_own(dtype, bias_dtype):
    x, bias = normal(1, [6, 40], dtype), normal(2, [40], bias_dtype)
    assert_close(bias_gelu(x, bias, "erf"), specification(x, bias, "erf"), FORWARD[dtype])
    _dx, dbias = gradients(lambda *a: bias_gelu(*a, "erf"), [x, bias], normal(3, [6, 40], dtype))
    assert dbias.dtype == bias.dtype


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)
def test_gradients_are_those_of_the_reference_in_fp64(shape, dtype, form):
    x, dy, bias = normal(1, shape, dtype, 0, 2), normal(2, shape, dtype), normal(3, shape[-1:], "float32")
    wide = [tf.cast(tensor, tf.float64) for tensor in (x, bias)]
    expected = gradients(lambda *a: reference_bias_gelu(*a, form), wide, tf.cast(dy, tf.float64))
    dx, dbias = gradients(lambda *a: bias_gelu(*a, form), [x, bias], dy)
    assert_close(dx, expected[0].numpy(), GRADIENT[dtype], "dx")
    assert_close(dbias, expected[1].numpy(), (0, 5e-6 * np.sqrt(np.prod(shape[:-1]))), "dbias")


@pytest.mark.parametrize("form", FORMS)
def test_the_reference_gradient_is_the_finite_difference(form):
    x, bias, dy = normal(1, [3, 11], "float64"), normal(2, [11], "float64"), normal(3, [3, 11], "float64")
    dx = gradients(lambda x: reference_bias_gelu(x, bias, form), [x], dy)[0].numpy()
    step = 1e-6
    change = specification(x + step, bias, form) - specification(x - step, bias, form)
    np.testing.assert_allclose(dx, change * dy.numpy() / (2 * step), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_it_is_not_worse_than_the_composition(dtype, form):
    x, dy, bias = normal(1, [64, 768], dtype, 0, 2), normal(2, [64, 768], dtype), normal(3, [768], "float32")
    composed = reference_bias_gelu(x, bias, form)
    assert_not_much_worse(bias_gelu(x, bias, form), composed, specification(x, bias, form), dtype, 1.5)

    def dx(function, x, bias, dy):
        return gradients(lambda x: function(x, bias, form), [x], dy)[0]

    expected = dx(reference_bias_gelu, *(tf.cast(tensor, tf.float64) for tensor in (x, bias, dy)))
    assert_not_much_worse(dx(bias_gelu, x, bias, dy), dx(reference_bias_gelu, x, bias, dy), expected.numpy(), dtype, 2)


@pytest.mark.parametrize("form", FORMS)
def test_it_takes_every_fp32_number(form):
    x = tf.constant([0.0, -0.0, 1e-40, -1e-40, 5.5, -5.5, -9.0, -14.0, 1e38, -1e38, math.inf, -math.inf])
    y, slope = bias_gelu(x, None, form), gradients(lambda x: bias_gelu(x, None, form), [x], tf.ones_like(x))[0]
    assert_close(y[:-2], specification(x[:-2], None, form), (2e-5, 1e-38))
    np.testing.assert_array_equal(y[-2:], [math.inf, 0])
    np.testing.assert_array_equal(slope[-4:], [1, 0, 1, 0])
    assert math.isnan(bias_gelu([math.nan], None, form)[0])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_graph_and_xla_give_the_same_as_eager(dtype, form):
    x, dy, bias = normal(1, [3, 5, 72], dtype), normal(2, [3, 5, 72], dtype), normal(3, [72], "float32")

    def everything(x, bias, dy):
        return bias_gelu(x, bias, form), *gradients(lambda *a: bias_gelu(*a, form), [x, bias], dy)

    results = {way: run(x, bias, dy) for way, run in ways(everything).items()}
    for way in ("graph", "xla"):
        for actual, expected in zip(results[way], results["eager"], strict=True):
            np.testing.assert_array_equal(exact(actual), exact(expected), err_msg=way)


def test_the_compiled_program_calls_the_ops():
    x, bias = normal(1, [4, 16], "float32"), normal(2, [16], "float32")

    def everything(x, bias):
        return bias_gelu(x, bias, "erf"), gradients(lambda *a: bias_gelu(*a, "erf"), [x, bias], x)

    hlo = optimized_hlo(everything, x, bias)
    assert 'custom_call_target="TftrainGelu"' in hlo
    assert 'custom_call_target="TftrainGeluGrad"' in hlo


@pytest.mark.parametrize(
    ("shape", "columns", "expected"),
    [
        (tf.TensorShape(None), [None], None),
        (tf.TensorShape(None), [8], None),
        ([None, None], [8], [None, 8]),
        ([3, None, 8], [None], [3, None, 8]),
    ],
)
def test_shapes_are_inferred_from_what_is_known(shape, columns, expected):
    @tf.function(input_signature=[tf.TensorSpec(shape), tf.TensorSpec(columns)])
    def function(x, bias):
        return bias_gelu(x, bias, "erf")

    inferred = function.get_concrete_function().output_shapes
    assert inferred.as_list() == expected if expected else inferred.rank is None
    x, bias = normal(1, [3, 2, 8] if expected is None or len(expected) == 3 else [3, 8], "float32"), tf.ones([8])
    assert_close(function(x, bias), specification(x, bias, "erf"), FORWARD["float32"])


@pytest.mark.parametrize(("name", "x", "bias"), [("x", [], [8]), ("bias", [3, 8], [7]), ("bias", [3, 8], [8, 1])])
def test_a_wrong_shape_is_refused_by_name(name, x, bias):
    x, bias = tf.ones(x), tf.ones(bias)
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"\b{name} has\b"):
        bias_gelu(x, bias, "erf")
    with pytest.raises(ValueError, match=rf"\b{name} has\b"):
        tf.function(lambda: bias_gelu(x, bias, "erf"))()


def test_an_unknown_form_is_refused_by_name():
    with pytest.raises(tf.errors.InvalidArgumentError, match="form is 'sigmoid', expected one of erf, tanh"):
        bias_gelu(tf.ones([2, 3]), None, "sigmoid")
