"""Texts as models read them, such as [CLS] a [SEP] or [CLS] a [SEP] b [SEP] of BERT, cut to a length.

A decoder reads a whole text, for its vector, as transformers has it: with the tokens that its tokenizer puts around.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from tftrain.config.fields import ConfigError, Problem
from tftrain.config.model import ModelConfig
from tftrain.tokenizer.tokenizer_files import Tokenizer


class Encoded(NamedTuple):
    """Token ids of one sequence without padding."""

    ids: np.ndarray  # int32 [tokens], the special tokens included
    first: int  # number of tokens of token type 0: up to the second text
    unpooled: int = 0  # number of tokens at the beginning that are no part of the text's vector: those of a prompt
    cut: int = 0  # number of tokens that did not fit


class ExampleEncoder:
    """Makes the token ids of texts, of at most `max_seq_length` tokens.

    Attributes:
        cut: number of examples so far whose texts were cut.
        with_added: the tokenizer in the library's format if it is a WordPiece with added tokens; else None.
    """

    def __init__(self, tokenizer: Tokenizer, max_seq_length: int):
        self.tokenize, self._has_spaces = tokenizer.build(), tokenizer.vocabulary.tokenizer_type == "bpe"
        self.with_added = tokenizer.model if tokenizer.has_added_tokens else None
        self.max_seq_length, self.cut = max_seq_length, 0
        self.roles, self.padding_id = tokenizer.vocabulary.roles, tokenizer.vocabulary.padding_id
        self._before, self._after = tokenizer.around_ids

    def __call__(self, examples: Sequence[Sequence[str]]) -> list[Encoded]:
        """Encodes examples of one text or two. The longer of two texts is cut first."""
        parts = [self.tokenize(texts) for texts in zip(*examples, strict=True)]
        return [self.join(texts) for texts in zip(*parts, strict=True)]

    def words(self, words: Sequence[str], after_space: Iterable[bool]) -> list[np.ndarray]:
        """Returns the tokens of words one by one; in a byte-level BPE the space before a word is in its first token."""
        if self._has_spaces:
            words = [" " * space + word for word, space in zip(words, after_space, strict=True)]
        return self.tokenize(words)

    def unpooled(self, model: ModelConfig, column: int) -> int:
        """Returns how many tokens of a column's texts are not pooled: those of its prompt, if it is not.

        Raises:
            ConfigError: a prompt leaves no token to a text.
        """
        prompt = model.prompt(column)
        count = len(self._before) + len(self.tokenize([prompt])[0]) if prompt else 0
        if count and count + len(self._after) >= self.max_seq_length:
            flag = "text_pair_prompt" if column else "text_prompt"
            expected = f"expected fewer tokens: with those around a text it fills {self.max_seq_length} tokens"
            raise ConfigError([Problem(flag, prompt, f"{expected}, --max_seq_length")])
        return 0 if model.pool_prompt else count

    def vectors_of(self, texts: Sequence[str], model: ModelConfig, column: int) -> list[Encoded]:
        """Encodes texts of a column, each after its prompt, for their vectors; see `unpooled`."""
        count, prompt = self.unpooled(model, column), model.prompt(column)
        return [each._replace(unpooled=count) for each in self([(prompt + text,) for text in texts])]

    def join(self, texts: Sequence[np.ndarray]) -> Encoded:
        """Returns the sequence of one or two texts' token ids."""
        lengths = [len(text) for text in texts]
        roles = self.roles
        around = len(self._before) + len(self._after) + (len(texts) - 1) * roles.separators
        cut = max(0, sum(lengths) + around - self.max_seq_length)
        if cut:
            self.cut += 1
            lengths = cut_longest(lengths, sum(lengths) - cut)
        separators = [roles.separators] * (len(texts) - 1) + [1]
        ids = [self._before]
        for text, length, count in zip(texts, lengths, separators, strict=True):
            ids += [text[:length], *[self._after] * count]
        joined = np.concatenate(ids).astype(np.int32)
        return Encoded(joined, 1 + lengths[0] + separators[0] if roles.second_type else len(joined), cut=cut)


def cut_longest(lengths: Sequence[int], most: int) -> list[int]:
    """Returns the lengths of one or two texts, cut so that they add up to at most `most`: the longer one first.

    >>> cut_longest([10, 3], 8)
    [5, 3]
    """
    if len(lengths) == 1:
        return [min(lengths[0], most)]
    first, second = lengths
    second = min(second, max(most - first, most // 2))
    return [min(first, most - second), second]


class Sequences:
    """Token ids of many sequences in one array; rows with padding are made when a batch is read."""

    def __init__(self, encoded: Iterable[Encoded], padding_id: int = 0):
        """Copies the ids."""
        self._padding_id = padding_id
        encoded = list(encoded)
        self.ends = np.cumsum([len(each.ids) for each in encoded], dtype=np.int64)
        self.ids = np.concatenate([each.ids for each in encoded]) if encoded else np.zeros([0], np.int32)
        self.firsts = np.array([each.first for each in encoded], np.int32)
        self.unpooled = np.array([each.unpooled for each in encoded], np.int32)

    def __len__(self) -> int:
        return len(self.ends)

    def rows(self, numbers: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns input_ids, input_mask and segment_ids of some sequences, int32 [n, length]; padding has mask 0."""
        ids, mask, token_types = np.zeros([3, len(numbers), length], np.int32)
        self.write(numbers, ids, mask, token_types)
        return ids, mask, token_types

    def write(self, numbers: np.ndarray, ids: np.ndarray, mask: np.ndarray, token_types: np.ndarray) -> None:
        """Writes what `rows` returns into such arrays of zeros."""
        ids[:] = self._padding_id
        for row, number in enumerate(numbers):
            begin, end = (self.ends[number - 1] if number else 0), self.ends[number]
            ids[row, : end - begin] = self.ids[begin:end]
            mask[row, : end - begin] = 1
            token_types[row, self.firsts[number] : end - begin] = 1
