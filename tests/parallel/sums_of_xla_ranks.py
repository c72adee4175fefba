"""What each rank does in `test_transports`: sums for a program that XLA compiles, as far as CPUs have them."""

from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from tftrain.parallel import collectives, start
from tftrain.parallel.launcher import launch_from_environment
from tftrain.parallel.mesh import SUMS_OF_XLA
from tftrain.parallel.tensorflow_transport import TensorFlowTransport

launch = launch_from_environment()
with mock.patch.object(start, "tensorflow_kinds", return_value=SUMS_OF_XLA):  # else refused on CPUs
    mesh = start.start(launch, 1, gradient_transport="xla")


def summed(tensor: tf.Tensor, name: str, jit: bool) -> tf.Tensor:
    """Returns a sum over the ranks."""
    transport = TensorFlowTransport(mesh.data, name)
    return tf.function(transport.sum_in_program, autograph=False, jit_compile=jit)(tensor)


for dtype in (tf.float32, tf.bfloat16):
    tensor = tf.cast(tf.range(12) + 100 * mesh.rank, dtype)  # exact in bf16
    result = summed(tensor, f"data.{dtype.name}", jit=False)
    assert result.dtype == dtype
    np.testing.assert_array_equal(tf.cast(result, tf.float32), 2 * np.arange(12) + 100)
# XLA has found both ranks. If this has changed, tests can train on CPUs with --gradient_transport=xla.
with pytest.raises(tf.errors.UnimplementedError, match="Collectives are not yet implemented for CPU"):
    summed(tf.ones([12]), "data.compiled", jit=True)
collectives.gather_values(mesh.world, mesh.rank, "end")  # A rank that ends resets its peers' connections.
print("the ranks are connected")
