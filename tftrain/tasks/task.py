"""What a run optimises: a transformer, or a part of it, on this rank, with its data, its losses and its metrics.

A task names the sums of a batch, and defines each loss or other mean as one sum divided by another. The means of
micro-batches cannot be averaged, because micro-batches have different weights. So the step adds the sums over
micro-batches and ranks, and divides by the weights of the whole global batch. The loss is exact however the global
batch is split.
"""

import abc
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tftrain.architecture import flops
from tftrain.architecture.describe import describe, pretrained
from tftrain.config import phases
from tftrain.config.fine_tuning import scores_of
from tftrain.config.train import TrainConfig
from tftrain.host import devices
from tftrain.host.units import DTYPES
from tftrain.model import implementations
from tftrain.model.checkpointing import Checkpointing
from tftrain.model.parameters import InitialValues
from tftrain.model.part import ModelPart
from tftrain.model.registry import model_class
from tftrain.model.transformer import Transformer
from tftrain.model.weight_gradients import Deferred
from tftrain.ops.dropout import DropoutKey
from tftrain.ops.tensors import Batch
from tftrain.parallel.mesh import Group, Mesh
from tftrain.parallel.tensor import TensorRanks

Sums = dict[str, tf.Tensor]  # sums of a batch by the names in `Task.sums`; perhaps with "outputs", see `Task.compute`


class Mean(NamedTuple):
    """A mean that a run reports: one sum of a batch divided by another."""

    name: str  # in metrics.jsonl; "eval_" is put before it for the held-out split
    label: str  # in a line of the log
    title: str  # in the result of an evaluation
    total: str  # name of the first sum
    weight: str  # name of the second sum
    is_loss: bool = False  # whether it is minimised; the loss of a run is the sum of these means. In nats
    in_training: bool = True  # where it is reported
    in_evaluation: bool = True

    @property
    def short_label(self) -> str:
        """The label of a loss without that word, for a line with several of them."""
        return self.label.removesuffix(" loss")


class Contents(NamedTuple):
    """What the rows of a batch hold."""

    samples: int  # number of the examples, of which a row may have several
    tokens: int  # number of the tokens that are not padding
    positions: int  # number of all tokens, padding included
    flops: float  # floating point operations of forward and backward


