"""BERT's pre-training (Devlin et al., arXiv 1810.04805): masked words and the next sentence.

The loss is the cross-entropy summed over all masked words of the global batch and divided by their number, plus that of
the next-sentence predictions divided by the number of samples.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tftrain import devices
from tftrain.checkpoint.piece import Piece
from tftrain.config import DataConfig, TrainConfig
from tftrain.data.manifest import read_manifest
from tftrain.data.source import ExampleSource, open_source
from tftrain.model import implementations
from tftrain.model.bert import BertPretrainer, Outputs
from tftrain.model.checkpointing import Checkpointing
from tftrain.model.embedding import SlicedLogits, sliced_cross_entropy
from tftrain.number_formats import DTYPES
from tftrain.ops.dropout import DropoutKey
from tftrain.parallel.mesh import Mesh
from tftrain.plan import flops, parameters
from tftrain.tasks.task import Batch, Mean, Stages, Task


class LossSums(NamedTuple):
    """Sums over a micro-batch, scalars in fp32 (fp64 for a float64 model); logarithms are natural.

    Attributes:
        mlm_sum: cross-entropy of the masked words, weighted.
        mlm_weight: weights of the masked words.
        mlm_correct: weights of the masked words whose best prediction is right.
        nsp_sum: cross-entropy of the sentence pairs, weighted.
        nsp_correct: weights of the pairs that are predicted right.
        examples: weights of the pairs; without weights, their number.
    """

    mlm_sum: tf.Tensor
    mlm_weight: tf.Tensor
    mlm_correct: tf.Tensor
    nsp_sum: tf.Tensor
    nsp_correct: tf.Tensor
    examples: tf.Tensor


class BertPretraining(Task):
    """A BERT encoder with its two heads; its sums are `LossSums`.

    Attributes:
        model: this rank's part of the encoder and its heads.
    """

    sums = LossSums._fields
    means = (
        Mean("mlm_loss", "lm loss", "masked-LM loss", "mlm_sum", "mlm_weight", is_loss=True),
        Mean("nsp_loss", "nsp loss", "next-sentence loss", "nsp_sum", "examples", is_loss=True, in_evaluation=False),
        Mean("mlm_accuracy", "lm accuracy", "masked-LM accuracy", "mlm_correct", "mlm_weight"),
        Mean("nsp_accuracy", "nsp accuracy", "next-sentence accuracy", "nsp_correct", "examples", in_training=False),
    )

    def __init__(self, config: TrainConfig, mesh: Mesh):
        """Builds the model with its initial weights; `config` is resolved and has the sizes that the data gives."""
        self._config, gpu = config, devices.has_gpu()
        dtype = DTYPES[config.compute.precision]
        self.model = BertPretrainer(
            implementations.resolve_implementations(config.model, dtype, gpu),
            config.model.vocab_size,
            dtype,
            config.run.seed,
            Checkpointing(config.compute.activation_checkpointing, config.compiles(gpu)),
            mesh.tensor,
        )

    def named_variables(self) -> dict[str, tf.Variable]:
        """Returns global name -> variable of this rank, from the embedding to the heads."""
        return self.model.named_variables()

    def initial_value(self, name: str) -> tf.Tensor:
        """Returns the initial value of this rank's part of a variable, fp32, before it was rounded."""
        return self.model.initial_value(name)

    @property
    def pieces(self) -> dict[str, Piece]:
        """Global name -> the piece of the whole tensor that this rank's variable holds."""
        return self.model.pieces

    @property
    def lookup_variable(self) -> tf.Variable:
        """The word embedding."""
        return self.model.embedding.word

    def open_source(self, data: DataConfig, split: str, seed: int) -> ExampleSource:
        """Opens the examples of a split, "train" or "eval"."""
        return open_source(data, split, self.vocab_size, seed)

    def has_held_out(self, data: DataConfig) -> bool:
        """Whether the data has a held-out split."""
        if data.data_dir:
            return read_manifest(data.data_dir).examples("eval") > 0
        return data.synthetic_data or data.eval_files is not None

    def loss_weights(self, batch: Batch) -> tf.Tensor:
        """Returns the weights of the masked words and of the sentence pairs, fp32 [2]."""
        pairs = tf.cast(self.batch_size(batch), tf.float32)
        return tf.stack([tf.reduce_sum(batch["masked_lm_weights"]), pairs])

    def compute(
        self, batch: Batch, dropout: DropoutKey | None = None, lookup_table: tf.Tensor | None = None
    ) -> dict[str, tf.Tensor]:
        """Runs the model on a micro-batch, see `Task.compute`."""
        return pretraining_loss_sums(self.model(batch, dropout=dropout, lookup_table=lookup_table), batch)._asdict()

    def stages(self) -> Stages:
        """Returns the embedding, each block, and both heads with their losses."""
        model = self.model
        return Stages(
            model.embed,
            [
                lambda x, batch, dropout, i=i: model.run_blocks(x, batch, dropout, i, i + 1)
                for i in range(len(model.blocks))
            ],
            lambda x, batch: pretraining_loss_sums(model.heads(x, batch), batch)._asdict(),
        )

    def text_tokens(self, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns the tokens of a batch's text, see `original_tokens`."""
        return original_tokens(batch)

    @property
    def vocab_size(self) -> int:
        """Rows of the word embedding."""
        return self._config.model.vocab_size

    def step_flops(self, samples: int) -> int:
        """Returns the floating point operations of forward and backward over so many samples."""
        data = self._config.data
        return flops.step_flops(
            self._config.model, self.vocab_size, data.max_seq_length, data.max_predictions_per_seq, samples
        )

    def description(self) -> tuple[str, ...]:
        """Returns the sizes of the model, in words for the log."""
        model = self._config.model
        return (
            f"{model.num_hidden_layers} layers x {model.hidden_size}",
            f"{model.num_attention_heads} heads",
            f"vocabulary of {self.vocab_size}",
            f"{parameters.count(model, self.vocab_size).total / 1e6:.1f}M parameters",
        )

    def implementations(self) -> str:
        """Returns one line for the log: which ops of the model are fused."""
        return implementations.describe(self._config.model, self.model.dtype, devices.has_gpu())


def pretraining_loss_sums(outputs: Outputs, batch: Batch) -> LossSums:
    """Compares predictions with labels.

    Args:
        outputs: the model's predictions.
        batch: masked_lm_ids, int32 [b, P]; masked_lm_weights, float [b, P], 0 where a slot is unused;
            next_sentence_labels, int32 [b] or [b, 1]; and, if present, example_weights, float [b], 0 for an example
            that only fills the batch. They weight the next-sentence loss; masked_lm_weights weight the masked words.

    Returns:
        LossSums. Only mlm_sum and nsp_sum have gradients.
    """
    wide = outputs.nsp_logits.dtype
    mlm_labels = tf.reshape(batch["masked_lm_ids"], [-1])
    mlm_weights = tf.cast(tf.reshape(batch["masked_lm_weights"], [-1]), wide)
    mlm_logits = outputs.mlm_logits
    if not isinstance(mlm_logits, SlicedLogits):
        mlm_logits = tf.reshape(mlm_logits, [-1, mlm_logits.shape[-1]])
    nsp_labels = tf.reshape(batch["next_sentence_labels"], [-1])
    nsp_weights = batch.get("example_weights")
    nsp_weights = tf.ones_like(nsp_labels, wide) if nsp_weights is None else tf.cast(nsp_weights, wide)

    mlm_sum, mlm_correct = _weighted_sums(mlm_logits, mlm_labels, mlm_weights)
    nsp_sum, nsp_correct = _weighted_sums(outputs.nsp_logits, nsp_labels, nsp_weights)
    return LossSums(
        mlm_sum=mlm_sum,
        mlm_weight=tf.reduce_sum(mlm_weights),
        mlm_correct=mlm_correct,
        nsp_sum=nsp_sum,
        nsp_correct=nsp_correct,
        examples=tf.reduce_sum(nsp_weights),
    )


def _weighted_sums(
    logits: tf.Tensor | SlicedLogits, labels: tf.Tensor, weights: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Cross-entropy and correct predictions of logits [n, classes] against labels [n], both weighted and summed."""
    if isinstance(logits, SlicedLogits):
        entropy, correct = sliced_cross_entropy(logits, labels)
    else:
        entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        correct = tf.cast(tf.equal(tf.argmax(logits, axis=-1, output_type=labels.dtype), labels), weights.dtype)
    return tf.reduce_sum(entropy * weights), tf.reduce_sum(correct * weights)


def original_tokens(batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the text of a batch as it was before masking, without padding, [CLS] and [SEP].

    Works for records of any vocabulary: [CLS] is the first token of every sequence, [SEP] the last.

    Args:
        batch: the standard features, shapes [n, S] and [n, P]; examples of weight 0 are left out.

    Returns:
        int32 [tokens].
    """
    real = batch["example_weights"] > 0
    if not real.any():
        return np.zeros([0], np.int32)
    ids, mask = batch["input_ids"][real].copy(), batch["input_mask"][real] > 0
    rows, columns = np.nonzero(batch["masked_lm_weights"][real] > 0)
    ids[rows, batch["masked_lm_positions"][real][rows, columns]] = batch["masked_lm_ids"][real][rows, columns]
    last = mask.shape[1] - 1 - np.argmax(mask[:, ::-1], axis=1)
    begins, ends = ids[:, 0], ids[np.arange(len(ids)), last]
    return ids[mask & ~np.isin(ids, np.concatenate([begins, ends]))]
