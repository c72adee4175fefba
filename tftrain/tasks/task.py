"""The interface between a model and the rest: loop, step, evaluation and reports use a model through its `Task` only.

A task names the sums of a batch, and defines each loss or other mean as one sum divided by another. The means of
micro-batches cannot be averaged, because micro-batches have different weights. So the step adds the sums over
micro-batches and ranks, and divides by the weights of the whole global batch. The loss is exact however the global
batch is split.
"""

import abc
import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tftrain.checkpoint.piece import Piece
from tftrain.config.train import DataConfig
from tftrain.input.source import ExampleSource
from tftrain.labelled.scorer import Scorer
from tftrain.model.part import ModelPart
from tftrain.ops.dropout import DropoutKey

Batch = Mapping[str, tf.Tensor]


class Mean(NamedTuple):
    """A mean that a run reports: one sum of a batch divided by another.

    Attributes:
        name: in metrics.jsonl; "eval_" is put in front of it for the held-out split.
        label: in a line of the log.
        title: in the result of an evaluation.
        total, weight: names of the two sums.
        is_loss: whether it is minimised; the loss of a run is the sum of these means. In nats.
        in_training, in_evaluation: where it is reported.
    """

    name: str
    label: str
    title: str
    total: str
    weight: str
    is_loss: bool = False
    in_training: bool = True
    in_evaluation: bool = True

    @property
    def short_label(self) -> str:
        """The label of a loss without that word, for a line with several of them."""
        return self.label.removesuffix(" loss")


class Contents(NamedTuple):
    """What the rows of a batch hold.

    Attributes:
        samples: number of the examples, of which a row may have several.
        tokens: number of the tokens that are no padding.
        positions: number of all tokens, padding included.
        flops: floating point operations of forward and backward.
    """

    samples: int
    tokens: int
    positions: int
    flops: float


