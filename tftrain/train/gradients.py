"""Computes the gradients of this rank's share of a global batch, one micro-batch after the other.

The loss of each micro-batch is its sums divided by the weights of the whole global batch. So the gradients of all
micro-batches and ranks add up to the gradient of the global batch, however it is split.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla

from tftrain.host import devices
from tftrain.host.units import DTYPES
from tftrain.ops.dropout import DropoutKey
from tftrain.ops.tensors import chunk_by_chunk, wide_dtype
from tftrain.parallel.gradient_reduction import GradientReduction
from tftrain.parallel.mesh import Group
from tftrain.parallel.sparse_rows import SparseRows
from tftrain.state.run_state import Run
from tftrain.tasks.task import Batch, Task
from tftrain.train.device_batches import decoded

# A feature of a batch: the gradient of the loss by the outputs of each sample, where the task compares samples and a
# first pass has computed it, see `tftrain.train.cached_gradients`; fp32 [n, ...].
OUTPUT_GRADIENTS = "output_gradients"


class Gradients(NamedTuple):
    """The result of forward and backward over one or more micro-batches."""

    # One for each variable, different on each rank; or this rank's sum of each bucket, if micro-batches are reduced.
    dense: list[tf.Tensor]
    rows: SparseRows | None  # gradients of the token embedding's looked-up rows; None where they are part of `dense`
    sums: tf.Tensor  # the task's, fp32 [len(task.sums)]


def added(earlier: Gradients, last: Gradients, dtype: tf.DType) -> Gradients:
    """Returns the gradients of some micro-batches and of the last one, added up in a dtype."""
    dense = [
        tf.cast(total, dtype) + tf.cast(each, dtype) for total, each in zip(earlier.dense, last.dense, strict=True)
    ]
    rows = earlier.rows and SparseRows(*(tf.concat(pair, axis=0) for pair in zip(earlier.rows, last.rows, strict=True)))
    return Gradients(dense, rows, earlier.sums + last.sums)


class Position(NamedTuple):
    """The step, loss weights and loss scale of a global batch."""

    step: tf.Tensor  # int64 scalar, the number of the update
    loss_weights: tf.Tensor  # fp32 [losses], of the global batch
    scale: tf.Tensor  # fp32 scalar, the loss scale
    trains: bool = True  # whether backward follows; False: a first pass over the batch, with the dropout of the update


class MicroBatch(NamedTuple):
    """A micro-batch and where it is in the run."""

    features: Batch
    first_sample: tf.Tensor  # int64 scalar, index of its first sample in the global batch
    position: Position | None  # where the global batch is; None in an evaluation, without dropout and backward

    @property
    def trains(self) -> bool:
        """Whether backward follows."""
        return self.position is not None and self.position.trains


def compare(
    task: Task, group: Group, outputs: tf.Tensor, batch: Batch, position: Position
) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes the loss of a task that compares samples; every rank of the data parallel group must call it.

    Args:
        outputs: of all samples of this rank's share of the global batch, fp32 [n, ...].

    Returns:
        The gradient of the loss, times the loss scale, by the outputs; and the task's sums that are losses, with zeros
        for the others, [len(task.sums)]; both of the outputs' dtype.
    """
    sums, gradient = task.compare(outputs, batch, group)
    zeros = dict.fromkeys(task.sums, tf.zeros([], outputs.dtype))
    factor = tf.cast(position.scale / position.loss_weights[0], outputs.dtype)
    return gradient * factor, task.vector(zeros | sums)


def without_gradients(batch: Batch) -> dict[str, tf.Tensor]:
    """Returns the features of a batch that the model reads."""
    return {name: each for name, each in batch.items() if name != OUTPUT_GRADIENTS}


