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
        inputs = [
            tf.identity(tensor) for tensor in tensors
        ]  # An input from outside of a loop's body is not in its graph.
        with tf.control_dependencies(inputs):
            begun = counter.assign_add(1, read_value=False)
        with tf.control_dependencies([begun]):
            result = operation(inputs)
        with tf.control_dependencies(tf.nest.flatten(result)):
            counter.assign_add(1, read_value=False)
        return result

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
