"""What each rank does in `test_transports`: every collective by TensorFlow, against NumPy and against Horovod."""

import dataclasses
import itertools

import numpy as np
import tensorflow as tf

from tftrain.config.parallel import ParallelConfig
from tftrain.parallel import collectives, tensorflow_transport
from tftrain.parallel.launcher import launch_from_environment
from tftrain.parallel.mesh import Group
from tftrain.parallel.start import start

launch = launch_from_environment()
mesh = start(launch, 1, ParallelConfig(tensor_parallel_size=launch.size, group_transport="tensorflow"))
assert mesh.tensorflow_kinds == ("tensor",)
OURS, HOROVOD = mesh.tensor, dataclasses.replace(mesh.tensor, by_tensorflow=False)
tensorflow_transport.PIECE_BYTES = 104  # Transfers have several pieces, and a shorter one at the end.
FLOATS, NUMBERS = (tf.float32, tf.float16, tf.float64), (tf.int32, tf.int64)
# Nothing that the number of ranks divides, and more than one exchange takes.
SHAPES = ([], [1], [5, 3], [2, 1, 7], [3, 200_003])


def draws(shape, dtype, seed=0):
    """Returns the tensor of each rank."""
    rng = np.random.default_rng(seed)
    size = [OURS.size, *shape]
    values = rng.integers(-99, 99, size) if dtype.is_integer else rng.normal(size=size)
    return [tf.cast(value, dtype) for value in values]


def both(function, *args):
    """Returns the result of a function of a group in a graph, by TensorFlow and by Horovod."""
    return [tf.function(function, autograph=False)(group, *args) for group in (OURS, HOROVOD)]


def wide(every):
    """Returns the tensors of the ranks in fp64."""
    return np.stack([tf.cast(tensor, tf.float64).numpy() for tensor in every])


def unit(dtype):
    """Returns the largest relative error of one rounding."""
    return 0 if dtype.is_integer else 2.0 ** -{tf.bfloat16: 8, tf.float16: 11, tf.float32: 24, tf.float64: 53}[dtype]


def check_sums():
    # The largest of each shape and of each dtype, and of long tensors of 16 and 32 bits; bfloat16 has none.
    dtypes = tf.float32, tf.float64, *NUMBERS, tf.float16
    largest_of = [*zip(SHAPES, dtypes, strict=True), (SHAPES[-1], tf.float32)]
    # Every dtype of a scalar and of a long tensor; other shapes in fp32, and in the dtype of their largest.
    every_dtype = itertools.product((SHAPES[0], SHAPES[-1]), (*FLOATS, tf.bfloat16, *NUMBERS))
    others = [each for each in (*largest_of, *itertools.product(SHAPES, [tf.float32])) if each[0] in SHAPES[1:-1]]
    for number, (shape, dtype) in enumerate((*every_dtype, *others)):
        every = draws(shape, dtype, number)
        expected, magnitude = (values.sum(axis=0, dtype=np.longdouble) for values in (wide(every), np.abs(wide(every))))
        name = f"sum.{number}"
        ours = tf.function(lambda x, name=name: collectives.all_reduce(OURS, x, name), autograph=False)(
            every[OURS.rank]
        )
        assert ours.dtype == dtype
        assert ours.shape == shape
        # 16 bits are added in fp32 and rounded once; others are rounded with each addition.
        bound = (1 if dtype.size == 2 else OURS.size) * unit(dtype) + OURS.size * 2.0**-24 * (dtype.size == 2)
        assert (np.abs(wide([ours])[0] - expected) <= bound * magnitude).all(), (shape, dtype)
        if (shape, dtype) in largest_of:
            largest = both(collectives.all_reduce, every[OURS.rank], f"{name}.max", "max")
            np.testing.assert_array_equal(*largest)
            np.testing.assert_array_equal(largest[0], wide(every).max(axis=0).astype(dtype.as_numpy_dtype))
        if dtype in (tf.float32, tf.float64):
            theirs = collectives.all_reduce(HOROVOD, every[OURS.rank], name)
            assert (np.abs(ours - theirs) <= 2 * bound * magnitude).all(), (shape, dtype)


def check_gathers_and_parts():
    for number, dtype in enumerate((*FLOATS, tf.bfloat16, *NUMBERS)):
        every = draws([3, 2, 5], dtype, number)
        wire = [collectives.as_sendable(tensor) for tensor in every]
        rows = both(collectives.all_gather_rows, wire[OURS.rank], f"rows.{number}")
        first = both(collectives.broadcast, wire[OURS.rank], f"first.{number}")
        for found in (*rows, *first):
            assert found.dtype == wire[0].dtype
        for found in rows:
            np.testing.assert_array_equal(found, tf.concat(wire, axis=0))
        for found in first:
            np.testing.assert_array_equal(found, wire[0])
        if dtype.is_floating:
            parts = draws([OURS.size, 4, 3], dtype, number + 10)
            ours, theirs = both(collectives.sum_of_parts, parts[OURS.rank], f"parts.{number}")
            assert ours.dtype == dtype
            assert ours.shape == [4, 3]
            np.testing.assert_array_equal(ours, theirs)


def check_transfers():
    """Ranks 0 and 1 send each other tensors, two at the same time."""
    if OURS.rank > 1:
        return
    link = Group("link", (0, 1), OURS.rank, None, mesh.pending, by_tensorflow=True)
    for number, dtype in enumerate((*FLOATS, tf.bfloat16, *NUMBERS)):
        for shape in ([], [4, 3, 2]):
            tensors, name = draws(shape, dtype, number)[:2], f"sent.{number}.{len(shape)}"

            @tf.function(autograph=False)
            def exchange(tensor, name=name, shape=shape, dtype=dtype):
                names = [f"{name}.of.{rank}" for rank in range(2)]
                # Each rank adds the two in an order of its own.
                sent = None if link.rank else collectives.send(link, tensor, names[0])
                received = collectives.receive(link, shape, dtype, names[1 - link.rank])
                sent = collectives.send(link, tensor, names[1]) if link.rank else sent
                with tf.control_dependencies([collectives.prevent_pruning(sent)]):
                    return tf.identity(received)

            for _ in range(3):
                received = exchange(tensors[link.rank])
                assert received.dtype == dtype
                assert received.shape == shape
                np.testing.assert_array_equal(wide([received]), wide([tensors[1 - link.rank]]))


check_sums()
check_gathers_and_parts()
check_transfers()
assert mesh.pending.unfinished() == []
collectives.gather_numbers(mesh.world, 0.0, "end")
print("TensorFlow's transport agrees with Horovod's", flush=True)
