"""When a pipeline stage computed what: the begin and the end of each computation of the last step."""

import contextlib
from collections.abc import Callable, Iterable, Iterator

import tensorflow as tf

from tftrain.parallel import collectives
from tftrain.parallel.mesh import Group
from tftrain.schedules.simulation import TimedAction
from tftrain.schedules.table import Action, ActionKind


class StageClock:
    """Measures the computations of a stage on the host.

    A computation begins when the stage is free and its input has arrived, and ends when all its results are there.
    """

    def __init__(self):
        self.actions: list[Action] = []  # The computations, in order, of the graph that was traced last.
        with tf.device("CPU:0"):
            # fp64 [actions, 2], seconds since 1970 at the begin and the end of each in the last step.
            shape = tf.TensorShape([None, 2])
            self.times = tf.Variable(tf.zeros([0, 2], tf.float64), trainable=False, shape=shape, name="stage_times")
        self._new_times: list[tf.Tensor] = []

    @contextlib.contextmanager
    def measure(self, action: Action, inputs: tf.Tensor | None) -> Iterator[Callable[[Iterable[tf.Tensor]], None]]:
        """Measures a computation, with this input from another stage, if any, that is traced within it.

        Yields:
            A function to call with the results.
        """
        begin = _now([] if inputs is None else [inputs])
        ends: list[tf.Tensor] = []
        with tf.control_dependencies([begin]):
            yield lambda results: ends.append(_now(results))
        self.actions.append(action)
        self._new_times.append(tf.stack([begin, *ends]))

    def store(self) -> None:
        """Stores the times of all computations that were traced since `start`."""
        self.times.assign(tf.stack(self._new_times), read_value=False)

    def events(self, group: Group) -> list[TimedAction]:
        """Returns the computations of all stages in the last step, in seconds since 1970; every rank must call it.

        `group` is the pipeline group of this rank.
        """
        times = self.times.numpy().tolist()
        own = [(a.kind.name, a.micro_batch, a.chunk, *at) for a, at in zip(self.actions, times, strict=True)]
        return [
            TimedAction(stage, Action(ActionKind[kind], micro_batch, chunk), begin, end)
            for stage, computations in enumerate(collectives.gather_values(group, own, "stage_times"))
            for kind, micro_batch, chunk, begin, end in computations
        ]

    def start(self) -> None:
        """Forgets the computations of an earlier graph; call it before the first one of a graph."""
        self.actions, self._new_times = [], []


def _now(after: Iterable[tf.Tensor]) -> tf.Tensor:
    with tf.device("CPU:0"), tf.control_dependencies(list(after)):
        return tf.timestamp()
