"""The collectives that this rank has begun and not ended, so that a rank that hangs can report what it waits for.

TensorFlow's own threads run the collectives of a traced function, while the caller of the function waits. So each
collective has a counter on the host that is incremented before and after it: an odd count means that this rank waits
for the others. Any thread may read the counters at any time.

An op of the project's library counts (`custom_ops/tensorflow/count.cc`). It forwards the tensors and touches no stream
of a GPU. Without the library, the counter is a variable on the host, for which a GPU waits: each operation between a
tensor and its collective copies from the device.
"""

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tftrain.ops.library import MissingLibraryError, counters, library


class Collective(NamedTuple):
    """One collective of global ranks; its name, which begins with the group's, matches it across ranks in Horovod."""

    kind: str  # such as all-reduce, for messages
    name: str
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.kind} {self.name} of ranks {', '.join(map(str, self.ranks))}"


class PendingCollectives:
    """The pending collectives of one process."""

    def __init__(self):
        self._counters: dict[Collective, OpCounter | VariableCounter] = {}
        self._eager: dict[Collective, None] = {}

    def around(self, collective: Collective, given: Any, operation: Callable[[Any], Any]) -> Any:
        """Runs a collective and counts its begin and end, eagerly or in a function that XLA does not compile.

        The operation maps this rank's tensor, or a list, to such a result. If it raises, the collective stays pending.
        """
        if tf.executing_eagerly():
            self._eager[collective] = None
            result = operation(given)
            del self._eager[collective]
            return result
        if collective not in self._counters:
            self._counters[collective] = counter_class()()

        def counted(tensors: Any) -> Any:
            return tf.nest.pack_sequence_as(tensors, self._counters[collective].counted(tf.nest.flatten(tensors)))

        return counted(operation(counted(given)))

    def unfinished(self) -> list[Collective]:
        """Returns the pending collectives; any thread may call it while a function runs."""
        return [*self._eager, *(each for each, counter in list(self._counters.items()) if counter.value % 2)]


def counter_class() -> type["OpCounter | VariableCounter"]:
    """Returns what counts the collectives of this process."""
    try:
        if hasattr(library(), "tftrain_count"):
            return OpCounter
    except MissingLibraryError:
        pass
    return VariableCounter


def run_independently(result: tf.Tensor) -> tf.Tensor:
    """Tells the function that is traced, if any, that its stateful operations need not wait for the one of `result`.

    Without it, a function runs its stateful operations one after the other. Returns `result`.
    """
    if order := tf.compat.v1.get_default_graph().experimental_acd_manager:
        order.run_independently(result.op)
    return result


class OpCounter:
    """A counter of the library, which its op increments."""

    def __init__(self):
        self._number = counters().tftrain_add_counter()

    @property
    def value(self) -> int:
        """The count."""
        return counters().tftrain_counter_value(self._number)

    def counted(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the same tensors; the count goes up when they have been made, or are on their device's stream."""
        same = library().tftrain_count(tensors, counter=self._number)
        run_independently(same[0])  # Collectives would wait for computations, and two stages for each other.
        return list(same)


class VariableCounter:
    """A counter that is a variable on the host.

    Each collective has its own, because operations on one variable run in program order, which collectives need not do.
    """

    def __init__(self):
        # tf.function allows new variables only in its first trace; it does not notice those of other threads.
        maker = threading.Thread(target=self._make)
        maker.start()
        maker.join()

    def _make(self) -> None:
        with tf.device("CPU:0"):
            self._variable = tf.Variable(0, trainable=False, dtype=tf.int64, name="pending")

    @property
    def value(self) -> int:
        """The count."""
        return int(self._variable.numpy())

    def counted(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns equal tensors; the count goes up when they have been made."""
        # An input from outside of a loop's body is not in its graph.
        tensors = [self._not_constant(tf.identity(tensor)) for tensor in tensors]
        with tf.control_dependencies(tensors):
            counted = self._variable.assign_add(1, read_value=False)
        with tf.control_dependencies([counted]):
            return [tf.identity(tensor) for tensor in tensors]

    def _not_constant(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns an equal tensor of which graph optimizers do not know that it is constant.

        They take Horovod's operations for pure functions. They would run one whose inputs are constant while they
        optimize, perhaps on some ranks only, and the step would wait for ever; and they would merge two with equal
        inputs.
        """
        if not _is_constant(tensor):
            return tensor
        zero = tf.minimum(self._variable.read_value(), 0)
        return tensor + tf.cast(zero, tensor.dtype)


def _is_constant(tensor: tf.Tensor) -> bool:
    """Returns whether a tensor of a graph depends on constants alone."""
    waiting, seen = [tensor.op], set()
    while waiting:
        op = waiting.pop()
        if op in seen:
            continue
        seen.add(op)
        if "Placeholder" in op.type or op.op_def.is_stateful:
            return False
        waiting += [each.op for each in op.inputs]
    return True
