"""The collectives of a traced function, in the order of its graph.

Collectives are matched by name. If one rank has no collective of a name, or another shape, the others wait for ever.
The graph of a traced function shows all its collectives before it runs.
"""

import re
from collections.abc import Iterator

import tensorflow as tf

from tftrain.parallel.mesh import MeshError


def collectives_of(function: tf.types.experimental.ConcreteFunction) -> dict[str, list[str]]:
    """Returns the collectives of a concrete function and of all functions that it calls.

    Returns:
        For each kind of group, and "link", the kind, name, dtypes and shapes of each collective.

    Raises:
        MeshError: TensorFlow would take two collectives for the same.
    """
    collectives: dict[str, list[str]] = {}
    names: dict[tuple[int, int], str] = {}
    for op in operations(function.graph):
        if not op.type.startswith(("Horovod", "Collective")):
            continue
        # The name scope depends on other traces.
        name, tensors = op.name.rpartition("/")[2], op.inputs
        if op.type.startswith("Collective"):
            inputs = dict(zip((arg.name for arg in op.op_def.input_arg), op.inputs, strict=False))
            numbers = tuple(int(tf.get_static_value(inputs[key])) for key in ("group_key", "instance_key"))
            if (other := names.setdefault(numbers, name)) != name:
                flag = "gradient" if name.startswith("data.") else "group"
                raise MeshError(f"{other} and {name} have the same number; use --{flag}_transport=horovod")
            # One rank of a transfer has the input, the other the output.
            tensors = [inputs.get("input", op.outputs[0])]
        # In Horovod's all-gather, or a transfer to another rank, each rank may have a different number of rows.
        free = 1 if op.type in ("HorovodAllgather", "HorovodAlltoall") else 0
        described = ", ".join(f"{tensor.dtype.name}{tensor.shape[free:]}" for tensor in tensors)
        kind = re.sub("^(Horovod|Collective)|(Send|Recv)?V2$", "", op.type)
        collectives.setdefault(name.partition(".")[0], []).append(f"{kind} {name} of {described}")
    return collectives


def operations(graph: tf.Graph) -> Iterator[tf.Operation]:
    """Yields the operations of a traced function's graph and of all functions that it calls."""
    functions: dict[str, list[str]] = {}  # by type of an operation, the attributes that are functions

    def walk(outer: tf.Graph) -> Iterator[tf.Operation]:
        for op in outer.get_operations():
            yield op
            if op.type not in functions:
                attributes = op.op_def.attr if op.op_def else []
                functions[op.type] = [each.name for each in attributes if each.type in ("func", "list(func)")]
            for attribute in functions[op.type]:
                value = op.get_attr(attribute)
                for called in value if isinstance(value, list | tuple) else [value]:
                    if inner := outer._get_function(called.name) or graph._get_function(called.name):
                        yield from walk(inner.graph)

    return walk(graph)
