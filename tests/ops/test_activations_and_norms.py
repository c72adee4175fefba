"""The fused activations and norms: each against its formula in fp64, its plain reference and its other ways to run."""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from tests.ops.comparison import (
    DTYPES,
    FORWARD,
    GRADIENT,
    assert_close,
    assert_not_much_worse,
    assert_refused,
    assert_same_in_every_way,
    everything,
    exact,
    gradients,
    normal,
    optimized_hlo,
)
from tftrain.ops.gelu import FORMS, bias_gelu, geglu, reference_bias_gelu, reference_geglu, reference_swiglu, swiglu
from tftrain.ops.layer_norm import layer_norm, reference_layer_norm, reference_rms_norm, rms_norm

EPSILON = 1e-5
SHAPES = ((0, 8), (1, 1), (3, 7), (2, 5, 1000), (17, 2560))
INVALID = tf.errors.InvalidArgumentError


class Op(NamedTuple):
    """An op of tensors of one shape, and of parameters that have one number for each column.

    Attributes:
        fused, reference, specification: the op, plain TensorFlow, and the formula in NumPy.
        tensors, parameters: names of the arguments.
        target: what XLA calls; its gradient ends in "Grad".
        mean, deviation: of the tensors.
    """

    fused: Callable[..., tf.Tensor]
    reference: Callable[..., tf.Tensor]
    specification: Callable[..., np.ndarray]
    tensors: tuple[str, ...]
    parameters: tuple[str, ...]
    target: str
    mean: float = 0.0
    deviation: float = 2.0

    def arguments(self, shape, dtype, parameter_dtype="float32"):
        """Returns random tensors and parameters."""
        tensors = [normal(seed, shape, dtype, self.mean, self.deviation) for seed in range(len(self.tensors))]
        # A scale is near 1, and a bias near 0.
        means = [float(name == "gamma") for name in self.parameters]
        return [*tensors, *(normal(7 + i, shape[-1:], parameter_dtype, mean) for i, mean in enumerate(means))]

    def everything(self, dy, *arguments):
        """Returns the result and all gradients."""
        return self.fused(*arguments), *gradients(self.fused, list(arguments), dy)


def followed_by(parameters, function):
    """Returns a function of the tensors alone."""
    return lambda *tensors: function(*tensors, *parameters)


def in_fp64(formula):
    """Lets a formula take tensors."""
    return lambda *arguments: formula(*map(exact, arguments))


def gelu_formula(z, form):
    if form == "erf":
        return z * scipy.special.erfc(-z * math.sqrt(0.5)) / 2
    minus_2u = -2 * math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)
    return z / (1 + np.exp(np.minimum(minus_2u, 700)))  # no overflow


def layer_norm_formula(x, gamma, beta):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON) * gamma + beta


GATED = (("gate", "up"), ("gate_bias", "up_bias"))
OPS = {
    f"gelu-{form}": Op(
        functools.partial(bias_gelu, form=form),
        functools.partial(reference_bias_gelu, form=form),
        in_fp64(lambda x, bias=0.0, form=form: gelu_formula(x + bias, form)),
        ("x",),
        ("bias",),
        "TftrainGelu",
    )
    for form in FORMS
}
OPS |= {
    f"geglu-{form}": Op(
        functools.partial(geglu, form=form),
        functools.partial(reference_geglu, form=form),
        in_fp64(lambda gate, up, b=0.0, c=0.0, form=form: gelu_formula(gate + b, form) * (up + c)),
        *GATED,
        "TftrainGeglu",
    )
    for form in FORMS
}
OPS["swiglu"] = Op(
    swiglu,
    reference_swiglu,
    in_fp64(lambda gate, up, b=0.0, c=0.0: (gate + b) / (1 + np.exp(-gate - b)) * (up + c)),
    *GATED,
    "TftrainSwiglu",
)
OPS["layer_norm"] = Op(
    functools.partial(layer_norm, epsilon=EPSILON),
    functools.partial(reference_layer_norm, epsilon=EPSILON),
    in_fp64(layer_norm_formula),
    ("x",),
    ("gamma", "beta"),
    "TftrainLayerNorm",
    mean=0.5,
)
OPS["rms_norm"] = Op(
    functools.partial(rms_norm, epsilon=EPSILON),
    functools.partial(reference_rms_norm, epsilon=EPSILON),
    in_fp64(lambda x, gamma: x / np.sqrt((x**2).mean(-1, keepdims=True) + EPSILON) * gamma),
    ("x",),
    ("gamma",),
    "TftrainRmsNorm",
    mean=0.5,
)
every_op = pytest.mark.parametrize("op", OPS.values(), ids=list(OPS))
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


@every_op
@every_dtype
def test_the_reference_is_the_formula(op, dtype):
    arguments = op.arguments([5, 96], dtype)
    assert_close(op.reference(*arguments), op.specification(*arguments), FORWARD[dtype])


