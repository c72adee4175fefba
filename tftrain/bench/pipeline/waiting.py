"""What each rank does in table `pipeline`: the trainer's engine runs a schedule whose stages wait, not compute.

    horovodrun -np 4 python -m tftrain.bench.pipeline.waiting JSON

The chief prints one line of json, see `measure`. A wait takes the same time on a machine with any number of cores, so
the time of a step shows what the engine adds: transfers, and the calls of compiled functions.
"""

import itertools
import json
import statistics
import sys
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from tftrain.config.parallel import ParallelConfig
from tftrain.parallel import collectives
from tftrain.parallel.launcher import launch_from_environment
from tftrain.parallel.mesh import Mesh
from tftrain.parallel.start import start
from tftrain.schedules import orders, simulation
from tftrain.schedules.activations import RELEASING
from tftrain.schedules.simulation import Event
from tftrain.schedules.table import Kind
from tftrain.train.gradients import Position
from tftrain.train.pipeline import StageGraph
from tftrain.train.stage import Backward, Forward
from tftrain.train.stage_clock import StageClock

WARM_UP = 2
SHAPE = (128, 256)  # of a sample's activations


class WaitingStage:
    """A stage without variables, see `tftrain.train.stage.Stage`, that waits."""

    variables = ()
    task = SimpleNamespace(
        sums=("loss",),
        batch_size=lambda batch: batch["input_ids"].shape[0],
        activation_shape=lambda batch: SHAPE,
        model=SimpleNamespace(dtype="float32"),
    )

    def __init__(self, mesh: Mesh, chunks: int, seconds: Sequence[float]):
        """Divides the waits of a stage among its chunks: of forward, and of the halves of backward."""
        self._mesh, self._chunks = mesh, chunks
        self._forward, self._inputs, self._weights = (each / chunks for each in seconds)

    def forward(self, chunk, inputs, batch, first_sample, position, in_halves) -> Forward:
        """Waits as long as a forward pass takes."""
        received = tf.zeros([self.task.batch_size(batch), *SHAPE]) if inputs is None else inputs
        has_heads = self._mesh.is_last_stage and chunk == self._chunks - 1
        output = _wait(received, self._forward)
        sums = tf.reduce_sum(output)[None] if has_heads else None
        return Forward(output, sums, outputs=None, tape=in_halves, inputs=inputs, taps=[], kernel_inputs=[])

    def backward(self, forward: Forward, upstream: tf.Tensor | None) -> Backward:
        """Waits as long as a backward pass takes, or its first half."""
        seconds = self._inputs if forward.tape else self._inputs + self._weights  # The tape says whether in halves.
        gradient = _wait(forward.output if upstream is None else upstream, seconds)
        return Backward(None if forward.inputs is None else gradient, {0: tf.reduce_sum(gradient)}, [], [gradient])

    def backward_weights(self, chunk: int, backward: Backward) -> dict[int, tf.Tensor]:
        """Waits as long as the second half of a backward pass takes."""
        return {0: tf.reduce_sum(_wait(backward.upstream[0], self._weights))}


def _wait(tensor: tf.Tensor, seconds: float) -> tf.Tensor:
    def sleep(value):
        time.sleep(seconds)
        return value

    waited = tf.numpy_function(sleep, [tensor], tensor.dtype)
    return tf.ensure_shape(waited, tensor.shape)


def measure(settings: dict[str, Any]) -> dict[str, Any] | None:
    """Runs a schedule, which the settings of a row describe, over as many stages as ranks.

    Returns:
        On the chief: `step_ms`, the median of the steps; `step_times_ms` of each; `bubble` in percent, and `held`, the
        most micro-batches (times chunks) that each stage held at a time, both as measured in the last step.
    """
    parallel = ParallelConfig(pipeline_parallel_size=settings["stages"], group_transport="horovod")
    mesh = start(launch_from_environment(), 1, parallel)
    table = orders.table(settings["schedule"], settings["stages"], settings["micro_batches"], settings["chunks"])
    clock, stage = StageClock(), WaitingStage(mesh, table.chunks, settings["seconds"])
    batch = {"input_ids": tf.zeros([table.micro_batches, 1], tf.int32)}

    @tf.function(autograph=False)
    def step(batch):
        position = Position(tf.constant(0, tf.int64), tf.ones([1]), tf.constant(1.0))
        return StageGraph(stage, mesh, table, batch, position, tf.float32, clock).run().sums

    times = []
    for _ in range(WARM_UP + settings["steps"]):
        collectives.gather_numbers(mesh.world, 0.0, "begin")
        begin = time.perf_counter()
        step(batch).numpy()
        times.append(collectives.gather_numbers(mesh.world, time.perf_counter() - begin, "end").max())
    events = clock.events(mesh.pipeline)
    if not mesh.is_chief:
        return None
    counted = [1e3 * seconds for seconds in times[WARM_UP:]]
    return {
        "step_ms": statistics.median(counted),
        "step_times_ms": counted,
        "bubble": 100 * simulation.bubble_share(events),
        "held": most_held(events, settings["stages"]),
    }


def most_held(events: Sequence[Event], stages: int) -> list[int]:
    """Returns for each stage the most forward passes of a step that had begun while their backward had not ended."""
    changes: list[list[tuple[float, int]]] = [[] for _ in range(stages)]
    for stage, action, begin, end in events:
        if action.kind is Kind.FORWARD:
            changes[stage].append((begin, 1))
        elif action.kind in RELEASING:
            changes[stage].append((end, -1))
    return [max(itertools.accumulate(change for _, change in sorted(each)), default=0) for each in changes]


if __name__ == "__main__":
    if found := measure(json.loads(sys.argv[1])):
        print(json.dumps(found), flush=True)
