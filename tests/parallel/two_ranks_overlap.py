"""What each of two ranks does in `test_overlap`: the first layers' backward pass waits for the last layers' sum.

If gradients did not travel before backward has ended, it would wait in vain.
"""

import sys
import time
from collections import Counter

import tensorflow as tf
from tensorflow.python.eager import context

from tests.train.test_step import batches
from tftrain.cli import flags
from tftrain.config.train import TrainConfig
from tftrain.model.embedding import Embedding
from tftrain.optim import state_split
from tftrain.parallel import gradient_reduction
from tftrain.parallel.launcher import launch_from_environment
from tftrain.parallel.start import start
from tftrain.state.new_run import new_run
from tftrain.train.stage import CompiledStage
from tftrain.train.step import TrainStep

SECONDS = 30
SIZES = "--num_hidden_layers=2 --hidden_size=16 --num_attention_heads=2 --vocab_size=67 --max_seq_length=12"
LAYOUTS = ("", "--split_opt_state", "--split_grad_accum", "--split_grad_accum --grad_accum_steps=2")
SEGMENTS = (
    "--backward_segments=2 --jit_compile=true",
    "--backward_segments=2 --jit_compile=true --grad_accum_steps=3 --sparse_as_dense=false",
    "--backward_segments=2 --grad_accum_steps=2 --split_opt_state",
    "--backward_segments=2 --jit_compile=true --split_grad_accum",
)

gradient_reduction.BUCKET_BYTES = state_split.BUCKET_BYTES = 4000  # So that a small model has many.
mesh = start(launch_from_environment(), cpu_threads=2)
seen: list[bool] = []
before: int | None = None


def marks():
    """Returns how often the collectives of each name have begun or ended; those of several kinds may share one."""
    found = Counter()
    for each, counter in mesh.pending._counters.items():
        found[each.name] += counter.value
    return found


def await_first_bucket(number):
    """Returns a number as soon as the first bucket's sum has begun and ended, and notes if that is within `SECONDS`."""
    end = time.monotonic() + SECONDS * (before is not None)
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

    return x, delayed


def delayed(dy):
    """Returns a gradient when the first bucket has been summed."""
    # With effects, it would hold up more than what needs its result; without a result, it would be dropped.
    waited = tf.numpy_function(await_first_bucket, [dy[0, 0, 0]], dy.dtype, stateful=False)
    return dy + (waited - dy[0, 0, 0])


def assert_sums_begin_before_the_next_segment(metadata):
    """Asserts that the first segment's sum is in the stream before the next backward pass can be, as they run."""
    (graph,) = (each for each in metadata.partition_graphs if any(node.op == "TftrainCount" for node in each.node))
    nodes = {node.name: node for node in graph.node}
    segments = [name for name, node in nodes.items() if node.op in ("XlaLaunch", "StatefulPartitionedCall")]
    sums = [name for name, node in nodes.items() if "gradients.0" in name and node.op != "TftrainCount"]
    counts = {given.split(":")[0].lstrip("^") for name in sums for given in nodes[name].input}
    counts = {name for name in counts if nodes[name].op == "TftrainCount"}
    assert counts, f"no counter before the sum: {sums}"
    before = {name: ancestors(name, nodes) for name in segments}
    waiting = [name for name, found in before.items() if counts & found and found.isdisjoint(sums)]
    assert len(waiting) == 1, {name: counts & found for name, found in before.items()}


def ancestors(name, nodes):
    """Returns the names of all nodes that a node of a graph waits for."""
    found, waiting = set(), [name]
    while waiting:
        for given in nodes[waiting.pop()].input:
            given = given.lstrip("^").split(":")[0]
            if given not in found:
                found.add(given)
                waiting.append(given)
    return found


embed, backward = Embedding.call, CompiledStage.backward
first = -1 if sys.argv[1] == "last" else 0
for layout in (*LAYOUTS[first:], *SEGMENTS[first:]):
    in_segments = layout in SEGMENTS
    # Between two clusters of XLA, or within what is none.
    Embedding.call = embed if in_segments else lambda *args: gate(embed(*args))
    CompiledStage.backward = lambda stage, made, dy: backward(stage, made, dy if dy is None else delayed(dy))
    args = f"tftrain.run --synthetic_data --output_dir=unused --global_batch_size=12 {SIZES} {layout}".split()
    run = new_run(flags.parse(TrainConfig, args).resolve(2), mesh)
    step = TrainStep(run)
    (batch,) = batches(1, seed=mesh.rank, samples=6)
    before = None
    context.context().enable_run_metadata()
    step(batch)  # Waits for nothing: XLA compiles, and that takes each rank another time.
    metadata = context.context().export_run_metadata()
    context.context().disable_run_metadata()
    if in_segments:
        assert_sums_begin_before_the_next_segment(metadata)
    before = marks()["data.gradients.0"]
    assert "data.gradients.1" in marks(), marks()
    seen.clear()
    step(batch)
    assert len(seen) == (2 if layout == LAYOUTS[-1] else 1), seen
    assert seen[0], f"{layout or 'not split'}: the first bucket did not travel before backward had ended"
print("the first bucket travels early", flush=True)
