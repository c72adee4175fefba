"""Batches that are on the device before their step, so that a GPU never waits for the host's next batch.

What a step takes from the host, TensorFlow copies when the step is called, and the copy waits for all that the GPU has
been given to compute. The host could launch a step only after the one before has ended, and the GPU would have nothing
to do until then. So a thread copies each batch, and the sum of its loss weights over the ranks. It begins before the
call of the step two before, and such a copy has ended when that step has, while the step between the two computes.

TensorFlow keeps the int32 arguments of a function on the host. Here they are uint32 of the same bits, until `decoded`
in what XLA compiles.
"""

import queue
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import NamedTuple

import tensorflow as tf

from tftrain.host import devices
from tftrain.parallel import collectives
from tftrain.parallel.mesh import Group
from tftrain.tasks.task import Batch, Task

STEPS_AHEAD = 2


class DeviceBatch(NamedTuple):
    """This rank's share of a global batch on its device."""

    features: Batch  # with uint32 in place of int32
    loss_weights: tf.Tensor  # sums over the global batch, fp32 [losses]


class DeviceBatches:
    """An iterator over batches, each with its copy on a device.

    Every rank must take as many batches, because the ranks add their loss weights.
    """

    def __init__(self, batches: Iterator[Batch], task: Task, data: Group, device: str):
        """Starts the thread, which reads this rank's batches too; the ranks of `data` share a global batch."""
        self._batches, self._task, self._device = batches, task, device
        # As a graph: Horovod gives all eager sums one name, and would add this one to another one of the main thread.
        self._sum = tf.function(lambda own: collectives.all_reduce(data, own, "loss_weights"), autograph=False)
        self._ahead: deque[Future] = deque()
        self._wanted: queue.SimpleQueue[Future | None] = queue.SimpleQueue()
        # A daemon: a collective that waits for a rank that is gone must not hold up the end of the process.
        threading.Thread(target=self._work, name="batches", daemon=True).start()

    def __iter__(self) -> "DeviceBatches":
        return self

    def __next__(self) -> tuple[Batch, DeviceBatch]:
        """Returns the next batch and its copy; raises what reading that batch has raised."""
        while len(self._ahead) <= STEPS_AHEAD:
            self._ahead.append(Future())
            self._wanted.put(self._ahead[-1])
        return self._ahead.popleft().result()

    def close(self) -> None:
        """Waits until the batches ahead are there, as other ranks may wait for their loss weights, and drops them."""
        for future in self._ahead:
            future.exception()
        self._ahead.clear()
        self._wanted.put(None)

    def _work(self) -> None:
        while future := self._wanted.get():
            try:
                future.set_result(self._with_copy(next(self._batches)))
            except BaseException as error:
                future.set_exception(error)

    def _with_copy(self, batch: Batch) -> tuple[Batch, DeviceBatch]:
        with tf.device("CPU:0"):
            weights = self._sum(self._task.loss_weights(batch))
            encoded = {
                name: tf.bitcast(each, tf.uint32) if each.dtype == tf.int32 else each for name, each in batch.items()
            }
        with tf.device(self._device):
            return batch, DeviceBatch(*tf.nest.map_structure(tf.identity, (encoded, weights)))


def decoded(batch: Batch) -> Batch:
    """Returns a batch as the model reads it, with int32 in place of uint32."""
    return {name: tf.bitcast(each, tf.int32) if each.dtype == tf.uint32 else each for name, each in batch.items()}


def device_of_batches(compiles_whole: bool) -> str | None:
    """Returns the device that takes its batches ahead: a GPU, if XLA compiles all of what it computes; else None.

    Outside of XLA's clusters, operations on int32 run on the host.
    """
    return "GPU:0" if compiles_whole and devices.has_gpu() else None
