"""Turns text into the tokens of WordPiece or of sentencepiece, by tensorflow-text."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from tftrain.families.bert import NORMALIZATION
from tftrain.tokenizer.normalization import LONGEST_WORD
from tftrain.tokenizer.vocabulary import Vocabulary
from tftrain.tokenizer.words import parts, word_splitter

_BYTES_OF_A_CHARACTER = 4
# The number of different words whose tokens are kept in memory, at most 100 MB.
_CACHED_WORDS = 300_000


def whole_text_tokenizer(vocabulary: Vocabulary, lower_case: bool, model: bytes | None) -> tf_text.Tokenizer:
    """Returns tensorflow-text's tokenizer of a sentencepiece model, or, without one, of WordPiece with "nfkc"."""
    if model is not None:
        return tf_text.SentencepieceTokenizer(model, out_type=tf.int32)
    return tf_text.FastBertTokenizer(**_pieces(vocabulary), lower_case_nfd_strip_accents=lower_case)


def _pieces(vocabulary: Vocabulary) -> dict[str, Any]:
    kinds = {"suffix_indicator": "##", "unknown_token": "[UNK]", "token_out_type": tf.int32}
    return {"vocab": list(vocabulary.tokens), **kinds}


class TextTokenizer:
    """Turns sentences into token ids, by WordPiece or, given the serialized model, by sentencepiece.

    `word_splitter` describes the other arguments; a sentencepiece model includes its own normalization.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        lower_case: bool,
        model: bytes | None,
        normalization: str = NORMALIZATION,
        strip_accents: bool | None = None,
    ):
        self._whole = None
        if model is not None or normalization == "nfkc":
            self._whole = whole_text_tokenizer(vocabulary, lower_case, model)
            return
        self._split = word_splitter("wordpiece", normalization, lower_case, strip_accents)
        self._pieces = tf_text.FastWordpieceTokenizer(
            **_pieces(vocabulary), no_pretokenization=True, max_bytes_per_word=LONGEST_WORD * _BYTES_OF_A_CHARACTER
        )
        self._unknown = (vocabulary.id("[UNK]"),)
        self._ids_of: dict[str, tuple[int, ...]] = {}

    def __call__(self, sentences: Sequence[str]) -> list[np.ndarray]:
        """Returns one int32 array of token ids for each sentence."""
        ids: list[np.ndarray] = []
        for part in parts(sentences):
            if self._whole is not None:
                tokens = self._whole.tokenize(tf.constant(part))
                ids += np.split(tokens.flat_values.numpy(), tokens.row_splits.numpy()[1:-1])
                continue
            words = self._split(part)
            self._add(set(itertools.chain.from_iterable(words)))
            for sentence in words:
                pieces = itertools.chain.from_iterable(map(self._ids_of.__getitem__, sentence))
                ids.append(np.array(list(pieces), np.int32))
        return ids

    def _add(self, words: set[str]) -> None:
        """Adds the tokens of new words to the cache. A text repeats its words, so most are in it already."""
        if len(self._ids_of) > _CACHED_WORDS:
            self._ids_of.clear()
        new = words.difference(self._ids_of)
        short = [word for word in new if len(word) <= LONGEST_WORD]
        if short:
            tokens = self._pieces.tokenize(tf.constant(short))
            ids, ends = tokens.flat_values.numpy().tolist(), tokens.row_splits.numpy().tolist()
            self._ids_of.update((word, tuple(ids[ends[row] : ends[row + 1]])) for row, word in enumerate(short))
        self._ids_of.update((word, self._unknown) for word in new if len(word) > LONGEST_WORD)
