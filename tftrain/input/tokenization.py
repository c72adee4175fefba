"""Splits text into words and words into tokens.

`word_splitter` is the one place that defines the words of a text. Both the tokenizer and the word counts that a
vocabulary is learned from use it.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text
from tensorflow_text.python.ops.bert_tokenizer import BasicTokenizer

from tftrain.input.normalization import LONGEST_WORD, BertNormalizer
from tftrain.input.vocabulary import SPECIAL_TOKENS, UNUSED_PREFIX, Vocabulary

_SENTENCES_AT_ONCE = 4096
_BYTES_OF_A_CHARACTER = 4
# Tokens of so many different words are kept in memory, some hundred MB.
_CACHED_WORDS = 1_000_000

WordSplitter = Callable[[Sequence[str]], list[list[str]]]


def word_splitter(
    tokenizer_type: str, normalization: str, lower_case: bool, strip_accents: bool | None = None
) -> WordSplitter:
    """Returns the function that splits sentences into words.

    Args:
        tokenizer_type: "sentencepiece" splits at spaces only, because the trainer never learns a piece that crosses a
            space, and the sentencepiece model includes its own normalization.
        normalization: of "wordpiece": "bert", or "nfkc" for tensorflow-text's basic tokenizer. Its lower case is
            Unicode's NFKC case folding, and without lower case it does not normalize.
        lower_case: whether words are lower-cased. With "nfkc" they then lose their accents too.
        strip_accents: whether words lose their accents with "bert"; None: if they are lower-cased.
    """
    if tokenizer_type == "sentencepiece":
        return lambda sentences: [sentence.split() for sentence in sentences]
    if normalization == "bert":
        normalizer = BertNormalizer(lower_case, strip_accents)
        return lambda sentences: [normalizer.words(sentence) for sentence in sentences]
    basic = BasicTokenizer(lower_case=lower_case)

    def split(sentences):
        words = basic.tokenize(tf.constant(sentences, tf.string)).to_list()
        return [[word.decode("utf-8") for word in sentence] for sentence in words]

    return split


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
        normalization: str = "bert",
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
        for part in _parts(sentences):
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


def count_words(
    sentences: Sequence[str],
    tokenizer_type: str,
    lower_case: bool,
    normalization: str = "bert",
    strip_accents: bool | None = None,
) -> Counter:
    """Counts the words of a text. `word_splitter` describes the arguments."""
    split, counts = word_splitter(tokenizer_type, normalization, lower_case, strip_accents), Counter()
    for part in _parts(sentences):
        counts.update(itertools.chain.from_iterable(split(part)))
    return counts


def strip_accents(counts: Counter) -> Counter:
    """Returns the counts that `count_words` gives with accents stripped, given those without; both with "bert"."""
    split, stripped = BertNormalizer(False, True).words, Counter()
    for word, count in counts.items():
        for part in [word] if word.isascii() else split(word):
            stripped[part] += count
    return stripped


def unreachable_words(
    vocabulary: Vocabulary, lower_case: bool, normalization: str, strip_accents: bool | None = None
) -> list[str]:
    """Returns the whole words of a WordPiece vocabulary that no text can give, as normalization changes or splits them.

    Special tokens, unused ones and pieces that begin with "##" are not among them.
    """
    pieces = ("##", UNUSED_PREFIX)
    whole = [token for token in vocabulary.tokens if not token.startswith(pieces) and token not in SPECIAL_TOKENS]
    split = word_splitter("wordpiece", normalization, lower_case, strip_accents)
    return [token for token, words in zip(whole, split(whole), strict=True) if words != [token]]


def _parts(sentences: Sequence[str]) -> Iterator[Sequence[str]]:
    for begin in range(0, len(sentences), _SENTENCES_AT_ONCE):
        yield sentences[begin : begin + _SENTENCES_AT_ONCE]