@every_dtype
@pytest.mark.parametrize("name", ["gelu-erf", "geglu-erf", "swiglu"])
def test_biases_can_be_left_out(name, dtype):
    op = OPS[name]
    tensors = op.arguments([4, 9, 30], dtype)[: len(op.tensors)]
    none, zeros = [None] * len(op.parameters), [tf.zeros([30])] * len(op.parameters)
    assert_close(op.fused(*tensors, *none), op.specification(*tensors), FORWARD[dtype])
    for function in (op.fused, op.reference):
        without, with_zeros = (everything(followed_by(given, function), tensors, tensors[0]) for given in (none, zeros))
        for actual, expected in zip(without, with_zeros, strict=True):
            np.testing.assert_array_equal(exact(actual), exact(expected))


@every_op
@every_dtype
@pytest.mark.parametrize("parameter_dtype", DTYPES)
def test_parameters_have_a_dtype_of_their_own(op, dtype, parameter_dtype):
    arguments = op.arguments([6, 40], dtype, parameter_dtype)
    assert_close(op.fused(*arguments), op.specification(*arguments), FORWARD[dtype])
    made = gradients(op.fused, arguments, arguments[0])
    assert [tensor.dtype for tensor in made] == [tensor.dtype for tensor in arguments]


@every_op
@every_dtype
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_the_formula_with_the_gradients_of_the_reference_in_fp64(op, dtype, shape):
    arguments, dy = op.arguments(shape, dtype), normal(5, shape, dtype)
    wide = [tf.cast(tensor, tf.float64) for tensor in arguments]
    expected = gradients(op.reference, wide, tf.cast(dy, tf.float64))
    y, *actual = everything(op.fused, arguments, dy)
    assert y.dtype == arguments[0].dtype
    assert_close(y, op.specification(*arguments), FORWARD[dtype])
    sums = (0, 5e-6 * np.sqrt(np.prod(shape[:-1])))
    tolerances = [GRADIENT[dtype]] * len(op.tensors) + [sums] * len(op.parameters)
    names = op.tensors + op.parameters
    for name, made, wanted, tolerance in zip(names, actual, expected, tolerances, strict=True):
        assert_close(made, wanted.numpy(), tolerance, name)


@every_op
def test_gradients_of_the_reference_are_finite_differences(op):
    arguments, dy = op.arguments([3, 11], "float64", "float64"), normal(5, [3, 11], "float64")
    made, values, step = gradients(op.reference, arguments, dy), [x.numpy() for x in arguments], 1e-6
    for number, gradient in enumerate(made):
        for index in np.ndindex(*gradient.shape):
            shift = np.zeros(gradient.shape)
            shift[index] = step
            above, below = (
                op.specification(*values[:number], values[number] + sign * shift, *values[number + 1 :])
                for sign in (1, -1)
            )
            difference = ((above - below) * dy.numpy()).sum() / (2 * step)
            np.testing.assert_allclose(gradient.numpy()[index], difference, rtol=1e-6, atol=1e-8)


@every_op
@every_dtype
def test_it_is_not_worse_than_the_composition(op, dtype):
    arguments, dy = op.arguments([64, 768], dtype), normal(5, [64, 768], dtype)
    expected = op.specification(*arguments)
    assert_not_much_worse(op.fused(*arguments), op.reference(*arguments), expected, dtype, 1.5)

    def backward(function, dy, *arguments):
        tensors, parameters = list(arguments[: len(op.tensors)]), arguments[len(op.tensors) :]
        return gradients(followed_by(parameters, function), tensors, dy)

    wide = [tf.cast(tensor, tf.float64) for tensor in (dy, *arguments)]
    actual, composed = (backward(function, dy, *arguments) for function in (op.fused, op.reference))
    for fused, plain, expected in zip(actual, composed, backward(op.reference, *wide), strict=True):
        assert_not_much_worse(fused, plain, expected.numpy(), dtype, 2)


@every_op
@every_dtype
def test_graph_and_xla_give_the_same_as_eager(op, dtype):
    assert_same_in_every_way(op.everything, normal(5, [3, 5, 72], dtype), *op.arguments([3, 5, 72], dtype))


@pytest.mark.parametrize("name", [name for name in OPS if "tanh" not in name])
def test_the_compiled_program_calls_the_ops(name):
    hlo = optimized_hlo(OPS[name].everything, normal(5, [4, 16], "float32"), *OPS[name].arguments([4, 16], "float32"))
    for suffix in ("", "Grad"):
        assert f'custom_call_target="{OPS[name].target}{suffix}"' in hlo


UNKNOWN = tf.TensorShape(None)


