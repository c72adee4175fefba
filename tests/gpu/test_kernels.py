"""The library of `make setup GPU=1` in TensorFlow: every op has a GPU kernel for every dtype that it takes."""

import itertools

import pytest
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tests.gpu.registry import kernel_of
from tests.ops.test_library import handlers
from tftrain.ops.library import library, unavailable_reason

pytestmark = pytest.mark.gpu_build


def types_of(op):
    """Yields the dtypes of every call that an op takes, by the names of its attributes."""
    library()
    attributes = [each for each in op_def_registry.get(op).attr if each.type == "type"]
    allowed = [[tf.as_dtype(value) for value in each.allowed_values.list.type] for each in attributes]
    for dtypes in itertools.product(*allowed):
        yield dict(zip((each.name for each in attributes), dtypes, strict=True))


def test_the_library_was_built_with_cuda():
    assert unavailable_reason(gpu=True) is None


def test_every_op_has_a_kernel_of_a_gpu_and_one_of_xla_for_every_dtype():
    found, symbols = handlers()
    for op, symbol in symbols.items():
        calls = list(types_of(op))
        assert calls
        for types in calls:
            for device in ("GPU", "XLA_GPU_JIT"):
                assert kernel_of(op, types.get, device), f"{op} {types} on {device}"
        assert hasattr(found, f"{symbol}_cuda")


def test_collectives_are_counted_beside_a_gpu():
    library()
    assert kernel_of("TftrainCount", {"T": [tf.float32]}.get)
