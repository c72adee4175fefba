"""What the tests of the ops share: tolerances that follow from the dtype, and the three ways to run a function."""

import numpy as np
import pytest
import tensorflow as tf

from tftrain.ops.dropout import Dropout, DropoutKey

DTYPES = ("float32", "float16", "bfloat16")
FORWARD = {"float32": (5e-6, 1e-6), "float16": (1e-3, 1e-5), "bfloat16": (8e-3, 1e-5)}  # relative, absolute
GRADIENT = {"float32": (5e-5, 1e-5), "float16": (2e-3, 1e-4), "bfloat16": (1.6e-2, 1e-3)}


def normal(seed, shape, dtype, mean=0.0, deviation=1.0):
    """Random numbers, rounded to the dtype."""
    values = np.random.default_rng(seed).normal(mean, deviation, shape)
    return tf.cast(tf.constant(values, tf.float64), dtype)


def exact(tensor):
    """The values in fp64."""
    return tf.cast(tensor, tf.float64).numpy()


def assert_close(actual, expected, tolerance, what=""):
    relative, absolute = tolerance
    np.testing.assert_allclose(exact(actual), expected, rtol=relative, atol=absolute, err_msg=what)


def assert_not_much_worse(actual, composed, expected, dtype, factor):
    """The largest error is at most `factor` times that of TensorFlow's own composition in the same dtype.

    Where the composition happens to be exact, half a unit in the last place of the largest number is still allowed.
    """
    rounding = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    error = np.abs(exact(actual) - expected).max(initial=0)
    allowed = factor * np.abs(exact(composed) - expected).max(initial=0)
    assert error <= max(allowed, 2 * rounding * np.abs(expected).max(initial=0))


def everything(function, arguments, dy):
    """The function's result and its gradients with respect to its arguments, with `dy` reaching the result."""
    with tf.GradientTape() as tape:
        tape.watch(arguments)
        y = function(*arguments)
    return y, *tape.gradient(y, arguments, output_gradients=dy)


def gradients(function, arguments, dy):
    """The gradients alone."""
    return list(everything(function, arguments, dy)[1:])


def dropout(rate=0.1, step=3, first_sample=40, seed=1234567890123, site=9, heads=None):
    key = DropoutKey(seed, tf.cast(step, tf.int64), tf.cast(first_sample, tf.int64))
    return Dropout(rate, site, key, heads)


def key_mask(batch, length, first=0):
    """The first sample has every third key padded from `first` on; of the others, the last has no key."""
    mask = np.ones([batch, length], np.int32)
    mask[:1, first::3] = 0
    mask[1:][-1:] = 0
    return tf.constant(mask)


def ways(function):
    """The function run eagerly, as a graph, and compiled by XLA."""
    return {
        "eager": function,
        "graph": tf.function(function, autograph=False),
        "xla": tf.function(function, jit_compile=True, autograph=False),
    }


def assert_same_in_every_way(function, *arguments):
    """A graph and XLA give bitwise what the function gives eagerly."""
    results = {way: run(*arguments) for way, run in ways(function).items()}
    for way in ("graph", "xla"):
        for actual, expected in zip(results[way], results["eager"], strict=True):
            np.testing.assert_array_equal(exact(actual), exact(expected), err_msg=way)


def assert_refused(message, function, *arguments, **named):
    """Expects an InvalidArgumentError in every way; TensorFlow may make it a ValueError while it builds a graph."""
    invalid = tf.errors.InvalidArgumentError
    for way, run in ways(function).items():
        with pytest.raises(invalid if way == "eager" else (invalid, ValueError), match=message):
            run(*arguments, **named)


def filled(good, **changed):
    """Tensors of ones by their name, given their shapes and dtypes."""
    return {name: tf.cast(tf.ones(shape), dtype) for name, (shape, dtype) in (good | changed).items()}


def optimized_hlo(function, *arguments):
    return tf.function(function, jit_compile=True, autograph=False).experimental_get_compiler_ir(*arguments)(
        stage="optimized_hlo"
    )