class Accumulation:
    """Adds up the gradients of micro-batches in one loop on the device, which may be an XLA cluster."""

    def __init__(self, run: Run, reduction: GradientReduction):
        """Traces nothing yet; `reduction` sums the gradients of each micro-batch where it says so."""
        self._run, self._reduction = run, reduction
        # With a split, looked-up rows can't be sent as rows, because not every rank owns the rows' gradients.
        self.sends_rows = not run.config.compute.sparse_as_dense and run.optimizer.state.split is None
        self._variables = list(run.task.model.named_variables().values())
        self.buffer_dtype = tf.as_dtype(DTYPES[run.config.batch.grad_accum_dtype])
        # If each micro-batch is reduced, the loop contains collectives. Then XLA compiles only the loop's body.
        jit = run.jit and not reduction.each_micro_batch
        compiled = functools.partial(tf.function, autograph=False)
        self._compiled = compiled(self._accumulate, jit_compile=jit)
        self._compiled_sums = compiled(self._sum_in_program, jit_compile=True)
        self._compiled_micro_batch = compiled(self._micro_batch, jit_compile=run.jit)
        self._compiled_outputs = compiled(self._outputs, jit_compile=run.jit)
        self._compiled_model = compiled(self._run_model, jit_compile=run.jit)

    def __call__(self, batch: Batch, position: Position, but_last: bool = False) -> Gradients:
        """Computes the gradients of this rank's share of a global batch, times the loss scale.

        The share is some times micro_batch_size samples, in order; with `but_last` all but the last ones are computed.
        """
        if self._reduction.in_program:
            return self._compiled_sums(batch, position)
        compute = self._accumulate if self._gathers(batch) else self._compiled
        return compute(batch, position, but_last)

    def outputs(self, batch: Batch, position: Position) -> tf.Tensor:
        """Returns the task's outputs for this rank's share of a global batch, with dropout, [n, K, D]: a first pass."""
        return self._compiled_outputs(batch, position)

    def _outputs(self, batch: Batch, position: Position) -> tf.Tensor:
        size, samples = self._run.config.batch.micro_batch_size, self._run.task.batch_size(batch)
        start = self._run.mesh.data.rank * samples

        def of_micro_batch(first: tf.Tensor) -> list[tf.Tensor]:
            micro = _micro_batch_of(batch, size, first // size)
            return [self._outputs_of(micro, start + tf.cast(first, tf.int64), position)]

        shape = samples, self._run.task.sequences, self._run.config.model.vector_size
        spec = tf.TensorSpec(shape, wide_dtype(self._run.task.model.dtype))
        return chunk_by_chunk(of_micro_batch, size, [spec], self._run.jit and not self._run.shards_weights)[0]

    def _outputs_of(self, batch: Batch, first_sample: tf.Tensor, position: Position) -> tf.Tensor:
        key = DropoutKey(self._run.config.run.seed, position.step, first_sample)
        return self._run_model(batch, key)["outputs"]

    def _run_model(self, batch: Batch, key: DropoutKey) -> dict[str, tf.Tensor]:
        return self._run.task.run_part(self._run.task.model.part, None, decoded(batch), key)

    def _gathers(self, batch: Batch) -> bool:
        """Whether ranks gather outputs between forward and backward of this batch, so that XLA compiles these alone."""
        is_compared = self._run.task.compares_samples and self._run.mesh.data.size > 1
        return is_compared and OUTPUT_GRADIENTS not in batch

    def _accumulate(self, batch: Batch, position: Position, but_last: bool) -> Gradients:
        task, size = self._run.task, self._run.config.batch.micro_batch_size
        samples = task.batch_size(batch)
        steps, start = samples // size, self._run.mesh.data.rank * samples
        if steps - but_last == 1:
            batch = {name: each[:size] for name, each in batch.items()} if but_last else batch
            return self._reduced_micro_batch(batch, tf.constant(start, tf.int64), position)

        def body(index: tf.Tensor, dense: list, rows: list, sums: tf.Tensor) -> tuple:
            micro = _micro_batch_of(batch, size, index)
            first_sample = start + tf.cast(index, tf.int64) * size
            new = self._reduced_micro_batch(micro, first_sample, position)
            dense = [total + tf.cast(each, total.dtype) for total, each in zip(dense, new.dense, strict=True)]
            if rows:
                rows = [array.write(index, each) for array, each in zip(rows, new.rows, strict=True)]
            return index + 1, dense, rows, sums + new.sums

        zeros = [tf.zeros(shape, self.buffer_dtype) for shape in self._buffer_shapes()]
        count = steps - but_last
        row_dtypes = (tf.int32, task.model.token_embedding.table.dtype) if self.sends_rows else ()
        rows = [tf.TensorArray(dtype, count) for dtype in row_dtypes]
        initial = (tf.constant(0), zeros, rows, tf.zeros([len(task.sums)], wide_dtype(task.model.dtype)))
        _, dense, rows, sums = tf.while_loop(
            lambda index, *_: index < count, body, initial, maximum_iterations=count, parallel_iterations=1
        )
        return Gradients(dense, SparseRows(*(array.concat() for array in rows)) if rows else None, sums)

    def _sum_in_program(self, batch: Batch, position: Position) -> Gradients:
        """Returns gradients summed over ranks, while the last micro-batch's backward continues."""
        size, samples = self._run.config.batch.micro_batch_size, self._run.task.batch_size(batch)
        last, earlier = {name: each[-size:] for name, each in batch.items()}, None
        if samples > size:
            found = self._accumulate(batch, position, but_last=True)
            # Else XLA may compute the last micro-batch first, and nothing while the sums travel.
            given = [*found.dense, found.sums], last
            both = xla.optimization_barrier(*tf.nest.flatten(given))
            (*dense, sums), last = tf.nest.pack_sequence_as(given, both)
            earlier = Gradients(dense, None, sums)
        end = (self._run.mesh.data.rank + 1) * samples
        gradients = self._micro_batch(last, tf.constant(end - size, tf.int64), position)
        gradients = added(earlier, gradients, self.buffer_dtype) if earlier else gradients
        return gradients._replace(dense=self._reduction.sum_in_program(gradients.dense))

    def _buffer_shapes(self) -> list[Sequence[int]]:
        if self._reduction.each_micro_batch:
            return [[sum(part.size for part in parts)] for parts in self._reduction.split.slices]
        return [variable.shape for variable in self._variables]

    def _reduced_micro_batch(self, batch: Batch, first_sample: tf.Tensor, position: Position) -> Gradients:
        """Returns the gradients of a micro-batch, summed over ranks if the reduction wants each micro-batch."""
        if not self._reduction.each_micro_batch:
            return self._micro_batch(batch, first_sample, position)
        compute = self._micro_batch if self._gathers(batch) else self._compiled_micro_batch
        gradients = compute(batch, first_sample, position)
        return gradients._replace(dense=self._reduction.sum(gradients.dense))

    def _micro_batch(self, batch: Batch, first_sample: tf.Tensor, position: Position) -> Gradients:
        """Returns the gradients of one micro-batch's share of the global loss, times the loss scale."""
        task = self._run.task
        key = DropoutKey(self._run.config.run.seed, position.step, first_sample)
        watched, rows, upstream = self._variables, None, batch.get(OUTPUT_GRADIENTS)
        model, batch = self._compiled_model if self._gathers(batch) else self._run_model, without_gradients(batch)
        if self.sends_rows:
            rows = task.model.token_embedding.rows(decoded(batch)["input_ids"])
            watched, batch = [*watched, rows.values], {**batch, "token_rows": rows.values}
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(watched)
            found = model(batch, key)
            is_loss = not task.compares_samples
            loss = task.loss(found, position.loss_weights) * position.scale if is_loss else found["outputs"]
        sums = task.vector(found)
        if upstream is None and not is_loss:
            upstream, compared = compare(task, self._run.mesh.data, loss, batch, position)
            sums += compared
        # Without a tied output layer, all gradients of the table are rows.
        unconnected = tf.UnconnectedGradients.ZERO if self.sends_rows else tf.UnconnectedGradients.NONE
        gradients = tape.gradient(loss, watched, upstream, unconnected)
        if self._run.jit and devices.has_gpu():
            gradients = [each if each.shape.rank > 1 else _as_intermediate(each, position.step) for each in gradients]
        if self.sends_rows:
            rows = SparseRows(rows.ids, tf.reshape(gradients.pop(), [rows.ids.shape[0], -1]))
        return Gradients(gradients, rows, sums)


def _as_intermediate(gradient: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
    """Returns an equal gradient, which XLA copies from one among its own intermediates.

    Fused ops write the gradients of norms and biases. XLA records a call of one into a CUDA graph again whenever the
    address of an output changes, as that of a step's results may. It does not know that no step is negative.
    """
    return tf.where(step >= 0, gradient, tf.zeros_like(gradient))


def _micro_batch_of(batch: Batch, size: int, index: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns a micro-batch of `size` samples of this rank's share of a global batch."""
    return {name: tf.reshape(each, [-1, size, *each.shape[1:]])[index] for name, each in batch.items()}
