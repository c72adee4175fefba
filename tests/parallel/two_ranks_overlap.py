"""What each of two ranks does in `test_overlap`: the first layers' backward pass waits for the last layers' sum.

If gradients did not travel before backward has ended, it would wait in vain.
"""

import time

import tensorflow as tf

from tests.train.test_step import batches
from tftrain.config import flags
from tftrain.config.train import TrainConfig
from tftrain.model.embedding import Embedding
from tftrain.parallel import buckets
from tftrain.parallel.launcher import launch_from_environment
from tftrain.parallel.start import start
from tftrain.run_state import Run
from tftrain.train.step import TrainStep

SECONDS = 30
SIZES = "--num_hidden_layers=2 --hidden_size=16 --num_attention_heads=2 --vocab_size=67 --max_seq_length=12"
LAYOUTS = ("", "--split_opt_state", "--split_grad_accum", "--split_grad_accum --grad_accum_steps=2")

buckets.BUCKET_BYTES = 4000  # So that a small model has many.
mesh = start(launch_from_environment(), cpu_threads=2)
seen: list[bool] = []


def marks():
    """Returns how often each collective has begun or ended, by its name."""
    return {each.name: counter.value for each, counter in mesh.pending._counters.items()}


def await_first_bucket(number):
    """Returns a number as soon as the first bucket's sum has begun and ended, and notes if that is within `SECONDS`."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if marks()["data.gradients.0"] - before >= 2:
            seen.append(True)
            return number
        time.sleep(0.01)
    seen.append(False)
    return number


@tf.custom_gradient
def gate(x):
    """The identity, whose gradient comes when the first bucket has been summed."""

    def gradient(dy):
        # With effects, it would hold up more than what needs its result; without a result, it would be dropped.
        waited = tf.numpy_function(await_first_bucket, [dy[0, 0, 0]], dy.dtype, stateful=False)
        return dy + (waited - dy[0, 0, 0])

    return x, gradient


embed = Embedding.call
Embedding.call = lambda *args: gate(embed(*args))
for layout in LAYOUTS:
    args = f"tftrain.run --synthetic_data --output_dir=unused --global_batch_size=12 {SIZES} {layout}".split()
    run = Run(flags.parse(TrainConfig, args).resolve(2), mesh)
    step = TrainStep(run)
    (batch,) = batches(1, seed=mesh.rank, samples=6)
    step.traced(batch, (0.0,))
    before = marks()["data.gradients.0"]
    assert "data.gradients.1" in marks(), marks()
    seen.clear()
    step(batch)
    assert len(seen) == (2 if "accum_steps" in layout else 1), seen
    assert seen[0], f"{layout or 'not split'}: the first bucket did not travel before backward had ended"
print("the first bucket travels early", flush=True)
