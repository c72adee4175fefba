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
from tftrain.ops.gelu import reference_swiglu, swiglu

SHAPES = ((0, 8), (1, 1), (3, 7), (2, 5, 1000), (17, 2560))


def inputs(shape, dtype, bias_dtype="float32"):
    gate, up = normal(1, shape, dtype, 0, 2), normal(2, shape, dtype)
    return gate, up, normal(3, shape[-1:], bias_dtype), normal(4, shape[-1:], bias_dtype)


def specification(gate, up, gate_bias=0.0, up_bias=0.0):
    z = exact(gate) + exact(gate_bias)
    return z / (1 + np.exp(-z)) * (exact(up) + exact(up_bias))


@pytest.mark.parametrize("inputs_of_op", [2, 4])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_the_specification_without_and_with_biases(shape, dtype, inputs_of_op):
    arguments = inputs(shape, dtype)[:inputs_of_op]
    y = swiglu(*arguments)
    assert y.dtype == arguments[0].dtype
    assert_close(y, specification(*arguments), FORWARD[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_reference_is_the_specification(dtype):
    arguments = inputs([5, 96], dtype)
    assert_close(reference_swiglu(*arguments), specification(*arguments), FORWARD[dtype])
    assert_close(reference_swiglu(*arguments[:2]), specification(*arguments[:2]), FORWARD[dtype])


@pytest.mark.parametrize("bias_dtype", DTYPES)
def test_the_biases_have_a_dtype_of_their_own(bias_dtype):
    arguments = inputs([6, 40], "bfloat16", bias_dtype)
    assert_close(swiglu(*arguments), specification(*arguments), FORWARD["bfloat16"])
    made = gradients(swiglu, list(arguments), arguments[0])
    assert [tensor.dtype for tensor in made] == [tensor.dtype for tensor in arguments]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients_are_those_of_the_reference_in_fp64(shape, dtype):
    arguments, dy = inputs(shape, dtype), normal(5, shape, dtype)
    wide = [tf.cast(tensor, tf.float64) for tensor in arguments]
    expected = gradients(reference_swiglu, wide, tf.cast(dy, tf.float64))
    actual = gradients(swiglu, list(arguments), dy)
    tolerance = (0, 5e-6 * np.sqrt(np.prod(shape[:-1])))
    for name, made, wanted, allowed in zip(
        ("dgate", "dup", "dgate_bias", "dup_bias"), actual, expected, [GRADIENT[dtype]] * 2 + [tolerance] * 2,
        strict=True,
    ):  # fmt: skip
        assert_close(made, wanted.numpy(), allowed, name)


def test_the_reference_gradients_are_the_finite_differences():
    gate, up, *biases = inputs([3, 11], "float64", "float64")
    dy = normal(5, [3, 11], "float64")
    made = gradients(lambda *a: reference_swiglu(*a, *biases), [gate, up], dy)
    step = 1e-6
    for actual, (on_gate, on_up) in zip(made, ((step, 0), (0, step)), strict=True):
        change = specification(gate + on_gate, up + on_up, *biases) - specification(gate - on_gate, up - on_up, *biases)
        np.testing.assert_allclose(actual, change * dy.numpy() / (2 * step), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_is_not_worse_than_the_composition(dtype):
    (gate, up, *_), dy = inputs([64, 768], dtype), normal(5, [64, 768], dtype)
    assert_not_much_worse(swiglu(gate, up), reference_swiglu(gate, up), specification(gate, up), dtype, 1.5)
    wide = [tf.cast(tensor, tf.float64) for tensor in (gate, up, dy)]
    results = [gradients(function, [gate, up], dy) for function in (swiglu, reference_swiglu)]
    for fused, plain, expected in zip(*results, gradients(reference_swiglu, wide[:2], wide[2]), strict=True):
        assert_not_much_worse(fused, plain, expected.numpy(), dtype, 2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_that_are_not_finite_stay_in_their_place(dtype):
    gate = tf.constant([np.inf, -np.inf, np.nan, 1, 1, 1], dtype)
    up = tf.constant([1, 1, 1, np.inf, np.nan, 2], dtype)
    y = exact(swiglu(gate, up))
    assert (y[0], y[3]) == (np.inf, np.inf)
    assert abs(y[1]) < 1e-30  # the limit, where plain TensorFlow multiplies infinity by 0
    np.testing.assert_array_equal(np.isnan(y), [False, False, True, False, True, False])
    dgate, dup = (exact(made) for made in gradients(swiglu, [gate, up], tf.ones([6], dtype)))
    np.testing.assert_array_equal(np.isfinite(dgate), [True, True, False, False, False, True])
    np.testing.assert_array_equal(np.isfinite(dup), [False, True, False, True, True, True])


@pytest.mark.parametrize("dtype", DTYPES)
def test_graph_and_xla_give_the_same_as_eager(dtype):
    arguments, dy = inputs([3, 5, 72], dtype), normal(5, [3, 5, 72], dtype)

    def everything(dy, *arguments):
        return swiglu(*arguments), *gradients(swiglu, list(arguments), dy)

    results = {way: run(dy, *arguments) for way, run in ways(everything).items()}
    for way in ("graph", "xla"):
        for actual, expected in zip(results[way], results["eager"], strict=True):
            np.testing.assert_array_equal(exact(actual), exact(expected), err_msg=way)


def test_the_compiled_program_calls_the_ops():
    gate, up, *_ = inputs([4, 16], "float32")
    hlo = optimized_hlo(lambda gate, up: (swiglu(gate, up), gradients(swiglu, [gate, up], gate)), gate, up)
    assert 'custom_call_target="TftrainSwiglu"' in hlo
    assert 'custom_call_target="TftrainSwigluGrad"' in hlo


@pytest.mark.parametrize(
    ("name", "shapes"),
    [("gate", ([], [], [8], [8])), ("up", ([3, 8], [4, 8], [8], [8])), ("up_bias", ([3, 8], [3, 8], [8], [8, 1]))],
)
def test_a_wrong_shape_is_refused_by_name(name, shapes):
    arguments = [tf.ones(shape) for shape in shapes]
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"\b{name} has\b"):
        swiglu(*arguments)
    with pytest.raises(ValueError, match=rf"\b{name} has\b"):
        tf.function(lambda: swiglu(*arguments))()


def test_a_wrong_dtype_and_one_bias_alone_are_refused_by_name():
    x = tf.ones([2, 4])
    with pytest.raises(tf.errors.InvalidArgumentError, match="up is bfloat16, expected float32"):
        swiglu(x, tf.cast(x, tf.bfloat16))
    with pytest.raises(tf.errors.InvalidArgumentError, match="up_bias is None and gate_bias is not"):
        swiglu(x, x, tf.ones([4]))
