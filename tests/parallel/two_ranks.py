"""What each of two ranks does in `test_collectives.test_two_ranks`: every collective against its arithmetic."""

import numpy as np
import tensorflow as tf

from tftrain.parallel import collectives
from tftrain.parallel.gradient_reduction import all_reduce_sum
from tftrain.parallel.launcher import launch_from_environment
from tftrain.parallel.start import start

mesh = start(launch_from_environment())
assert mesh.size == 2
mine = np.arange(6, dtype=np.float32).reshape(2, 3) + 10 * mesh.rank
both = [np.arange(6, dtype=np.float32).reshape(2, 3) + 10 * rank for rank in range(2)]


@tf.function(autograph=False)
def reduced(tensors, wire):
    return all_reduce_sum(mesh.world, tensors, f"sum_{wire.name}", wire)


for wire in (tf.float32, tf.float16):
    # bfloat16 can't travel; it is converted to the wire's dtype.
    matrix, scalar = reduced([tf.constant(mine, tf.bfloat16), tf.constant(float(mesh.rank))], wire)
    assert matrix.dtype == wire
    np.testing.assert_array_equal(matrix, both[0] + both[1])
    assert float(scalar) == 1.0
    # Gloo rounds fp16 after each rank.
    graph = reduced.get_concrete_function([tf.TensorSpec([2, 3], tf.bfloat16), tf.TensorSpec([])], wire).graph
    assert any("Allreduce" in operation.type for operation in graph.get_operations()) == (wire == tf.float32)

rows = collectives.all_gather_rows(mesh.world, tf.constant(mine[: 1 + mesh.rank]), "rows")
np.testing.assert_array_equal(rows, np.concatenate([both[0][:1], both[1]]))
np.testing.assert_array_equal(collectives.gather_numbers(mesh.world, 5.0 + mesh.rank, "numbers"), [5.0, 6.0])


@tf.function(autograph=False)
def scattered(tensor, bounds, name):
    return collectives.reduce_scatter_sum(mesh.world, tensor, bounds, name)


for dtype, bounds in ((tf.float32, (0, 3, 6)), (tf.float16, (0, 1, 6)), (tf.float32, (0, 0, 6))):
    part = scattered(tf.reshape(tf.cast(mine, dtype), [-1]), bounds, f"scatter_{bounds[1]}")
    assert part.dtype == tf.float32
    np.testing.assert_array_equal(part, (both[0] + both[1]).ravel()[bounds[mesh.rank] : bounds[mesh.rank + 1]])
# What is larger than the network's buffers is still on its way while the receiver adds: Gloo's own reduce-scatter fails
# here about once in ten times.
size, draws = 6_000_000, np.random.default_rng(3)
large = draws.integers(-1000, 1000, [2, size]).astype(np.float32)
begin, end = mesh.world.share(size)
for number in range(20):
    large += 1  # Another round's numbers would be seen.
    part = scattered(tf.constant(large[mesh.rank]), (0, size // 2, size), "large")
    np.testing.assert_array_equal(part, large.sum(axis=0)[begin:end], err_msg=f"round {number}")

variables = {name: tf.Variable(tf.cast(mine, dtype)) for name, dtype in (("a", tf.float32), ("b", tf.int64))}
collectives.broadcast_variables(mesh.world, variables)
for variable in variables.values():
    np.testing.assert_array_equal(variable, both[0])
print("two ranks agree", flush=True)
