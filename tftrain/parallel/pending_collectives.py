"""Which collectives this rank has begun and not ended, so that a rank that waits for ever can say for what.

A collective inside a traced function is done by TensorFlow's threads, while the one that called the function stands
still. So each has a counter, an integer variable on the host that is increased before and after: an odd number means
that this rank has given its part and waits for the others. Any thread may read them at any time. The variables are
separate, since operations on the same one are done in the order of the program, which collectives need not be.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf


class Collective(NamedTuple):
    """What ranks do together.

    Attributes:
        kind: in words.
        name: by which Horovod matches it across ranks; its group comes first.
        ranks: the global ranks that take part.
    """

    kind: str
    name: str
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.kind} {self.name} of ranks {', '.join(map(str, self.ranks))}"


class PendingCollectives:
    """The marks of one process."""

    def __init__(self):
        """Begins empty."""
        self._counters: dict[Collective, tf.Variable] = {}
        self._eager: dict[Collective, None] = {}

    def around(self, collective: Collective, tensors: Sequence[tf.Tensor], do: Callable[[list[tf.Tensor]], Any]) -> Any:
        """Does a collective between two marks, eagerly or in a function that XLA does not compile.

        Args:
            collective: what it is.
            tensors: that this rank gives.
            do: from these tensors to the result; one that raises leaves the collective begun and not ended.

        Returns:
            What `do` does: a tensor, or a list of tensors.
        """
        if tf.executing_eagerly():
            self._eager[collective] = None
            result = do(list(tensors))
            del self._eager[collective]
            return result
        counter = self._counter(collective)
        given = [tf.identity(tensor) for tensor in tensors]  # What comes from outside of a loop's body is not in it.
        with tf.control_dependencies(given):
            begun = counter.assign_add(1, read_value=False)
        with tf.control_dependencies([begun]):
            result = do(given)
        with tf.control_dependencies(tf.nest.flatten(result)):
            counter.assign_add(1, read_value=False)
        return result

    def unfinished(self) -> list[Collective]:
        """Returns what has begun and not ended, from any thread and while a function runs."""
        waiting = [collective for collective, counter in list(self._counters.items()) if int(counter.numpy()) % 2]
        return [*self._eager, *waiting]

    def _counter(self, collective: Collective) -> tf.Variable:
        """Returns the collective's counter; a function that is traced again goes on with the one it had."""
        if collective not in self._counters:
            # A function may make variables in its first trace only, and knows of those that its own thread makes.
            maker = threading.Thread(target=self._make_counter, args=[collective])
            maker.start()
            maker.join()
        return self._counters[collective]

    def _make_counter(self, collective: Collective) -> None:
        with tf.device("CPU:0"):
            self._counters[collective] = tf.Variable(0, trainable=False, dtype=tf.int64, name="pending")
