"""What each of two ranks does in `test_agreement`: it disagrees in settings and in collectives, and then agrees."""

import numpy as np
import tensorflow as tf

from tftrain.cli import flags
from tftrain.config.train import TrainConfig
from tftrain.parallel import graph_collectives
from tftrain.parallel.gradient_reduction import all_reduce_sum
from tftrain.parallel.launcher import launch_from_environment
from tftrain.parallel.mesh import MeshError
from tftrain.parallel.start import start
from tftrain.train import rank_checks

launch = launch_from_environment()
mesh = start(launch)
BASE = ["tftrain.run", "--synthetic_data", "--output_dir=unused", "--vocab_size=101"]


def refusal(function, *args):
    """Returns the message with which this rank refuses."""
    try:
        function(*args)
    except MeshError as error:
        return str(error)
    raise AssertionError(f"rank {mesh.rank} found nothing")


def configured(*args):
    return flags.parse(TrainConfig, [*BASE, *args]).resolve(mesh.size)


class Step:
    """A step with a nested function and a loop, whose second collective is what the test makes of it."""

    def __init__(self, name, width):
        self.name, self.width = name, width

    @tf.function(autograph=False)
    def inner(self, batch):
        def body(index, total):
            return index + 1, total + all_reduce_sum(mesh.world, [batch["x"]], "looped")[0]

        return tf.while_loop(lambda index, _: index < 2, body, (0, tf.zeros([3])), parallel_iterations=1)[1]

    def __call__(self, batch, requests):
        return self._step(batch, requests)

    def traced(self, batch, requests):
        return self._step.get_concrete_function(batch, requests)

    @tf.function(autograph=False)
    def _step(self, batch, requests):
        first = self.inner(batch)
        wide = tf.zeros([self.width]) + first[0] + tf.convert_to_tensor(requests)[0]
        return all_reduce_sum(mesh.world, [wide], self.name)[0][0]


# Rank 1 is the odd one, then rank 0.
for odd in (1, 0):
    changed = ("--learning_rate=0.02", "--adam_beta1=0.5", "--output_dir=elsewhere") if mesh.rank == odd else ()
    said = refusal(rank_checks.before_start, configured(*changed), mesh)
    values = ("0.02, but 0.001", "0.5, but 0.9") if odd == 1 else ("0.001, but 0.02", "0.9, but 0.5")
    for flag, both in zip(("--learning_rate", "--adam_beta1"), values, strict=True):
        assert f"{flag} is {both} on rank 0" in said, said
    assert "on rank 1 --" in said, said
    assert "output_dir" not in said, said
rank_checks.before_start(configured(f"--output_dir=of_rank_{mesh.rank}"), mesh)

batch, requests = {"x": tf.ones([3])}, np.zeros([1], np.float32)
for odd, name, width in ((1, "other", 5), (0, "last", 6)):
    step = Step(name, width) if mesh.rank == odd else Step("last", 5)
    said = refusal(rank_checks.before_first_step, step, batch, requests, mesh)
    expected = {
        "other": "GroupedAllreduce world.other.0 of float32(5,), but GroupedAllreduce world.last.0 of float32(5,)",
        "last": "GroupedAllreduce world.last.0 of float32(5,), but GroupedAllreduce world.last.0 of float32(6,)",
    }
    assert f"on rank 1 collective 1 of the world group is {expected[name]} on rank 0;" in said, said

step = Step("last", 5)
found = graph_collectives.collectives_of(step.traced(batch, requests))
assert found == {
    "world": ["GroupedAllreduce world.looped.0 of float32(3,)", "GroupedAllreduce world.last.0 of float32(5,)"]
}, found
rank_checks.before_first_step(step, batch, requests, mesh)
# Each of two rounds adds the ones of two ranks; two ranks then add that.
np.testing.assert_array_equal(step(batch, requests), 8.0)
assert step._step.experimental_get_tracing_count() == 1

print("both ranks refused", flush=True)
