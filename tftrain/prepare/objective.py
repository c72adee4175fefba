"""The interface between a preparation and its objective: what the examples train a model to predict.

A preparation reads documents, tokenizes them, and writes shards. An objective makes the examples of a chunk of
documents, and knows what the log says of them. There is one file for each: `masked_objective` and `causal_objective`.
"""

import abc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from tftrain.config.prepare import PrepareConfig
from tftrain.prepare.accounting import Accounting
from tftrain.prepare.spool import Chunk
from tftrain.tokenizer.vocabulary import Vocabulary


class TokenizedText(NamedTuple):
    """Documents as one stream of tokens. No document and no passage is empty.

    A passage is a sentence, or whatever else `PrepareObjective.passages` makes of a document.
    """

    tokens: np.ndarray  # int32 [tokens] token ids
    passages: np.ndarray  # int64 [passages + 1] first position of each passage; the last element is the end of all
    documents: np.ndarray  # int64 [documents + 1], the same of the documents

    @classmethod
    def join(cls, documents: Sequence[Sequence[np.ndarray]]) -> "TokenizedText":
        """Joins documents, given as the token ids of each passage. Leaves out empty passages and documents."""
        lengths = [[len(passage) for passage in document if len(passage)] for document in documents]
        passages = [passage for document in documents for passage in document]
        return cls(
            np.concatenate([np.zeros(0, np.int32), *passages]).astype(np.int32),
            np.cumsum([0, *chain.from_iterable(lengths)]),
            np.cumsum([0, *(sum(sizes) for sizes in lengths if sizes)]),
        )


class Examples(abc.ABC):
    """The examples of one chunk. Reasons and names are the same for every chunk."""

    count: int
    records: int  # one for each example, unless several are packed into one
    used: np.ndarray  # which tokens of the text occur in an example, bool [tokens]
    dropped: dict[str, int]  # numbers of the other tokens by reason
    details: dict[str, int]  # counts for the log by name
    lengths: Counter  # number of examples of each length in tokens; empty if all fill their records

    @abc.abstractmethod
    def payloads(self, order: Sequence[int]) -> Iterator[bytes]:
        """Yields the records with the given numbers as serialized tf.train.Examples."""

    @abc.abstractmethod
    def lines(self, number: int) -> list[str]:
        """Returns a record, or its first example, as lines for a terminal."""


class PrepareObjective(abc.ABC):
    """What the examples of a data set are for."""

    special_tokens: tuple[str, ...]  # for a byte-level BPE that is learned
    split: Callable[[str], list[str]] | None = None  # divides a paragraph when it is read; None: it stays whole

    def __init__(self, config: PrepareConfig):
        self.config = config

    @abc.abstractmethod
    def passages(self, paragraphs: list[Any]) -> list[str]:
        """Returns the texts of a document that are tokenized one by one, given what `split` makes of its paragraphs."""

    @abc.abstractmethod
    def examples(self, text: TokenizedText, chunk: Chunk, vocabulary: Vocabulary) -> Examples:
        """Makes the examples of a chunk, whose split and number are for the random choices."""

    @abc.abstractmethod
    def rows(self, accounting: Accounting) -> list[str]:
        """Returns the lines of the accounting's table that follow the number of examples."""

    @abc.abstractmethod
    def unused(self, accounting: Accounting) -> tuple[str, str]:
        """Returns why tokens are in no example, and what to do about it."""

    @abc.abstractmethod
    def smallest_text(self) -> str:
        """Returns the least that a split needs for an example, in words."""

    def smallest_chunk(self) -> int:
        """Returns the bytes of text below which a chunk wastes too much; by default any size is good."""
        return 0

    def predictions(self) -> int | None:
        """Returns the manifest's max_predictions_per_seq; None if nothing is masked before training."""
        return None

    def warnings(self, documents: Sequence[int]) -> list[str]:
        """Returns warnings about the chunks, given the number of documents of each."""
        return []
