"""From text to predictions with a trained model: what tftrain.predict and tftrain.export share.

The model runs on one process with plain TensorFlow ops, on sequences of any length. Text becomes tokens by the code
that prepares training data.
"""

import dataclasses
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tftrain.config.fields import implementations
from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.config.model import ModelConfig
from tftrain.config.model_source import ModelSource
from tftrain.data.sizes import DEFAULT_LENGTHS
from tftrain.files.errors import FormatError
from tftrain.formats import registry
from tftrain.formats.run_folder import take_tokenizer
from tftrain.formats.weights import Weights
from tftrain.model.registry import model_class
from tftrain.model.transformer import Transformer
from tftrain.tokenizer.tokenizer_files import Tokenizer
from tftrain.tokenizer.vocabulary import Vocabulary

LONGEST_EXAMPLE = 512  # most tokens for a fine-tuned model without the settings of its run


class TrainedModel(NamedTuple):
    """A model with its weights."""

    config: ModelConfig  # with plain TensorFlow ops and without dropout
    network: Transformer
    tokenizer: Tokenizer | None  # None if the weights have none beside them
    missing: tuple[str, ...]  # heads that the weights lack; those of `network` have random values
    notes: tuple[str, ...]  # what a user must know of the model, a line each
    fine_tuning: FineTuningConfig | None  # how it was fine-tuned; None if it was not, or if its files do not say
    max_seq_length: int  # most tokens of an example of a fine-tuned model: as in its run, if its files say that


def load(source: ModelSource, dtype: str = "float32", pooling: str | None = None) -> TrainedModel:
    """Loads a model with variables and activations of a dtype.

    With `pooling`, it gives the vectors of texts by that, as if it had been trained for --task=embedding; auto does not
    change a model that was.

    Raises:
        FormatError, CheckpointError: it can't be read, or its tokenizer is that of another model.
    """
    weights = registry.open_weights(registry.local(source.place, source.shown), weights=source.weights)
    take_tokenizer(weights, source.tokenizer_dir, source.shown)
    if pooling and (pooling != "auto" or not weights.model.gives_vectors):
        weights.model = dataclasses.replace(weights.model, task="embedding", labels=(), pooling=pooling)
    return with_weights(weights, dtype)


def with_weights(weights: Weights, dtype: str = "float32") -> TrainedModel:
    """Builds the model of weights for inference; see `load`."""
    without_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = dataclasses.replace(weights.model, **implementations(ModelConfig), **without_dropout)
    if config.is_fine_tuned and weights.missing:
        fault = f"no {' and no '.join(weights.missing)}, which a model for {config.task} has"
        raise FormatError(f"{weights.path}: {fault}; expected weights that were fine-tuned for it")
    network = model_class(config)(config, dtype, seed=1, initial=weights.shard)
    longest = min(config.longest_sequence, DEFAULT_LENGTHS.get(config.task, LONGEST_EXAMPLE))
    length = weights.max_seq_length or int(longest)
    return TrainedModel(config, network, weights.tokenizer, weights.missing, weights.notes, weights.fine_tuning, length)


def require(model: TrainedModel, source: ModelSource, heads: Collection[str] = ()) -> None:
    """Raises a FormatError that names the flag if a model lacks what predictions need: a tokenizer, and heads."""
    if model.tokenizer is None:
        folders = ", ".join(map(str, registry.tokenizer_folders(registry.local(source.place, source.shown))))
        raise FormatError(f"{source.shown}: no tokenizer in any of {folders}; name its folder with --tokenizer_dir")
    if lacking := [head for head in heads if head in model.missing]:
        raise FormatError(
            f"{source.shown}: it has no {' and no '.join(lacking)}; expected weights with that head, such as "
            "BertForPreTraining or BertForMaskedLM of hf, or --embedding=mean for the vectors of texts"
        )
    check_tokens(model, source)


def check_tokens(model: TrainedModel, source: ModelSource) -> None:
    """Raises a FormatError if there is a tokenizer that lacks roles of the model's family, or pads with another id."""
    if not model.tokenizer or model.config.is_causal:
        return
    roles, expected = model.tokenizer.vocabulary.roles, "expected that of an encoder (--tokenizer_dir)"
    if lacking := roles.lacking:
        fault = f"its tokenizer has no token for {' and '.join(lacking)}"
        raise FormatError(f"{source.shown}: {fault}; {expected}")
    # transformers has a place for each token but the padding, whose id decides where the positions begin.
    if model.config.first_row not in (0, roles.padding + 1) and source.place.format == "hf":
        fault = f"its tokenizer's padding has id {roles.padding}, its pad_token_id is {model.config.first_row - 1}"
        raise FormatError(f"{source.shown}: {fault}; expected one id, so it may be that of another model")


