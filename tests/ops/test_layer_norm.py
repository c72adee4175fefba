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
from tftrain.ops.layer_norm import layer_norm, reference_layer_norm

EPSILON = 1e-5
SHAPES = ((0, 8), (1, 1), (3, 7), (2, 5, 1000), (17, 2560))


def parameters(hidden, dtype="float32"):
    return normal(1, [hidden], dtype, 1, 0.3), normal(2, [hidden], dtype)


def specification(x, gamma, beta):
    x, gamma, beta = exact(x), exact(gamma), exact(beta)
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON) * gamma + beta


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_normalizes_rows(shape, dtype):
    x = normal(3, shape, dtype, 0.5, 2)
    gamma, beta = parameters(shape[-1])
    y = layer_norm(x, gamma, beta, EPSILON)
    assert y.dtype == x.dtype
    assert_close(y, specification(x, gamma, beta), FORWARD[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_reference_is_the_specification(dtype):
    x = normal(3, [5, 96], dtype)
    gamma, beta = parameters(96)
    assert_close(reference_layer_norm(x, gamma, beta, EPSILON), specification(x, gamma, beta), FORWARD[dtype])


@pytest.mark.parametrize("parameter_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_parameters_have_a_dtype_of_their_own(dtype, parameter_dtype):
    x = normal(3, [6, 40], dtype)
    gamma, beta = parameters(40, parameter_dtype)
    assert_close(layer_norm(x, gamma, beta, EPSILON), specification(x, gamma, beta), FORWARD[dtype])
    _dx, dgamma, dbeta = gradients(lambda *a: layer_norm(*a, EPSILON), [x, gamma, beta], normal(5, [6, 40], dtype))
    assert dgamma.dtype == dbeta.dtype == gamma.dtype


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)
def test_gradients_are_those_of_the_reference_in_fp64(shape, dtype):
    x, dy = normal(3, shape, dtype, 0.5, 2), normal(4, shape, dtype)
    gamma, beta = parameters(shape[-1])
    wide = [tf.cast(tensor, tf.float64) for tensor in (x, gamma, beta)]
    expected = gradients(lambda *a: reference_layer_norm(*a, EPSILON), wide, tf.cast(dy, tf.float64))
    dx, dgamma, dbeta = gradients(lambda *a: layer_norm(*a, EPSILON), [x, gamma, beta], dy)
    rows = int(np.prod(shape[:-1]))
    assert_close(dx, expected[0].numpy(), GRADIENT[dtype], "dx")
    for actual, wanted in ((dgamma, expected[1]), (dbeta, expected[2])):
        assert_close(actual, wanted.numpy(), (0, 5e-6 * np.sqrt(rows)))


def test_the_reference_gradient_is_the_finite_difference():
    x, dy = normal(3, [3, 11], "float64"), normal(4, [3, 11], "float64").numpy()
    gamma, beta = parameters(11, "float64")
    dx = gradients(lambda x: reference_layer_norm(x, gamma, beta, EPSILON), [x], tf.constant(dy))[0].numpy()
    step = 1e-6
    for place in np.ndindex(3, 11):
        shift = np.zeros([3, 11])
        shift[place] = step
        change = specification(x + shift, gamma, beta) - specification(x - shift, gamma, beta)
        np.testing.assert_allclose(dx[place], (change * dy).sum() / (2 * step), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_is_not_worse_than_the_composition(dtype):
    x, dy = normal(3, [64, 768], dtype, 0.5, 2), normal(4, [64, 768], dtype)
    gamma, beta = parameters(768)
    expected = specification(x, gamma, beta)
    composed = reference_layer_norm(x, gamma, beta, EPSILON)
    assert_not_much_worse(layer_norm(x, gamma, beta, EPSILON), composed, expected, dtype, 1.5)

    def dx(function, x, gamma, beta, dy):
        return gradients(lambda x: function(x, gamma, beta, EPSILON), [x], dy)[0]

    wide = [tf.cast(tensor, tf.float64) for tensor in (x, gamma, beta, dy)]
    assert_not_much_worse(
        dx(layer_norm, x, gamma, beta, dy), dx(reference_layer_norm, x, gamma, beta, dy),
        dx(reference_layer_norm, *wide).numpy(), dtype, 2,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_graph_and_xla_give_the_same_as_eager(dtype):
    x, dy = normal(3, [3, 5, 72], dtype), normal(4, [3, 5, 72], dtype)
    gamma, beta = parameters(72)

    def everything(x, gamma, beta, dy):
        with tf.GradientTape() as tape:
            tape.watch([x, gamma, beta])
            y = layer_norm(x, gamma, beta, EPSILON)
        return y, *tape.gradient(y, [x, gamma, beta], output_gradients=dy)

    results = {way: run(x, gamma, beta, dy) for way, run in ways(everything).items()}
    for way in ("graph", "xla"):
        for actual, expected in zip(results[way], results["eager"], strict=True):
            np.testing.assert_array_equal(exact(actual), exact(expected), err_msg=way)


def test_the_compiled_program_calls_the_ops():
    x = normal(3, [4, 16], "float32")
    gamma, beta = parameters(16)
    hlo = optimized_hlo(lambda x: gradients(lambda x: layer_norm(x, gamma, beta, EPSILON), [x], x), x)
    assert 'custom_call_target="TftrainLayerNorm"' in hlo
    assert 'custom_call_target="TftrainLayerNormGrad"' in hlo


@pytest.mark.parametrize(
    ("shape", "hidden", "expected"),
    [
        (tf.TensorShape(None), [None], None),
        (tf.TensorShape(None), [8], None),
        ([None, None], [8], [None, 8]),
        ([None, 8], [None], [None, 8]),
        ([3, None, 8], [8], [3, None, 8]),
    ],
)
def test_shapes_are_inferred_from_what_is_known(shape, hidden, expected):
    @tf.function(input_signature=[tf.TensorSpec(shape), tf.TensorSpec(hidden), tf.TensorSpec(hidden)])
    def function(x, gamma, beta):
        return layer_norm(x, gamma, beta, EPSILON)

    inferred = function.get_concrete_function().output_shapes
    assert inferred.as_list() == expected if expected else inferred.rank is None


BAD = {
    "x": (tf.constant(1.0), [8], [8], EPSILON),
    "gamma": ([3, 8], [7], [8], EPSILON),
    "beta": ([3, 8], [8], [8, 1], EPSILON),
    "epsilon": ([3, 8], [8], [8], 0.0),
    "negative epsilon": ([3, 8], [8], [8], -1e-5),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_by_name(case):
    name = case.split()[-1]
    *tensors, epsilon = BAD[case]
    x, gamma, beta = (tf.ones(tensor) if isinstance(tensor, list) else tensor for tensor in tensors)
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"\b{name} (is|has)\b"):
        layer_norm(x, gamma, beta, epsilon)
    for jit_compile in (False, True):
        with pytest.raises(ValueError, match=rf"\b{name} (is|has)\b"):
            tf.function(lambda: layer_norm(x, gamma, beta, epsilon), jit_compile=jit_compile)()


WRONG_DTYPES = {"x": "float64", "gamma": "int32", "beta": "float16"}


@pytest.mark.parametrize("way", ["eager", "graph", "xla"])
@pytest.mark.parametrize("name", WRONG_DTYPES)
def test_a_wrong_dtype_is_refused_by_name(name, way):
    tensors = {"x": tf.ones([2, 4]), "gamma": tf.ones([4]), "beta": tf.ones([4])}
    tensors[name] = tf.cast(tensors[name], WRONG_DTYPES[name])
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"\b{name} is {WRONG_DTYPES[name]}"):
        ways(lambda **tensors: layer_norm(**tensors, epsilon=EPSILON))[way](**tensors)
