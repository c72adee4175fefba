"""Text to token ids with tensorflow-text, and the words that a vocabulary is learned from."""

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
        """Builds tensorflow-text's tokenizer; `model` is the sentencepiece model, None for WordPiece."""
        if model is not None:
            # Lower-casing is part of the model.
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
        """Returns int32 ids of each sentence, as many arrays as sentences."""
        found: list[np.ndarray] = []
        for part in _parts(sentences):
            ragged = self._tokenizer.tokenize(tf.constant(part))
            found += np.split(ragged.flat_values.numpy(), ragged.row_splits.numpy()[1:-1])
        return found


def count_words(sentences: Sequence[str], tokenizer_type: str, lower_case: bool) -> Counter:
    """Counts the words of a text.

    Args:
        sentences: the text.
        tokenizer_type: "wordpiece": words as BERT's basic tokenizer makes them, punctuation apart; "sentencepiece":
            what stands between spaces, as its trainer never learns a piece that goes over a space.
        lower_case: for WordPiece; a sentencepiece model learns its own normalization.
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
