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
from tftrain.ops.gelu import FORMS, geglu, reference_bias_gelu, reference_geglu

SHAPES = ((0, 8), (1, 1), (3, 7), (2, 5, 1000), (17, 2560))


def inputs(shape, dtype, bias_dtype="float32"):
    gate, up = normal(1, shape, dtype, 0, 2), normal(2, shape, dtype)
    return gate, up, normal(3, shape[-1:], bias_dtype), normal(4, shape[-1:], bias_dtype)


def specification(gate, up, gate_bias, up_bias, form):
    gelu = reference_bias_gelu(tf.cast(gate, tf.float64), gate_bias, form)  # which has a test of its own
    return exact(gelu) * (exact(up) + exact(up_bias))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_the_specification(shape, dtype, form):
    arguments = inputs(shape, dtype)
    y = geglu(*arguments, form)
    assert y.dtype == arguments[0].dtype
    assert_close(y, specification(*arguments, form), FORWARD[dtype])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_reference_is_the_specification(dtype, form):
    arguments = inputs([5, 96], dtype)
    assert_close(reference_geglu(*arguments, form), specification(*arguments, form), FORWARD[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_biases_can_be_left_out(dtype):
    gate, up, *_biases = inputs([4, 9, 30], dtype)
    zeros = tf.zeros([30])
    without = gradients(lambda *a: geglu(*a, None, None, "erf"), [gate, up], up)
    zero = gradients(lambda *a: geglu(*a, zeros, zeros, "erf"), [gate, up], up)
    for actual, expected in zip(without, zero, strict=True):
        np.testing.assert_array_equal(exact(actual), exact(expected))


@pytest.mark.parametrize("bias_dtype", DTYPES)
def test_the_biases_have_a_dtype_of_their_own(bias_dtype):
    arguments = inputs([6, 40], "bfloat16", bias_dtype)
    assert_close(geglu(*arguments, "erf"), specification(*arguments, "erf"), FORWARD["bfloat16"])
    made = gradients(lambda *a: geglu(*a, "erf"), list(arguments), arguments[0])
    assert [tensor.dtype for tensor in made] == [tensor.dtype for tensor in arguments]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)
def test_gradients_are_those_of_the_reference_in_fp64(shape, dtype, form):
    arguments, dy = inputs(shape, dtype), normal(5, shape, dtype)
    wide = [tf.cast(tensor, tf.float64) for tensor in arguments]
    expected = gradients(lambda *a: reference_geglu(*a, form), wide, tf.cast(dy, tf.float64))
    actual = gradients(lambda *a: geglu(*a, form), list(arguments), dy)
    assert_close(actual[0], expected[0].numpy(), GRADIENT[dtype], "dgate")
    assert_close(actual[1], expected[1].numpy(), GRADIENT[dtype], "dup")
    tolerance = (0, 5e-6 * np.sqrt(np.prod(shape[:-1])))
    assert_close(actual[2], expected[2].numpy(), tolerance, "dgate_bias")
    assert_close(actual[3], expected[3].numpy(), tolerance, "dup_bias")


@pytest.mark.parametrize("form", FORMS)
def test_the_reference_gradients_are_the_finite_differences(form):
    gate, up, gate_bias, up_bias = inputs([3, 11], "float64", "float64")
    dy = normal(5, [3, 11], "float64")
    made = gradients(lambda *a: reference_geglu(*a, gate_bias, up_bias, form), [gate, up], dy)
    step = 1e-6
    for actual, shift in zip(made, ((step, 0), (0, step)), strict=True):
        above = specification(gate + shift[0], up + shift[1], gate_bias, up_bias, form)
        below = specification(gate - shift[0], up - shift[1], gate_bias, up_bias, form)
        np.testing.assert_allclose(actual, (above - below) * dy.numpy() / (2 * step), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_it_is_not_worse_than_the_composition(dtype, form):
    arguments, dy = inputs([64, 768], dtype), normal(5, [64, 768], dtype)
    expected = specification(*arguments, form)
    assert_not_much_worse(geglu(*arguments, form), reference_geglu(*arguments, form), expected, dtype, 1.5)

    def backward(function, *arguments):
        return gradients(lambda gate, up: function(gate, up, *arguments[2:4], form), arguments[:2], arguments[4])

    wide = [tf.cast(tensor, tf.float64) for tensor in (*arguments, dy)]
    actual, composed = (backward(function, *arguments, dy) for function in (geglu, reference_geglu))
    for fused, plain, expected in zip(actual, composed, backward(reference_geglu, *wide), strict=True):
        assert_not_much_worse(fused, plain, expected.numpy(), dtype, 2)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_graph_and_xla_give_the_same_as_eager(dtype, form):
    arguments, dy = inputs([3, 5, 72], dtype), normal(5, [3, 5, 72], dtype)

    def everything(dy, *arguments):
        return geglu(*arguments, form), *gradients(lambda *a: geglu(*a, form), list(arguments), dy)

    results = {way: run(dy, *arguments) for way, run in ways(everything).items()}
    for way in ("graph", "xla"):
        for actual, expected in zip(results[way], results["eager"], strict=True):
            np.testing.assert_array_equal(exact(actual), exact(expected), err_msg=way)


def test_the_compiled_program_calls_the_ops():
    arguments = inputs([4, 16], "float32")

    def everything(*arguments):
        return geglu(*arguments, "erf"), gradients(lambda *a: geglu(*a, "erf"), list(arguments), arguments[0])

    hlo = optimized_hlo(everything, *arguments)
    assert 'custom_call_target="TftrainGeglu"' in hlo
    assert 'custom_call_target="TftrainGegluGrad"' in hlo


@pytest.mark.parametrize(
    ("gate", "up", "columns", "expected"),
    [
        (tf.TensorShape(None), tf.TensorShape(None), [8], None),
        (tf.TensorShape(None), [3, None], [8], [3, 8]),
        ([None, None], [3, None], [None], [3, None]),
        ([None, None], [3, None], [8], [3, 8]),
    ],
)
def test_shapes_are_inferred_from_what_is_known(gate, up, columns, expected):
    specs = [tf.TensorSpec(gate), tf.TensorSpec(up), tf.TensorSpec(columns), tf.TensorSpec(columns)]
    function = tf.function(lambda *a: geglu(*a, "erf"), input_signature=specs)
    inferred = function.get_concrete_function().output_shapes
    assert inferred.as_list() == expected if expected else inferred.rank is None
    arguments = inputs([3, 8], "float32")
    assert_close(function(*arguments), specification(*arguments, "erf"), FORWARD["float32"])


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("gate", ([], [], [8], [8])),
        ("up", ([3, 8], [4, 8], [8], [8])),
        ("gate_bias", ([3, 8], [3, 8], [7], [8])),
        ("up_bias", ([3, 8], [3, 8], [8], [8, 1])),
    ],
)
def test_a_wrong_shape_is_refused_by_name(name, shapes):
    arguments = [tf.ones(shape) for shape in shapes]
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"\b{name} has\b"):
        geglu(*arguments, "erf")
    with pytest.raises(ValueError, match=rf"\b{name} has\b"):
        tf.function(lambda: geglu(*arguments, "erf"))()


@pytest.mark.parametrize("name", ["up", "up_bias"])
def test_a_wrong_dtype_is_refused_by_name(name):
    arguments = {"gate": tf.ones([2, 4]), "up": tf.ones([2, 4]), "gate_bias": tf.ones([4]), "up_bias": tf.ones([4])}
    arguments[name] = tf.cast(arguments[name], tf.bfloat16)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"{name} is bfloat16, expected float32"):
        geglu(**arguments, form="erf")


def test_one_bias_alone_is_refused_by_name():
    x = tf.ones([2, 4])
    with pytest.raises(tf.errors.InvalidArgumentError, match="up_bias is None and gate_bias is not"):
        geglu(x, x, tf.ones([4]), None, "erf")
