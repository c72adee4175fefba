"""What the pending adds to each collective of a step: `python -m tests.parallel.pending_collectives_cost`.

A function that TensorFlow has traced does some collectives one after the other, with and without marks; each
stands for one and does nothing, so that what the marks take is not hidden behind it. The two take turns, and the
fastest turn of each counts.
"""

import time

import tensorflow as tf

from tftrain.parallel.pending_collectives import Collective, PendingCollectives

COLLECTIVES = 20
TURNS = 200


def main() -> None:
    pending = PendingCollectives()

    @tf.function(autograph=False)
    def marked(x):
        for number in range(COLLECTIVES):
            x = pending.around(Collective("all-reduce", str(number), (0, 1)), [x], nothing)
        return x

    @tf.function(autograph=False)
    def plain(x):
        for _ in range(COLLECTIVES):
            x = nothing([x])
        return x

    seconds = {marked: [], plain: []}
    x = tf.ones([1])
    for _ in range(TURNS):
        for function, turns in seconds.items():
            begin = time.perf_counter()
            function(x).numpy()
            turns.append(time.perf_counter() - begin)
    each = (min(seconds[marked]) - min(seconds[plain])) / COLLECTIVES
    print(f"two marks for each collective: {1e6 * each:.1f} microseconds")


def nothing(given: list[tf.Tensor]) -> tf.Tensor:
    """Returns the tensor after an operation that no optimizer of graphs takes away."""
    return tf.raw_ops.PreventGradient(input=given[0])


if __name__ == "__main__":
    main()
