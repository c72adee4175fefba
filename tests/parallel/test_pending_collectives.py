"""The pending: what has begun and not ended is known to another thread, eagerly and from within graphs."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tftrain.ops.library import MissingLibraryError, unavailable_reason
from tftrain.parallel import pending_collectives
from tftrain.parallel.pending_collectives import (
    Collective,
    OpCounter,
    PendingCollectives,
    VariableCounter,
    _is_constant,
)

FIRST, SECOND = Collective("all-reduce", "world.first", (0, 1)), Collective("all-gather", "data.second", (1, 3))


@pytest.fixture(params=[OpCounter, VariableCounter], autouse=True)
def counter(request, monkeypatch):
    """Sets and returns what counts the collectives of a test."""
    if request.param is OpCounter and unavailable_reason(gpu=False):
        pytest.skip("the library of ops is not built")
    monkeypatch.setattr("tftrain.parallel.pending_collectives.counter_class", lambda: request.param)
    return request.param


class Watching(PendingCollectives):
    """Also collects what was unfinished whenever something that stands for a collective was done."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def double(self, collective, tensor):
        def look(value):
            self.seen.append(self.unfinished())
            return 2 * value

        def do(given):
            result = tf.numpy_function(look, given, tf.float32, stateful=False)
            return tf.ensure_shape(result, given[0].shape)

        return self.around(collective, [tensor], do)


def test_eager_collectives_are_marked_and_one_that_fails_stays():
    watching = Watching()
    assert watching.double(FIRST, tf.constant(3.0)) == 6.0
    assert (watching.seen, watching.unfinished()) == ([[FIRST]], [])
    with pytest.raises(ZeroDivisionError):
        watching.around(SECOND, [], lambda _: 1 / 0)
    assert watching.unfinished() == [SECOND]
    assert str(SECOND) == "all-gather data.second of ranks 1, 3"


def test_collectives_of_a_graph_are_marked_in_their_order_and_gradients_pass_through():
    watching = Watching()

    @tf.custom_gradient
    def double(x):
        return watching.double(FIRST, x), lambda upstream: watching.double(SECOND, upstream)

    @tf.function(autograph=False)
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = double(x) ** 2
        return tape.gradient(y, x)

    for _ in range(3):
        np.testing.assert_array_equal(gradient(tf.constant([1.0, 2.0])), [8.0, 16.0])
    # When the second begins, the first has ended, but its mark may be about to be made.
    assert [pending[-1] for pending in watching.seen] == [FIRST, SECOND] * 3
    assert watching.seen[0] == [FIRST]
    assert watching.unfinished() == []


def test_without_the_library_a_variable_counts(monkeypatch):
    def missing():
        raise MissingLibraryError

    monkeypatch.undo()
    monkeypatch.setattr(pending_collectives, "library", missing)
    assert pending_collectives.counter_class() is VariableCounter


def test_a_collective_waits_for_its_inputs_alone(counter):
    """TensorFlow would run the stateful operations of a function in order, and stages would wait for each other."""
    pending = PendingCollectives()

    @tf.function(autograph=False)
    def step(x):
        with tf.control_dependencies([tf.timestamp()]):
            x = tf.identity(x)
        do = lambda given: tf.identity(given[0])  # noqa: E731
        return pending.around(FIRST, [x], do) + pending.around(SECOND, [x + 1], do)

    graph = step.get_concrete_function(tf.constant(1.0)).graph
    counts = {op for op in graph.get_operations() if op.type in ("TftrainCount", "AssignAddVariableOp")}
    assert len(counts) == 4
    for op in counts:
        others = [before for before in op.control_inputs if before.inputs[:1] != op.inputs[:1]]
        assert not any(before in counts or before.type == "Timestamp" for before in others)


# Two logical devices: CPU:1 stands for a GPU. Prints the transfers between them in a step with three collectives.
TRANSFERS = """
import sys
import tensorflow as tf
from tensorflow.python.eager import context
from tftrain.parallel import pending_collectives
from tftrain.parallel.pending_collectives import Collective, PendingCollectives

(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
with tf.device("CPU:1"):
    x = tf.ones([4])
for counter in sys.argv[1:]:
    pending_collectives.counter_class = lambda name=counter: getattr(pending_collectives, name)
    pending = PendingCollectives()

    @tf.function(autograph=False)
    def step(x):
        with tf.device("CPU:1"):
            for number in range(3):
                collective = Collective("all-reduce", str(number), (0, 1))
                x = pending.around(collective, [tf.sin(x)], lambda given: tf.cos(given[0]))
            return x

    context.context().enable_run_metadata()
    step(x)
    graphs = context.context().export_run_metadata().partition_graphs
    print(counter, sum(node.op == "_Send" for graph in graphs for node in graph.node))
"""


@pytest.fixture(scope="module")
def transfers():
    """The transfers between the devices by the name of the counter."""
    names = [OpCounter.__name__] * (unavailable_reason(gpu=False) is None) + [VariableCounter.__name__]
    done = subprocess.run([sys.executable, "-c", TRANSFERS, *names], capture_output=True, text=True, check=True)
    return dict(line.split() for line in done.stdout.splitlines())


def test_counting_copies_nothing_from_a_device(counter, transfers):
    assert int(transfers[counter.__name__]) == {OpCounter: 0, VariableCounter: 12}[counter]


def test_graph_optimizers_do_not_know_that_an_input_is_constant():
    pending, seen = PendingCollectives(), []

    def do(given):
        seen.append(_is_constant(given[0]))
        return tf.identity(given[0])

    @tf.function(autograph=False)
    def step():
        return pending.around(FIRST, [tf.constant([1.0, 2.0])], do)

    np.testing.assert_array_equal(step(), [1.0, 2.0])
    assert seen == [False]


def test_loops_nested_functions_and_new_traces_with_other_collectives_are_marked_too():
    watching = Watching()

    @tf.function  # AutoGraph turns these very functions into others.
    def inner(x, collective):
        return watching.double(collective, x)

    @tf.function(autograph=False)
    def step(x, collective):
        body = lambda index, total: (index + 1, inner(total, collective))  # noqa: E731
        return tf.while_loop(lambda index, _: index < 3, body, (0, x), parallel_iterations=1)[1]

    for size, collective in ((2, FIRST), (5, FIRST), (5, SECOND)):
        np.testing.assert_array_equal(step(tf.ones([size]), collective), 8.0)
    assert watching.seen == [[FIRST]] * 6 + [[SECOND]] * 3
    assert watching.unfinished() == []


def test_one_that_fails_in_a_graph_stays_begun():
    pending = PendingCollectives()

    def fail(given):
        with tf.control_dependencies([tf.debugging.Assert(given[0] < 0, ["the other rank is gone"])]):
            return tf.identity(given[0])

    @tf.function(autograph=False)
    def step(x):
        return pending.around(FIRST, [x], fail)

    with pytest.raises(tf.errors.InvalidArgumentError, match="the other rank is gone"):
        step(tf.constant(1.0))
    assert pending.unfinished() == [FIRST]