class Task(abc.ABC):
    """A model with its data, its losses and its metrics.

    Attributes:
        sums: names of the sums of a batch, in the order of the vector that checkpoints hold; one is "examples", the
            number of samples.
        means: what is reported of them; the first one is the loss that plots and progress bars show.
    """

    sums: tuple[str, ...]
    means: tuple[Mean, ...]

    @property
    def losses(self) -> tuple[Mean, ...]:
        """The means whose sum is minimised."""
        return tuple(mean for mean in self.means if mean.is_loss)

    @abc.abstractmethod
    def named_variables(self) -> dict[str, tf.Variable]:
        """Returns global name -> variable of this rank, from the input to the output."""

    @abc.abstractmethod
    def initial_value(self, name: str) -> tf.Tensor:
        """Returns the initial value of this rank's part of a variable, fp32, before it was rounded to its dtype.

        Call it before the first update. It may compute the value again, so that nothing keeps a copy.

        Args:
            name: the variable's global name.
        """

    def copies(self) -> dict[str, tf.Variable]:
        """Returns global name -> variable of this rank that another pipeline stage owns and updates."""
        return {}

    def kernels(self, part: ModelPart) -> list[tf.Variable]:
        """Returns the kernels of a part of this rank whose gradients can be computed later, see `weight_gradients`."""
        return []

    @property
    def shared_variable(self) -> tf.Variable | None:
        """The variable of this rank that the first and the last pipeline stage share, if there is one."""
        return None

    @property
    @abc.abstractmethod
    def dtype(self) -> str:
        """Name of the dtype of variables and activations."""

    @abc.abstractmethod
    def activation_shape(self, batch: Batch) -> tuple[int, ...]:
        """Returns the shape of one sample's activations between two blocks on this rank; they travel between stages."""

    @property
    @abc.abstractmethod
    def pieces(self) -> dict[str, Piece]:
        """Global name -> the piece of the whole tensor that this rank's variable or copy holds."""

    @property
    def summed(self) -> Collection[str]:
        """Names of variables whose gradients on the tensor parallel ranks are parts of a sum: each has some tokens."""
        return ()

    @property
    def lookup_variable(self) -> tf.Variable | None:
        """The table in which input tokens are looked up, if its gradient can be a list of rows; else None."""
        return None

    @abc.abstractmethod
    def open_source(self, data: DataConfig, split: str, seed: int) -> ExampleSource:
        """Opens the examples of a split, "train" or "eval"."""

    @abc.abstractmethod
    def has_held_out(self, data: DataConfig) -> bool:
        """Whether there is a held-out split."""

    @abc.abstractmethod
    def loss_weights(self, batch: Batch) -> tf.Tensor:
        """Returns the weights of a batch that its losses are divided by, fp32 [len(losses)], without computing it."""

    @abc.abstractmethod
    def compute(
        self, batch: Batch, dropout: DropoutKey | None = None, lookup_table: tf.Tensor | None = None
    ) -> dict[str, tf.Tensor]:
        """Runs the model on a micro-batch.

        Args:
            batch: of b samples; every feature has b rows.
            dropout: what the dropout masks depend on; None is inference.
            lookup_table: the value of `lookup_variable`, read before the gradient tape starts. If given, its gradient
                is `tf.IndexedSlices`, and the variable's is that of its other uses alone.

        Returns:
            The sums by name, scalars in fp32 (fp64 in a float64 model). The totals of the losses have gradients. A task
            with a scorer adds "outputs", [b, *output_shape]: what it predicts for each sample.
        """

    @abc.abstractmethod
    def run_part(
        self,
        part: ModelPart,
        x: tf.Tensor | None,
        batch: Batch,
        dropout: DropoutKey | None = None,
        lookup_table: tf.Tensor | None = None,
    ) -> tf.Tensor | dict[str, tf.Tensor]:
        """Runs some of the layers that this rank holds: what a pipeline stage does with a micro-batch.

        Args:
            part: the layers.
            x: activations of the layers before, [b, S, H]; None if the part has the embedding.
            batch, dropout, lookup_table: see `compute`.

        Returns:
            The activations behind the part, [b, S, H]; the sums, as `compute`, if the part has the heads.
        """

    def encode(self, batch: Batch) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Runs the model without its heads, in inference.

        Args:
            batch: of b samples, with the features that the model reads.

        Returns:
            The hidden states, [b, S, H], and the pooled first token, [b, H]; None if the model has no pooler. Both are
            in the dtype of the activations.
        """
        raise NotImplementedError(f"{type(self).__name__} has no hidden states")

    def text_tokens(self, batch: Mapping[str, np.ndarray]) -> np.ndarray | None:
        """Returns the tokens of a batch's text, int [n], without padding and special tokens: for the entropy.

        None if the task does not predict tokens, and the entropy says nothing.
        """
        return None

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of what the task predicts for one sample; only of a task with a scorer."""
        raise NotImplementedError(f"{type(self).__name__} has no outputs to score")

    def scorer(self, source: ExampleSource) -> Scorer | None:
        """Returns what judges the predictions for a split; None if the means say all."""
        return None

    @property
    @abc.abstractmethod
    def vocab_size(self) -> int:
        """The number of different tokens."""

    @abc.abstractmethod
    def step_flops(self, samples: int) -> float:
        """Returns the floating point operations of forward and backward over so many samples."""

    @abc.abstractmethod
    def description(self) -> tuple[str, ...]:
        """Returns the sizes of the model, in words for the log."""

    @abc.abstractmethod
    def implementations(self) -> str:
        """Returns one line for the log: which ops of the model are fused."""

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
        """Returns the part of the global batch's loss that comes from a micro-batch.

        Args:
            sums: of the micro-batch, from `compute`.
            weights: [len(losses)], `loss_weights` summed over the global batch.

        Returns:
            A scalar; over all micro-batches and ranks it adds up to the loss.
        """
        shares = [sums[mean.total] / weight for mean, weight in zip(self.losses, tf.unstack(weights), strict=True)]
        loss = shares[0]
        for share in shares[1:]:
            loss += share
        return loss

    @classmethod
    def mean_values(cls, vector: Sequence[float]) -> dict[str, float]:
        """Returns each of `means` by name, and their "loss", from a vector of sums; NaN where a weight is zero."""
        sums = dict(zip(cls.sums, vector, strict=True))
        values = {
            mean.name: float(sums[mean.total] / sums[mean.weight]) if sums[mean.weight] else math.nan
            for mean in cls.means
        }
        return values | {"loss": math.fsum(values[mean.name] for mean in cls.means if mean.is_loss)}
