"""What the tests of the ops share: tolerances that follow from the dtype, and the three ways to run a function."""

import numpy as np
import tensorflow as tf

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


def gradients(function, arguments, dy):
    """The gradients of the function's result with respect to its arguments, with `dy` reaching the result."""
    with tf.GradientTape() as tape:
        tape.watch(arguments)
        y = function(*arguments)
    return tape.gradient(y, arguments, output_gradients=dy)


def ways(function):
    """The function run eagerly, as a graph, and compiled by XLA."""
    return {"eager": function, "graph": tf.function(function), "xla": tf.function(function, jit_compile=True)}


def optimized_hlo(function, *arguments):
    return tf.function(function, jit_compile=True).experimental_get_compiler_ir(*arguments)(stage="optimized_hlo")
