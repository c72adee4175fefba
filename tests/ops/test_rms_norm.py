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
from tftrain.ops.layer_norm import reference_rms_norm, rms_norm

EPSILON = 1e-5
SHAPES = ((0, 8), (1, 1), (3, 7), (2, 5, 1000), (17, 2560))


def scale(hidden, dtype="float32"):
    return normal(1, [hidden], dtype, 1, 0.3)


def specification(x, gamma):
    x, gamma = exact(x), exact(gamma)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPSILON) * gamma


def fused(x, gamma):
    return rms_norm(x, gamma, EPSILON)


def reference(x, gamma):
    return reference_rms_norm(x, gamma, EPSILON)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_divides_rows_by_their_root_mean_square(shape, dtype):
    x, gamma = normal(3, shape, dtype, 0.5, 2), scale(shape[-1])
    y = fused(x, gamma)
    assert y.dtype == x.dtype
    assert_close(y, specification(x, gamma), FORWARD[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_reference_is_the_specification(dtype):
    x, gamma = normal(3, [5, 96], dtype), scale(96)
    assert_close(reference(x, gamma), specification(x, gamma), FORWARD[dtype])


@pytest.mark.parametrize("scale_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_scale_has_a_dtype_of_its_own(dtype, scale_dtype):
    x, gamma = normal(3, [6, 40], dtype), scale(40, scale_dtype)
    assert_close(fused(x, gamma), specification(x, gamma), FORWARD[dtype])
    assert [made.dtype for made in gradients(fused, [x, gamma], x)] == [x.dtype, gamma.dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients_are_those_of_the_reference_in_fp64(shape, dtype):
    x, dy, gamma = normal(3, shape, dtype, 0.5, 2), normal(4, shape, dtype), scale(shape[-1])
    wide = [tf.cast(tensor, tf.float64) for tensor in (x, gamma)]
    expected = gradients(reference, wide, tf.cast(dy, tf.float64))
    dx, dgamma = gradients(fused, [x, gamma], dy)
    assert_close(dx, expected[0].numpy(), GRADIENT[dtype], "dx")
    assert_close(dgamma, expected[1].numpy(), (0, 5e-6 * np.sqrt(np.prod(shape[:-1]))), "dgamma")


def test_the_reference_gradients_are_the_finite_differences():
    x, gamma, dy = normal(3, [3, 11], "float64"), scale(11, "float64"), normal(4, [3, 11], "float64")
    dx, dgamma = gradients(reference, [x, gamma], dy)
    step = 1e-6
    for place in np.ndindex(3, 11):
        shift = np.zeros([3, 11])
        shift[place] = step
        change = specification(x + shift, gamma) - specification(x - shift, gamma)
        np.testing.assert_allclose(dx.numpy()[place], (change * dy.numpy()).sum() / (2 * step), rtol=1e-6, atol=1e-8)
    change = (specification(x, gamma + step) - specification(x, gamma - step)) * dy.numpy()
    np.testing.assert_allclose(dgamma, change.sum(0) / (2 * step), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_is_not_worse_than_the_composition(dtype):
    x, dy, gamma = normal(3, [64, 768], dtype, 0.5, 2), normal(4, [64, 768], dtype), scale(768)
    assert_not_much_worse(fused(x, gamma), reference(x, gamma), specification(x, gamma), dtype, 1.5)

    def dx(function, x, gamma, dy):
        return gradients(lambda x: function(x, gamma), [x], dy)[0]

    wide = [tf.cast(tensor, tf.float64) for tensor in (x, gamma, dy)]
    expected = dx(reference, *wide).numpy()
    assert_not_much_worse(dx(fused, x, gamma, dy), dx(reference, x, gamma, dy), expected, dtype, 2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_that_are_not_finite_stay_in_their_row_as_in_plain_tensorflow(dtype):
    values = normal(3, [4, 37], "float64").numpy()
    values[1, 3], values[2, 36] = np.inf, np.nan
    x, gamma = tf.cast(values, dtype), scale(37)
    y, expected = exact(fused(x, gamma)), exact(reference(x, gamma))
    np.testing.assert_array_equal(np.isfinite(y), np.isfinite(expected))
    np.testing.assert_array_equal(y[1], expected[1])
    dx, composed = (exact(gradients(function, [x, gamma], x)[0]) for function in (fused, reference))
    np.testing.assert_array_equal(np.isfinite(dx), np.isfinite(composed))


@pytest.mark.parametrize("dtype", DTYPES)
def test_graph_and_xla_give_the_same_as_eager(dtype):
    x, dy, gamma = normal(3, [3, 5, 72], dtype), normal(4, [3, 5, 72], dtype), scale(72)

    def everything(x, gamma, dy):
        return fused(x, gamma), *gradients(fused, [x, gamma], dy)

    results = {way: run(x, gamma, dy) for way, run in ways(everything).items()}
    for way in ("graph", "xla"):
        for actual, expected in zip(results[way], results["eager"], strict=True):
            np.testing.assert_array_equal(exact(actual), exact(expected), err_msg=way)


def test_the_compiled_program_calls_the_ops():
    hlo = optimized_hlo(lambda x, gamma: gradients(fused, [x, gamma], x), normal(3, [4, 16], "float32"), scale(16))
    assert 'custom_call_target="TftrainRmsNorm"' in hlo
    assert 'custom_call_target="TftrainRmsNormGrad"' in hlo


@pytest.mark.parametrize(
    ("shape", "hidden", "expected"),
    [
        (tf.TensorShape(None), [8], None),
        ([None, None], [8], [None, 8]),
        ([None, 8], [None], [None, 8]),
        ([3, None, 8], [8], [3, None, 8]),
    ],
)
def test_shapes_are_inferred_from_what_is_known(shape, hidden, expected):
    function = tf.function(fused, input_signature=[tf.TensorSpec(shape), tf.TensorSpec(hidden)])
    inferred = function.get_concrete_function().output_shapes
    assert inferred.as_list() == expected if expected else inferred.rank is None


BAD = {
    "x": (tf.constant(1.0), [8], EPSILON),
    "gamma": ([3, 8], [7], EPSILON),
    "epsilon": ([3, 8], [8], 0.0),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_by_name(name):
    *tensors, epsilon = BAD[name]
    x, gamma = (tf.ones(tensor) if isinstance(tensor, list) else tensor for tensor in tensors)
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"\b{name} (is|has)\b"):
        rms_norm(x, gamma, epsilon)
    for jit_compile in (False, True):
        with pytest.raises(ValueError, match=rf"\b{name} (is|has)\b"):
            tf.function(lambda: rms_norm(x, gamma, epsilon), jit_compile=jit_compile)()


@pytest.mark.parametrize(("name", "dtype"), [("x", "float64"), ("gamma", "int32")])
def test_a_wrong_dtype_is_refused_by_name(name, dtype):
    tensors = {"x": tf.ones([2, 4]), "gamma": tf.ones([4])}
    tensors[name] = tf.cast(tensors[name], dtype)
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"\b{name} is {dtype}"):
        rms_norm(**tensors, epsilon=EPSILON)
