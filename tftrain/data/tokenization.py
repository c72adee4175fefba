"""Tokenizes text with tensorflow-text and counts words for vocabulary learning."""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text
from tensorflow_text.python.ops.bert_tokenizer import BasicTokenizer

from tftrain.data.vocabulary import Vocabulary

_SENTENCES_AT_ONCE = 4096


class Tokenizer:
    """Turns sentences into token ids."""

    def __init__(self, vocabulary: Vocabulary, lower_case: bool, model: bytes | None):
        """Builds tensorflow-text's tokenizer. `model` is the serialized sentencepiece model, or None for WordPiece."""
        if model is not None:
            # The sentencepiece model lower-cases the text itself.
            self._tokenizer = tf_text.SentencepieceTokenizer(model, out_type=tf.int32)
        else:
            self._tokenizer = tf_text.FastBertTokenizer(
                vocab=list(vocabulary.tokens),
                token_out_type=tf.int32,
                suffix_indicator="##",
                unknown_token="[UNK]",
                lower_case_nfd_strip_accents=lower_case,
            )

    def __call__(self, sentences: Sequence[str]) -> list[np.ndarray]:
        """Returns one int32 array of token ids for each sentence."""
        ids: list[np.ndarray] = []
        for part in _parts(sentences):
            ragged = self._tokenizer.tokenize(tf.constant(part))
            ids += np.split(ragged.flat_values.numpy(), ragged.row_splits.numpy()[1:-1])
        return ids


def count_words(sentences: Sequence[str], tokenizer_type: str, lower_case: bool) -> Counter:
    """Counts the words of a text.

    Args:
        sentences: the text.
        tokenizer_type: "wordpiece" counts the words of BERT's basic tokenizer, which splits off punctuation.
            "sentencepiece" splits at spaces only, because the trainer never learns a piece that crosses a space.
        lower_case: lower-cases the words for WordPiece. A sentencepiece model includes its own normalization.
    """
    if tokenizer_type == "sentencepiece":
        return Counter(itertools.chain.from_iterable(sentence.split() for sentence in sentences))
    basic, counts = BasicTokenizer(lower_case=lower_case), Counter()
    for part in _parts(sentences):
        counts.update(basic.tokenize(tf.constant(part)).flat_values.numpy().tolist())
    return Counter({word.decode("utf-8"): count for word, count in counts.items()})


def _parts(sentences: Sequence[str]) -> Iterator[Sequence[str]]:
    for begin in range(0, len(sentences), _SENTENCES_AT_ONCE):
        yield sentences[begin : begin + _SENTENCES_AT_ONCE]
