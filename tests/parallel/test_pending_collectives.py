"""The pending: what has begun and not ended is known to another thread, eagerly and from within graphs."""

import numpy as np
import pytest
import tensorflow as tf

from tftrain.parallel.pending_collectives import Collective, PendingCollectives, _is_constant

FIRST, SECOND = Collective("all-reduce", "world.first", (0, 1)), Collective("all-gather", "data.second", (1, 3))


class Watching:
    """A pending, and what was unfinished in it whenever something that stands for a collective was done."""

    def __init__(self):
        self.pending, self.seen = PendingCollectives(), []

    def double(self, collective, tensor):
        def look(value):
            self.seen.append([str(each) for each in self.pending.unfinished()])
            return 2 * value

        def do(given):
            result = tf.numpy_function(look, given, tf.float32, stateful=False)
            return tf.ensure_shape(result, given[0].shape)

        return self.pending.around(collective, [tensor], do)


def test_a_collective_is_said_in_words():
    assert str(SECOND) == "all-gather data.second of ranks 1, 3"


def test_eager_collectives_are_marked_and_one_that_fails_stays():
    watching = Watching()
    assert watching.double(FIRST, tf.constant(3.0)) == 6.0
    assert watching.seen == [[str(FIRST)]]
    assert watching.pending.unfinished() == []
    with pytest.raises(ZeroDivisionError):
        watching.pending.around(SECOND, [], lambda _: 1 / 0)
    assert watching.pending.unfinished() == [SECOND]


@pytest.mark.parametrize("calls", [1, 3])
def test_collectives_of_a_graph_are_marked_in_their_order(calls):
    watching = Watching()

    @tf.function(autograph=False)
    def step(x):
        return watching.double(SECOND, watching.double(FIRST, x))

    for _ in range(calls):
        np.testing.assert_array_equal(step(tf.ones([4])), 4.0)
    # When the second begins, the first has ended, but its mark may be about to be made.
    assert [names[-1] for names in watching.seen] == [str(FIRST), str(SECOND)] * calls
    assert watching.seen[0] == [str(FIRST)]
    assert watching.pending.unfinished() == []


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


def test_loops_nested_functions_and_new_traces_are_marked_too():
    watching = Watching()

    @tf.function(autograph=False)
    def inner(x):
        return watching.double(FIRST, x)

    @tf.function(autograph=False)
    def step(x):
        body = lambda index, total: (index + 1, inner(total))  # noqa: E731
        return tf.while_loop(lambda index, _: index < 3, body, (0, x), parallel_iterations=1)[1]

    for size in (2, 5):
        np.testing.assert_array_equal(step(tf.ones([size])), 8.0)
    assert watching.seen == [[str(FIRST)]] * 6
    assert watching.pending.unfinished() == []


def test_a_later_trace_may_have_other_collectives():
    watching = Watching()

    @tf.function  # AutoGraph turns these very functions into others.
    def step(x, collective):
        return watching.double(collective, x)

    for collective in (FIRST, SECOND):
        np.testing.assert_array_equal(step(tf.ones([2]), collective), 2.0)
    assert watching.seen == [[str(FIRST)], [str(SECOND)]]


def test_gradients_pass_through():
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

    np.testing.assert_array_equal(gradient(tf.constant([1.0, 2.0])), [8.0, 16.0])
    assert [names[-1] for names in watching.seen] == [str(FIRST), str(SECOND)]
    assert watching.pending.unfinished() == []


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
