"""One update: gradients of every micro-batch, their sum over ranks, the optimizer.

The loss of a global batch is the masked-LM cross-entropy summed over all its masked tokens and divided by their
number, plus the next-sentence cross-entropy summed over its samples and divided by theirs. Each micro-batch contributes
its sums divided by the *global* counts, so contributions add up, whatever the split into micro-batches and ranks.

The two compiled parts (gradients, update) may be XLA clusters; the collectives between them are not.
"""

from typing import NamedTuple

import tensorflow as tf

from tftrain.config import TrainConfig
from tftrain.model.bert import BertPretrainer
from tftrain.model.losses import LossSums, pretraining_loss_sums
from tftrain.number_formats import DTYPES
from tftrain.ops.dropout import DropoutKey
from tftrain.optim.loss_scale import LossScale
from tftrain.optim.optimizer import Optimizer
from tftrain.parallel import collectives
from tftrain.parallel.mesh import Mesh
from tftrain.run_state import Progress, StepInfo

SUMS = len(LossSums._fields)


class _Gradients(NamedTuple):
    """Gradients of one or more micro-batches: dense ones by variable, and the looked-up rows where they stay sparse."""

    dense: list[tf.Tensor]
    row_ids: tf.Tensor
    rows: tf.Tensor
    sums: tf.Tensor


