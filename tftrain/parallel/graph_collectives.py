"""The collectives of a traced function, in the order of its graph.

Horovod matches collectives by name. If one rank has no collective of a name, or another shape, the others wait for
ever. The graph of a traced function shows all its collectives before it runs.
"""

from collections.abc import Iterator

import tensorflow as tf


def collectives_of(function) -> dict[int, list[str]]:
    """Returns the collectives of a concrete function and of all functions that it calls.

    Returns:
        For each of Horovod's process set ids (0: all ranks), the kind, name, input dtypes and input shapes of each
        collective.
    """
    found: dict[int, list[str]] = {}
    for op in _operations(function.graph, function.graph, {}):
        # Horovod drops the name scope, which depends on other traces.
        # In an all-gather, or a transfer to another rank, each rank may have a different number of rows.
        free = 1 if op.type in ("HorovodAllgather", "HorovodAlltoall") else 0
        given = ", ".join(f"{tensor.dtype.name}{tensor.shape[free:]}" for tensor in op.inputs)
        words = f"{op.type.removeprefix('Horovod')} {op.name.rpartition('/')[2]} of {given}"
        found.setdefault(op.node_def.attr["process_set_id"].i, []).append(words)
    return found


def _operations(graph: tf.Graph, root: tf.Graph, function_attributes: dict[str, list[str]]) -> Iterator[tf.Operation]:
    """Yields Horovod's operations; `function_attributes` remembers which attributes of a type are functions."""
    for op in graph.get_operations():
        kind = op.type
        if kind.startswith("Horovod"):
            yield op
            continue
        if kind not in function_attributes:
            attributes = op.op_def.attr if op.op_def else []
            function_attributes[kind] = [each.name for each in attributes if each.type in ("func", "list(func)")]
        for attribute in function_attributes[kind]:
            value = op.get_attr(attribute)
            for called in value if isinstance(value, list | tuple) else [value]:
                inner = graph._get_function(called.name) or root._get_function(called.name)
                if inner is not None:
                    yield from _operations(inner.graph, root, function_attributes)
