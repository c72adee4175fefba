"""What TensorFlow's registry of kernels says about a GPU, on any machine: the wheel is the CUDA build.

The placer itself needs a device. Without one, an operation is on the GPU if the registry has a GPU kernel for its
types, and nothing asked for the CPU; this is the rule by which the placer chooses.
"""

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import tensorflow as tf
from tensorflow.python.framework import kernels

from tftrain.parallel.graph_collectives import operations

# On a GPU, TensorFlow passes these types between functions in the host's memory.
ON_HOST = (tf.int32, tf.resource, tf.string, tf.variant)
ARGUMENTS = ("Placeholder", "NoOp")
PLACED = "placed on the CPU"
registered = functools.cache(lambda kind: kernels.get_registered_kernels_for_op(kind).kernel)


class HostWork(NamedTuple):
    """The name and the type of an operation that the host does, or waits for, and the reason."""

    name: str
    kind: str
    reason: str


def kernel_of(kind: str, attribute: Callable[[str], object], device: str = "GPU"):
    """Returns the kernel of an op for a device, or None; `attribute` maps a name to the call's dtype or dtypes."""

    def allows(constraint) -> bool:
        given = attribute(constraint.name)
        allowed = [tf.as_dtype(value) for value in constraint.allowed_values.list.type]
        return all(dtype in allowed for dtype in (given if isinstance(given, list) else [given]))

    fitting = [each for each in registered(kind) if all(map(allows, each.constraint))]
    # Kernels of the device "DEFAULT" are those of every device that has none of its own.
    for name in (device, "DEFAULT"):
        if own := [each for each in fitting if each.device_type == name]:
            return max(own, key=lambda each: each.priority)
    return None


def on_host(graph: tf.Graph) -> Iterator[HostWork]:
    """Yields what the host does of a step that has a GPU.

    The step's own arguments are on the host. A function that XLA compiles is one operation to the placer, but here it
    is looked into like any other.
    """
    for op in operations(graph):
        if op.type in ARGUMENTS:
            continue
        if "CPU" in op.device:
            yield HostWork(op.name, op.type, PLACED)
        elif _kernel(op) is None:
            dtypes = sorted({each.dtype.name for each in [*op.inputs, *op.outputs]})
            yield HostWork(op.name, op.type, f"no GPU kernel for {', '.join(dtypes)}")
        for argument, tensor in zip(_names(op, op.op_def.input_arg), op.inputs, strict=True):
            if _is_read_by_host(op, argument) and not _is_in_host_memory(tensor, graph):
                yield HostWork(op.name, op.type, f"reads {argument} from the device, made by {tensor.op.type}")


def _kernel(op):
    return kernel_of(op.type, op.get_attr)


def _names(op, arguments):
    """Returns the argument of each tensor: an argument may be a list of them."""
    names = []
    for each in arguments:
        number = op.get_attr(each.number_attr) if each.number_attr else 1
        names += [each.name] * (len(op.get_attr(each.type_list_attr)) if each.type_list_attr else number)
    return names


def _is_read_by_host(op, argument):
    return "CPU" in op.device or _kernel(op) is None or argument in _kernel(op).host_memory_arg


def _is_in_host_memory(tensor, graph):
    op = tensor.op
    if op.type in ARGUMENTS or any(each.type == "func" for each in op.op_def.attr):
        return op.graph is graph or tensor.dtype in ON_HOST
    if "CPU" in op.device or _kernel(op) is None:
        return True
    return _names(op, op.op_def.output_arg)[tensor.value_index] in _kernel(op).host_memory_arg
