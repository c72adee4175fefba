"""The collectives that this rank has begun and not ended, so that a rank that hangs can report what it waits for.

TensorFlow's own threads run the collectives of a traced function, while the caller of the function waits. So each
collective has a counter, an integer variable on the host that is incremented before and after it: an odd count means
that this rank waits for the others. Any thread may read the counters at any time. Each collective has its own variable,
because operations on one variable run in program order, which collectives need not do.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf


class Collective(NamedTuple):
    """One collective.

    Attributes:
        kind: such as all-reduce, for messages.
        name: matches it across ranks in Horovod; begins with the group's name.
        ranks: the global ranks that take part.
    """

    kind: str
    name: str
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.kind} {self.name} of ranks {', '.join(map(str, self.ranks))}"


class PendingCollectives:
    """The pending collectives of one process."""

    def __init__(self):
        """Begins empty."""
        self._counters: dict[Collective, tf.Variable] = {}
        self._eager: dict[Collective, None] = {}

    def around(
        self, collective: Collective, tensors: Sequence[tf.Tensor], operation: Callable[[list[tf.Tensor]], Any]
    ) -> Any:
        """Runs a collective and counts its begin and end, eagerly or in a function that XLA does not compile.

        Args:
            collective: its kind, name and ranks.
            tensors: this rank's inputs.
            operation: called with the inputs; returns a tensor or a list of tensors. If it raises, the collective stays
                pending.

        Returns:
            The result of `operation`.
        """
        if tf.executing_eagerly():
            self._eager[collective] = None
            result = operation(list(tensors))
            del self._eager[collective]
            return result
        counter = self._counter(collective)
        # An input from outside of a loop's body is not in its graph.
        inputs = [self._not_constant(tf.identity(tensor)) for tensor in tensors]
        with tf.control_dependencies(inputs):
            begun = counter.assign_add(1, read_value=False)
        with tf.control_dependencies([begun]):
            result = operation(inputs)
        with tf.control_dependencies(tf.nest.flatten(result)):
            counter.assign_add(1, read_value=False)
        return result

    def _not_constant(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns an equal tensor of which graph optimizers do not know that it is constant.

        They take Horovod's operations for pure functions. They would run one whose inputs are constant while they
        optimize, perhaps on some ranks only, and the step would wait for ever; and they would merge two with equal
        inputs.
        """
        if not _is_constant(tensor):
            return tensor
        counter = self._counter(Collective("constant input", "", ()))
        zero = tf.minimum(counter.read_value(), 0)
        return tensor + tf.cast(zero, tensor.dtype)

    def unfinished(self) -> list[Collective]:
        """Returns the pending collectives; any thread may call it while a function runs."""
        waiting = [collective for collective, counter in list(self._counters.items()) if int(counter.numpy()) % 2]
        return [*self._eager, *waiting]

    def _counter(self, collective: Collective) -> tf.Variable:
        """Returns the collective's counter; a function that is traced again uses the same one."""
        if collective not in self._counters:
            # tf.function allows new variables only in its first trace; it does not notice those of other threads.
            maker = threading.Thread(target=self._make_counter, args=[collective])
            maker.start()
            maker.join()
        return self._counters[collective]

    def _make_counter(self, collective: Collective) -> None:
        with tf.device("CPU:0"):
            self._counters[collective] = tf.Variable(0, trainable=False, dtype=tf.int64, name="pending")


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
