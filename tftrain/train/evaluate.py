"""Held-out loss and accuracy, beside the entropy of the text's words.

The unigram entropy is the best loss of a model that knows only how frequent each token is; a masked-LM loss below it is
what the model has learned from context.
"""

import numpy as np
import tensorflow as tf

from tftrain.model.bert import BertPretrainer
from tftrain.model.losses import LossSums, pretraining_loss_sums
from tftrain.parallel import collectives
from tftrain.parallel.mesh import Mesh
from tftrain.run_state import Evaluation


class Evaluator:
    """Evaluates one model on batches that together hold every held-out example once over all ranks."""

    def __init__(self, model: BertPretrainer, vocab_size: int, mesh: Mesh, jit: bool):
        """Prepares the forward pass; `vocab_size` is the number of rows of the embedding."""
        self._vocab_size, self._mesh = vocab_size, mesh

        def forward(batch):
            return tf.stack(pretraining_loss_sums(model(batch, dropout=None), batch))

        self._forward = tf.function(forward, jit_compile=jit, autograph=False)

    def __call__(self, batches: tf.data.Dataset) -> Evaluation:
        """Runs over all batches; every rank must call it with equally many."""
        sums, counts = np.zeros(len(LossSums._fields)), np.zeros(self._vocab_size)
        for batch in batches:
            sums += self._forward(batch).numpy()
            counts += np.bincount(original_tokens({k: v.numpy() for k, v in batch.items()}), minlength=self._vocab_size)
        vector = tf.constant(np.concatenate([sums, counts]), tf.float64)
        vector = collectives.all_reduce(self._mesh.data, vector, "evaluation").numpy()
        total, counts = LossSums(*vector[: len(sums)]), vector[len(sums) :]
        return Evaluation(
            mlm_loss=total.mlm_sum / max(total.mlm_weight, 1),
            unigram_nats=entropy(counts),
            mlm_accuracy=total.mlm_correct / max(total.mlm_weight, 1),
            nsp_accuracy=total.nsp_correct / max(total.examples, 1),
            examples=int(total.examples),
        )


def original_tokens(batch: dict[str, np.ndarray]) -> np.ndarray:
    """Returns the text of a batch as it was before masking, without padding, [CLS] and [SEP].

    Works for records of any vocabulary: [CLS] is what every sequence begins with, [SEP] what it ends with.

    Args:
        batch: the standard features, shapes [n, S] and [n, P]; examples of weight 0 are left out.

    Returns:
        int32 [tokens].
    """
    kept = batch["example_weights"] > 0
    if not kept.any():
        return np.zeros([0], np.int32)
    ids, mask = batch["input_ids"][kept].copy(), batch["input_mask"][kept] > 0
    rows, columns = np.nonzero(batch["masked_lm_weights"][kept] > 0)
    ids[rows, batch["masked_lm_positions"][kept][rows, columns]] = batch["masked_lm_ids"][kept][rows, columns]
    last = mask.shape[1] - 1 - np.argmax(mask[:, ::-1], axis=1)
    begins, ends = ids[:, 0], ids[np.arange(len(ids)), last]
    return ids[mask & ~np.isin(ids, np.concatenate([begins, ends]))]


def entropy(counts: np.ndarray) -> float:
    """Returns the entropy of a distribution given by its counts, in nats."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())