class TrainStep:
    """The compiled update of a model."""

    def __init__(
        self,
        config: TrainConfig,
        model: BertPretrainer,
        optimizer: Optimizer,
        loss_scale: LossScale,
        progress: Progress,
        mesh: Mesh,
        jit: bool,
    ):
        """Prepares the update; nothing is traced before the first call.

        Args:
            config: resolved; the batches to come are made of micro-batches of its micro_batch_size.
            model: with its variables in the compute dtype.
            optimizer: over the same variables, in the order of `model.named_variables()`.
            loss_scale: the loss is multiplied by it, and the optimizer moves it on.
            progress: counts the updates; its step keys the dropout.
            mesh: the ranks.
            jit: whether gradients and update are XLA clusters.
        """
        self._config, self._model, self._mesh = config, model, mesh
        self._optimizer, self._loss_scale, self._progress = optimizer, loss_scale, progress
        self._variables = list(model.named_variables().values())
        self._word = next(i for i, variable in enumerate(self._variables) if variable is model.embedding.word)
        self._wire = tf.float16 if config.compute.hvd_fp16_compression else tf.float32
        self._split = optimizer.state.split
        # Split, rows can't travel as such: their owners are not all ranks.
        self._sparse = not config.compute.sparse_as_dense and self._split is None
        self._reduce_each = config.parallel.split_grad_accum and self._split is not None
        self._buffer_dtype = tf.as_dtype(DTYPES[config.batch.grad_accum_dtype])
        # With split accumulation, there are collectives in the loop over micro-batches: then XLA gets its body only.
        self._compute_gradients = tf.function(
            self._accumulate, jit_compile=jit and not self._reduce_each, autograph=False
        )
        self._compiled_micro_batch = tf.function(self._micro_batch, jit_compile=jit, autograph=False)
        self._update = tf.function(
            lambda gradients, sums: optimizer.apply(gradients, loss_scale, sums),
            jit_compile=jit and not config.optimizer.optimizer.startswith("fused") and not optimizer.communicates,
            autograph=False,
        )

    @tf.function(autograph=False)
    def __call__(self, batch: dict[str, tf.Tensor], requests: tf.Tensor | tuple = (0.0,)) -> StepInfo:
        """Does one update; a batch of another size is another graph.

        Args:
            batch: this rank's share of the global batch: some times micro_batch_size samples, in order.
            requests: fp32 [any number], what this rank wants all to know.
        """
        with tf.device("CPU:0"):  # The host reads them before the device has done the rest.
            requests = tf.identity(tf.convert_to_tensor(requests, tf.float32))
            requests = collectives.all_reduce(self._mesh.world, requests, "requests", "max")
        data, scale, step = self._mesh.data, self._loss_scale.value, self._progress.step.read_value()
        masked = tf.reduce_sum(batch["masked_lm_weights"])
        masked = collectives.all_reduce(data, masked, "masked_tokens")
        local = self._compute_gradients(batch, step, tf.maximum(masked, 1.0), scale)
        reduced = local.dense if self._reduce_each else self._reduce(local.dense)
        gradients = [tf.cast(gradient, tf.float32) for gradient in reduced]
        if self._sparse:
            gradients = self._add_rows(gradients, local)
        sums, bad_ranks = self._add_up(local.sums)
        info = self._update(gradients, sums)
        self._progress.count(self._samples(batch), sums, info.found_inf, info.is_nan)
        return StepInfo(sums, *info, bad_ranks, requests)

    def _add_up(self, sums: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the loss sums over all ranks, and with them which ranks' own are not finite."""
        data = self._mesh.data
        is_bad = tf.cast(~tf.reduce_all(tf.math.is_finite(sums)), tf.float32)
        both = tf.concat([sums, tf.one_hot(data.rank, data.size, on_value=is_bad)], axis=0)
        both = collectives.all_reduce(data, both, "loss_sums")
        return both[:SUMS], both[SUMS:]

    def _samples(self, batch) -> int:
        """Returns how many samples the global batch has of which `batch` is this rank's share."""
        return batch["input_ids"].shape[0] * self._mesh.data.size

    def _reduce(self, dense: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the sum over ranks: whole tensors; or where state is split, this rank's part of each bucket."""
        if self._split:
            return self._split.reduce(dense, "gradients", self._wire)
        # Backward ends with the embeddings: in reverse, the first bucket is ready first.
        return collectives.all_reduce_sum(self._mesh.data, dense[::-1], "gradients", self._wire)[::-1]

    def _add_rows(self, gradients: list[tf.Tensor], local: _Gradients) -> list[tf.Tensor]:
        """Adds the looked-up rows of all ranks to the word embedding's gradient."""
        data, word = self._mesh.data, self._word
        rows = tf.cast(local.rows, self._wire) if data.size > 1 else local.rows
        ids = collectives.all_gather_rows(data, local.row_ids, "row_ids")
        rows = tf.cast(collectives.all_gather_rows(data, rows, "rows"), tf.float32)
        added = tf.tensor_scatter_nd_add(gradients[word], ids[:, tf.newaxis], rows)
        return [added if index == word else gradient for index, gradient in enumerate(gradients)]

    def _accumulate(self, batch, step, masked_tokens, scale) -> _Gradients:
        """Sums the gradients of this rank's micro-batches in one loop on the device."""
        samples, size = self._samples(batch), self._config.batch.micro_batch_size
        steps = samples // (size * self._mesh.data.size)
        start, _ = self._mesh.data.share(samples)
        if steps == 1:
            return self._micro_gradients(batch, step, tf.constant(start, tf.int64), samples, masked_tokens, scale)

        def body(index, dense, row_ids, rows, sums):
            micro = {
                name: tf.reshape(tensor, [steps, size, *tensor.shape[1:]])[index] for name, tensor in batch.items()
            }
            first = start + tf.cast(index, tf.int64) * size
            new = self._micro_gradients(micro, step, first, samples, masked_tokens, scale)
            dense = [total + tf.cast(each, total.dtype) for total, each in zip(dense, new.dense, strict=True)]
            if self._sparse:
                row_ids, rows = row_ids.write(index, new.row_ids), rows.write(index, new.rows)
            return index + 1, dense, row_ids, rows, sums + new.sums

        buffers = self._optimizer.state.masters if self._reduce_each else self._variables
        zeros = [tf.zeros(buffer.shape, self._buffer_dtype) for buffer in buffers]
        dtype = self._variables[0].dtype
        initial = (
            tf.constant(0),
            zeros,
            tf.TensorArray(tf.int32, steps),
            tf.TensorArray(dtype, steps),
            tf.zeros([SUMS]),
        )
        _, dense, row_ids, rows, sums = tf.while_loop(
            lambda index, *_: index < steps, body, initial, maximum_iterations=steps, parallel_iterations=1
        )
        if not self._sparse:
            return _Gradients(dense, tf.zeros([0], tf.int32), tf.zeros([0, 1]), sums)
        return _Gradients(dense, row_ids.concat(), rows.concat(), sums)

    def _micro_gradients(self, *args) -> _Gradients:
        """Returns what `_micro_batch` does; with split accumulation, this rank's part of the sum over ranks."""
        if not self._reduce_each:
            return self._micro_batch(*args)
        found = self._compiled_micro_batch(*args)
        return found._replace(dense=self._reduce(found.dense))

    def _micro_batch(self, batch, step, first_sample, samples, masked_tokens, scale) -> _Gradients:
        """Returns the gradients of one micro-batch's share of the global loss, times the loss scale."""
        key = DropoutKey(self._config.run.seed, step, first_sample)
        # Made outside the tape, so that the rows' gradient stops at the table and does not reach the variable as well.
        table = tf.identity(self._model.embedding.word) if self._sparse else None
        watched = [*self._variables, table] if self._sparse else self._variables
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(watched)
            sums = pretraining_loss_sums(self._model(batch, dropout=key, lookup_table=table), batch)
            loss = sums.mlm_sum / masked_tokens + sums.nsp_sum / samples
            loss *= scale
        gradients = tape.gradient(loss, watched)
        if not self._sparse:
            return _Gradients(gradients, tf.zeros([0], tf.int32), tf.zeros([0, 1]), tf.stack(sums))
        looked_up = gradients.pop()
        return _Gradients(gradients, tf.cast(looked_up.indices, tf.int32), looked_up.values, tf.stack(sums))