class Task(abc.ABC):
    """A model with its data, its losses and its metrics."""

    # Names of the sums of a batch, in the order of the vector that checkpoints hold; one is "examples", the number of
    # samples.
    sums: tuple[str, ...]
    means: tuple[Mean, ...]  # what is reported of them; the first one is the loss that plots and progress bars show
    config: TrainConfig  # the flags of the run, or of the phase that runs, for which the model is the same
    model: Transformer  # this rank's part of it
    sequences: int = 1  # in a sample; the model reads each by itself
    # Whether the loss compares all samples of the global batch, by the vectors that are the outputs; see `compare`.
    compares_samples: bool = False
    loss_name: str = "the loss"  # in a message

    def __init__(
        self, config: TrainConfig, mesh: Mesh, part: ModelPart | None = None, initial: InitialValues | None = None
    ):
        """Builds the model, whose variables are those of `initial`, or drawn where it lacks them.

        `config` is resolved, with the sizes that the data gives. `part` has the layers of this rank, by default all.
        """
        self.config, gpu = config, devices.has_gpu()
        self.source_names = phases.source_names(phases.read(config.data, config.batch))
        for name in self.source_names:
            of_all = self.means[0]._asdict() | {"is_loss": False, "in_evaluation": False}
            own = {field: f"{of_all[field]}/{name}" for field in ("name", "title", "total", "weight")}
            self.means += (Mean(**of_all | own),)
            self.sums += (own["total"], own["weight"])
        dtype, self._attention = DTYPES[config.compute.precision], config.attention(gpu)
        resolved = implementations.resolve_implementations(config.model, dtype, gpu, self._attention)
        self.attention_core = resolved.attn_impl
        self.model = model_class(config.model)(
            resolved,
            dtype,
            config.run.seed,
            Checkpointing(config.compute.activation_checkpointing, config.compiles(gpu)),
            TensorRanks(mesh.tensor, config.parallel.sequence_parallel, config.compiles(gpu)),
            part,
            initial,
            config.shards_weights(mesh.split.size),
        )

    @property
    def losses(self) -> tuple[Mean, ...]:
        """The means whose sum is minimised."""
        return tuple(mean for mean in self.means if mean.is_loss)

    @abc.abstractmethod
    def loss_weights(self, batch: Batch) -> tf.Tensor:
        """Returns the weights of a batch that its losses are divided by, fp32 [len(losses)], without computing it."""

    def compute(self, batch: Batch, dropout: DropoutKey | None = None) -> Sums:
        """Runs the whole model on a micro-batch.

        Args:
            batch: of b samples; every feature has b rows.
            dropout: what the dropout masks depend on; None is inference.

        Returns:
            The sums by name, scalars in fp32 (fp64 in a float64 model). The totals of the losses have gradients. A task
            with a scorer adds "outputs", fp32 [b, ...]: what it predicts for each sample.
        """
        return self.run_part(self.model.part, None, batch, dropout)

    def run_part(
        self,
        part: ModelPart,
        x: tf.Tensor | None,
        batch: Batch,
        dropout: DropoutKey | None = None,
        deferred: Deferred | None = None,
    ) -> tf.Tensor | Sums:
        """Runs some of the layers that this rank holds: what a pipeline stage does with a micro-batch, see `compute`.

        Args:
            part: the layers.
            x: activations of the layers before, [b, S, H]; None if the part has the embedding.
            deferred: leaves the gradients of kernels for later; None: backward computes all gradients at once.

        Returns:
            The activations after the part, [b, S, H]; the sums, as `compute`, if the part has the heads.
        """
        if part.embedding:
            x = self.model.embedding(batch, dropout)
        x = self.model.run_blocks(x, batch, dropout, part.blocks, deferred)
        return self.loss_sums(x, batch, dropout, deferred) if part.heads else x

    @abc.abstractmethod
    def loss_sums(self, x: tf.Tensor, batch: Batch, dropout: DropoutKey | None, deferred: Deferred | None) -> Sums:
        """Returns what `compute` does, given the residual stream after the last block, [b, S, H]; see `run_part`."""

    def compare(
        self, vectors: tf.Tensor, batch: Batch, group: Group, trains: bool = True
    ) -> tuple[Sums, tf.Tensor | None]:
        """Computes the losses that compare samples; the sums of `compute` have zeros in their place.

        Args:
            vectors: the outputs of this rank's samples of the global batch, fp32 or fp64 [n, ...].
            batch: the features of these samples.
            group: the ranks that share the global batch.
            trains: whether the gradient is computed.

        Returns:
            The sums over this rank's samples, by name; and the gradient of the loss's total over the global batch with
            respect to the vectors, None without training.
        """
        raise NotImplementedError

    def of_sources(self, entropy: tf.Tensor, weights: tf.Tensor, batch: Batch) -> Sums:
        """Returns the sums of each source, given all losses, [b] or [b, n]; zeros for a batch without `source`."""
        if not self.source_names:
            return {}
        entropy, weights = (tf.reshape(each, [tf.shape(each)[0], -1]) for each in (entropy, weights))
        weights, count = tf.cast(weights, entropy.dtype), len(self.source_names)
        of_rows = tf.reduce_sum(tf.cast(tf.stack([entropy * weights, weights], axis=1), tf.float64), axis=2)
        rows = tf.one_hot(batch.get("source", tf.fill(tf.shape(entropy)[:1], -1)), count, dtype=tf.float64)
        sums = tf.cast(tf.linalg.matmul(rows, of_rows, transpose_a=True), entropy.dtype)
        return dict(zip(self.sums[-2 * count :], tf.unstack(tf.reshape(sums, [-1])), strict=True))

    def activation_shape(self, batch: Batch) -> tuple[int, ...]:
        """Returns the shape of one sample's activations between two blocks on this rank; they travel between stages."""
        return self._activations(batch["input_ids"].shape[1])

    def _activations(self, length: int) -> tuple[int, int]:
        first, end = self.model.ranks.own_tokens(length)
        return end - first, self.config.model.hidden_size

    def text_tokens(self, batch: Mapping[str, np.ndarray]) -> np.ndarray | None:
        """Returns the tokens of a batch's text, int [n], without padding and special tokens: for the unigram entropy.

        Returns None if the task does not predict tokens, so that the entropy says nothing.
        """
        return None

    @property
    def scored(self) -> tuple[str, ...]:
        """Names of the scores of its scorer; higher is better, the first chooses the best checkpoint."""
        return scores_of(self.config.fine_tuning, self.config.model.task)

    def description(self) -> tuple[str, ...]:
        """Returns the sizes of the model, in words for the log."""
        model = self.config.model
        return (
            f"{model.num_hidden_layers} layers x {model.hidden_size}",
            f"{model.num_attention_heads} heads",
            f"vocabulary of {model.vocab_size}",
            f"{describe(model).parameters / 1e6:.1f}M parameters",
        )

    def implementations(self) -> str:
        """Returns one line for the log: which ops of the model are fused."""
        config, gpu = self.config, devices.has_gpu()
        return implementations.describe(config.model, self.model.dtype, gpu, self._attention)

    def step_flops(self, samples: int) -> float:
        """Returns the floating point operations of forward and backward over so many samples."""
        data, model = self.config.data, pretrained(self.config.model)
        return flops.step(model, data.max_seq_length, data.max_predictions_per_seq or 0, samples * self.sequences)

    def batch_flops(self, batch: Batch) -> float:
        """Returns the floating point operations of forward and backward over a batch."""
        return self.step_flops(self.batch_size(batch))

    def batch_size(self, batch: Batch) -> int:
        """Returns the number of samples of a batch."""
        return next(iter(batch.values())).shape[0]

    def contents(self, batch: Batch) -> Contents:
        """Returns what is in the rows of a batch, whose tensors have values."""
        packed, mask = batch.get("sequence_weights"), batch.get("input_mask")
        positions = int(np.prod(batch["input_ids"].shape))
        return Contents(
            samples=self.batch_size(batch) if packed is None else int(np.sum(packed)),
            tokens=positions if mask is None else int(np.sum(mask)),
            positions=positions,
            flops=self.batch_flops(batch),
        )

    def vector(self, sums: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Returns the sums as one vector, [len(self.sums)]."""
        return tf.stack([sums[name] for name in self.sums])

    def loss(self, sums: Mapping[str, tf.Tensor], weights: tf.Tensor) -> tf.Tensor:
        """Returns the part of the global batch's loss that comes from a micro-batch with these sums, a scalar.

        Over all micro-batches and ranks, the parts add up to the loss. `weights`, [len(losses)], are the `loss_weights`
        summed over the global batch.
        """
        shares = [sums[mean.total] / weight for mean, weight in zip(self.losses, tf.unstack(weights), strict=True)]
        return sum(shares[1:], shares[0])

    def mean_values(self, vector: Sequence[float]) -> dict[str, float | None]:
        """Returns each of `means` by name, and their "loss", from a vector of sums; None where a weight is zero."""
        sums = dict(zip(self.sums, vector, strict=True))
        values = {
            mean.name: float(sums[mean.total] / sums[mean.weight]) if sums[mean.weight] else None
            for mean in self.means
            if sums[mean.weight] or "/" not in mean.name  # A source without samples has no mean.
        }
        losses = [values[mean.name] for mean in self.means if mean.is_loss and values[mean.name] is not None]
        return values | {"loss": math.fsum(losses) if losses else None}


def is_best(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Whether a label, int32, has the largest logit of the last axis; in int64, as a GPU compares int32 on the host."""
    return tf.equal(tf.argmax(logits, axis=-1), tf.cast(labels, tf.int64))
