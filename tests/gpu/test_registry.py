"""The registry tells what a GPU can't do, on a machine without one."""

import pytest
import tensorflow as tf

from tests.gpu.registry import PLACED, on_host

pytestmark = pytest.mark.skipif(not tf.test.is_built_with_cuda(), reason="this TensorFlow has no kernels for GPUs")


def reasons(function):
    x = tf.TensorSpec([4, 4], tf.float32)
    inner = tf.function(function, autograph=False)
    graph = tf.function(lambda x: inner(x + 1.0), autograph=False).get_concrete_function(x).graph
    return [each.reason for each in on_host(graph) if each.kind != "Const"]


def test_a_product_stays_on_the_gpu():
    assert reasons(lambda x: tf.matmul(x, x)) == []


def test_an_operation_without_a_gpu_kernel_is_named_and_reads_from_the_device():
    assert reasons(lambda x: tf.strings.as_string(x)) == [
        "no GPU kernel for float32, string",
        "reads input from the device, made by Placeholder",
    ]


def test_numbers_of_32_bits_are_compared_on_the_host():
    assert reasons(lambda x: tf.argmax(x, 1, tf.int32) == 3) == ["reads x from the device, made by ArgMax"]
    assert reasons(lambda x: tf.argmax(x, 1) == 3) == []


def test_an_operation_that_is_placed_on_the_cpu_is_named():
    def function(x):
        with tf.device("CPU:0"):
            return tf.sin(x)

    assert reasons(function) == [PLACED, "reads x from the device, made by Placeholder"]
