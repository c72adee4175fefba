"""The sizes that model and data share, and their defaults for synthetic data and examples; needs no TensorFlow."""

import math
from typing import NamedTuple

from tftrain.config.data import DataConfig
from tftrain.config.model import ModelConfig

SYNTHETIC_VOCAB_SIZE = 30522  # bert-base-uncased
SYNTHETIC_SEQ_LENGTH = 128
DEFAULT_LENGTHS = {"question_answering": 384, "completion": 1024}  # tokens of labelled examples; 128 for other tasks


class Sizes(NamedTuple):
    """The sizes that model and data share."""

    vocab_size: int  # rows of the embedding
    max_seq_length: int  # tokens of an example that the model reads
    # Largest number of masked tokens of an example; all of them if the objective is causal.
    max_predictions_per_seq: int


def predictions(max_seq_length: int, masked_lm_prob: float) -> int:
    """Returns the masked tokens of the longest example: its share of them, rounded up."""
    return max(1, math.ceil(max_seq_length * masked_lm_prob))


def example_length(data: DataConfig, model: ModelConfig) -> int:
    """Returns the tokens of a labelled example: those that the flags state, else the default of the task."""
    return data.max_seq_length or min(model.max_position_embeddings, DEFAULT_LENGTHS.get(model.task, 128))


def synthetic(data: DataConfig, vocab_size: int | None, objective: str = "masked") -> Sizes:
    """Returns the sizes of synthetic data: those that flags state, else the defaults.

    Args:
        vocab_size: of the model's configuration; None: the default.
        objective: "masked" or "causal", which predicts every token.
    """
    length = data.max_seq_length or SYNTHETIC_SEQ_LENGTH
    if objective == "causal":
        return Sizes(vocab_size or SYNTHETIC_VOCAB_SIZE, length, length)
    slots = data.max_predictions_per_seq or predictions(length, data.masked_lm_prob)
    return Sizes(vocab_size or SYNTHETIC_VOCAB_SIZE, length, slots)