def answer_settings(model: TrainedModel, null_score_threshold: float | None, n_best: int) -> FineTuningConfig:
    """Returns how answers are chosen: the settings of the model's run, or the defaults.

    Args:
        null_score_threshold: in place of the run's; None: as the run.
        n_best: answers to find for each question; the run's number if that is larger.
    """
    settings = model.fine_tuning or FineTuningConfig()
    threshold = settings.null_score_threshold if null_score_threshold is None else null_score_threshold
    return dataclasses.replace(settings, null_score_threshold=threshold, n_best=max(n_best, settings.n_best))


class Sample(NamedTuple):
    """A text, or a pair, as the model reads it."""

    ids: np.ndarray  # int32 [n], with the special tokens
    masks: np.ndarray  # places of the mask token in `ids`, ascending; none in a sample for a fine-tuned model
    cut: int  # number of tokens that did not fit
    cut_masks: int  # number of masks among them
    unknown: int  # number of unknown tokens in `ids`


class TextEncoder:
    """Turns texts into samples: with both ends for an encoder; for a decoder the text after its `begin_ids`."""

    def __init__(self, model: TrainedModel, with_special_tokens: bool = False):
        """Builds the tokenizer of a model that has one; see `Tokenizer.build`.

        With special tokens, as in chats, a text spells the token that it begins with.
        """
        tokenizer = model.tokenizer
        self._vocabulary, self._longest = tokenizer.vocabulary, model.config.longest_sequence
        self._tokenize = tokenizer.build(with_special_tokens, with_mask=True)
        self._begin = tokenizer.begin_ids[:0] if with_special_tokens else tokenizer.begin_ids
        # The mask at which texts are divided, if the library does not find it.
        self._mask = "" if model.config.is_causal or tokenizer.finds_masks else self._vocabulary.of_role("mask")
        self._sample = self._prompt if model.config.is_causal else self._sentence

    def __call__(self, texts: Sequence[str]) -> list[Sample]:
        """Returns a sample for each text. In a text for an encoder, the mask is one token as it is spelled."""
        parts = [text.split(self._mask) if self._mask else [text] for text in texts]
        tokens = iter(self._tokenize([part for each in parts for part in each]))
        return [self._sample([next(tokens) for _ in each]) for each in parts]

    def _sentence(self, parts: list[np.ndarray]) -> Sample:
        roles = self._vocabulary.roles
        with_masks = [ids for part in parts for ids in ([roles.mask], part)][1:]
        whole, capacity = np.concatenate(with_masks), int(min(self._longest - 2, 1 << 31))
        ids = np.concatenate([[roles.beginning], whole[:capacity], [roles.separator]]).astype(np.int32)
        masks = np.flatnonzero(ids == roles.mask)
        unknown, cut_masks = count_unknown(ids, self._vocabulary), int(np.sum(whole == roles.mask)) - len(masks)
        return Sample(ids, masks, max(len(whole) - capacity, 0), cut_masks, unknown)

    def _prompt(self, parts: list[np.ndarray]) -> Sample:
        (whole,) = parts
        begin = self._begin if len(self._begin) + len(whole) else np.array([self._vocabulary.end_id], np.int32)
        cut = int(max(len(begin) + len(whole) - self._longest, 0))
        ids = np.concatenate([begin, whole[cut:]])
        return Sample(ids, np.zeros(0, np.int64), cut, 0, count_unknown(ids, self._vocabulary))


def count_unknown(ids: np.ndarray, vocabulary: Vocabulary) -> int:
    """Returns the number of unknown tokens in token ids; 0 if the vocabulary has none."""
    return int(np.sum(ids == vocabulary.unknown_id))


def padded(ids: Sequence[np.ndarray], padding_id: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns sequences as one array with padding after each, int32 [b, S], and their lengths, int32 [b]."""
    lengths = np.array([len(each) for each in ids], np.int32)
    batch = np.full([len(ids), lengths.max()], padding_id, np.int32)
    for row, tokens in zip(batch, ids, strict=True):
        row[: len(tokens)] = tokens
    return batch, lengths


def encoder_batch(input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor | None = None) -> dict:
    """Returns the features that an encoder reads; without `segment_ids` all tokens are of the first type."""
    segment_ids = tf.zeros_like(input_ids) if segment_ids is None else segment_ids
    return {"input_ids": input_ids, "input_mask": input_mask, "segment_ids": segment_ids}


def most_probable(logits: tf.Tensor, tokens: int, top_k: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the best classes of each row and their probabilities, [n, top_k] int32 and fp32; at most `tokens`.

    Classes of the logits, [n, classes], that are no token, such as the rows that pad a vocabulary, have no probability.
    """
    probabilities, best = tf.math.top_k(tf.nn.softmax(tf.cast(logits[:, :tokens], tf.float32)), min(top_k, tokens))
    return best, probabilities