@pytest.mark.parametrize(
    ("name", "tensors", "columns", "expected"),
    [
        *(("gelu-erf", [UNKNOWN], None, None), ("gelu-erf", [UNKNOWN], 8, None)),
        *(("gelu-erf", [[None, None]], 8, [None, 8]), ("gelu-erf", [[3, None, 8]], None, [3, None, 8])),
        *(("geglu-erf", [UNKNOWN, UNKNOWN], 8, None), ("geglu-erf", [UNKNOWN, [3, None]], 8, [3, 8])),
        ("geglu-erf", [[None, None], [3, None]], None, [3, None]),
        *(("geglu-erf", [[None, None], [3, None]], 8, [3, 8]), ("layer_norm", [UNKNOWN], None, None)),
        *(("layer_norm", [UNKNOWN], 8, None), ("layer_norm", [[None, None]], 8, [None, 8])),
        *(("layer_norm", [[None, 8]], None, [None, 8]), ("layer_norm", [[3, None, 8]], 8, [3, None, 8])),
        *(("rms_norm", [UNKNOWN], 8, None), ("rms_norm", [[None, None]], 8, [None, 8])),
        *(("rms_norm", [[None, 8]], None, [None, 8]), ("rms_norm", [[3, None, 8]], 8, [3, None, 8])),
    ],
)
def test_shapes_are_inferred_from_what_is_known(name, tensors, columns, expected):
    op = OPS[name]
    specs = [tf.TensorSpec(shape) for shape in (*tensors, *[[columns]] * len(op.parameters))]
    function = tf.function(op.fused, input_signature=specs, autograph=False)
    inferred = function.get_concrete_function().output_shapes
    assert inferred.as_list() == expected if expected else inferred.rank is None
    arguments = op.arguments([3, 2, 8] if expected and len(expected) == 3 else [3, 8], "float32")
    assert_close(function(*arguments), op.specification(*arguments), FORWARD["float32"])


@pytest.mark.parametrize(
    ("name", "wrong", "shapes"),
    [
        *(("gelu-erf", "x", [[], [8]]), ("gelu-erf", "bias", [[3, 8], [7]]), ("gelu-erf", "bias", [[3, 8], [8, 1]])),
        *(("geglu-erf", "gate", [[], [], [8], [8]]), ("geglu-erf", "up", [[3, 8], [4, 8], [8], [8]])),
        ("geglu-erf", "gate_bias", [[3, 8], [3, 8], [7], [8]]),
        *(("geglu-erf", "up_bias", [[3, 8], [3, 8], [8], [8, 1]]), ("swiglu", "gate", [[], [], [8], [8]])),
        *(("swiglu", "up", [[3, 8], [4, 8], [8], [8]]), ("swiglu", "up_bias", [[3, 8], [3, 8], [8], [8, 1]])),
        *(("layer_norm", "x", [[], [8], [8]]), ("layer_norm", "gamma", [[3, 8], [7], [8]])),
        *(("layer_norm", "beta", [[3, 8], [8], [8, 1]]), ("rms_norm", "x", [[], [8]])),
        ("rms_norm", "gamma", [[3, 8], [7]]),
    ],
)
def test_a_wrong_shape_is_refused_by_name(name, wrong, shapes):
    fused = OPS[name].fused
    assert_refused(rf"\b{wrong} has\b", lambda *given: fused(*given), *map(tf.ones, shapes))


@pytest.mark.parametrize("epsilon", [0.0, -1e-5])
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_an_epsilon_that_is_not_positive_is_refused(name, epsilon):
    function = functools.partial(OPS[name].fused, epsilon=epsilon)
    assert_refused(r"\bepsilon is\b", lambda *given: function(*given), *OPS[name].arguments([3, 8], "float32"))


@pytest.mark.parametrize(
    ("name", "wrong", "dtype"),
    [
        *(("geglu-erf", "up", "bfloat16"), ("geglu-erf", "up_bias", "bfloat16"), ("swiglu", "up", "bfloat16")),
        *(("layer_norm", "x", "float64"), ("layer_norm", "gamma", "int32"), ("layer_norm", "beta", "float16")),
        *(("rms_norm", "x", "float64"), ("rms_norm", "gamma", "int32")),
    ],
)
def test_a_wrong_dtype_is_refused_by_name(name, wrong, dtype):
    op = OPS[name]
    names = op.tensors + op.parameters
    arguments = dict(zip(names, op.arguments([2, 4], "float32"), strict=True))
    arguments[wrong] = tf.cast(arguments[wrong], dtype)
    assert_refused(rf"\b{wrong} is {dtype}", lambda *given: op.fused(*given), *arguments.values())


@pytest.mark.parametrize("name", ["geglu-erf", "swiglu"])
def test_one_bias_alone_is_refused_by_name(name):
    x = tf.ones([2, 4])
    with pytest.raises(INVALID, match="up_bias is None and gate_bias is not"):
        OPS[name].fused(x, x, tf.ones([4]), None)


def test_an_unknown_form_of_gelu_is_refused_by_name():
    with pytest.raises(INVALID, match="form is 'sigmoid', expected one of erf, tanh"):
        bias_gelu(tf.ones([2, 3]), None, "sigmoid")
