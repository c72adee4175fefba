"""The interface between a preparation and its objective: what the examples train a model to predict.

A preparation reads documents, tokenizes them, and writes shards. An objective makes the examples of a chunk of
documents, and knows what the log says of them. There is one file for each: `masked_objective` and `causal_objective`.
"""

import abc
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from tftrain.config.prepare import PrepareConfig
from tftrain.input.vocabulary import Vocabulary
from tftrain.prepare.accounting import Accounting
from tftrain.prepare.corpus_chunks import Chunk
from tftrain.prepare.tokenized_text import TokenizedText


class Examples(abc.ABC):
    """The examples of one chunk.

    Attributes:
        count: number of examples.
        records: number of records; one for each example, unless several are packed into one.
        used: which tokens of the text occur in an example, bool [tokens].
        dropped: numbers of the other tokens by reason. The reasons are the same for every chunk.
        details: counts for the log by name. The names are the same for every chunk.
        lengths: number of examples of each length in tokens; empty if all fill their records.
    """

    count: int
    records: int
    used: np.ndarray
    dropped: dict[str, int]
    details: dict[str, int]
    lengths: Counter

    @abc.abstractmethod
    def payloads(self, order: Sequence[int]) -> Iterator[bytes]:
        """Yields the records with the given numbers as serialized tf.train.Examples."""

    @abc.abstractmethod
    def lines(self, number: int) -> list[str]:
        """Returns a record, or its first example, as lines for a terminal."""


class Objective(abc.ABC):
    """What the examples of a data set are for."""

    def __init__(self, config: PrepareConfig):
        self.config = config

    @abc.abstractmethod
    def passages(self, paragraphs: list[str]) -> list[str]:
        """Returns the texts of a document that are tokenized one by one."""

    @abc.abstractmethod
    def examples(self, text: TokenizedText, chunk: Chunk, vocabulary: Vocabulary) -> Examples:
        """Makes the examples of a chunk, whose split and number are for the random choices."""

    @abc.abstractmethod
    def smallest_chunk(self) -> int:
        """Returns the bytes of text below which a chunk wastes too much; 0: any size is good."""

    @abc.abstractmethod
    def predictions(self) -> int | None:
        """Returns the manifest's max_predictions_per_seq."""

    @abc.abstractmethod
    def rows(self, accounting: Accounting) -> list[str]:
        """Returns the lines of the accounting's table that follow the number of examples."""

    @abc.abstractmethod
    def unused(self, accounting: Accounting) -> tuple[str, str]:
        """Returns why tokens are in no example, and what to do about it."""

    @abc.abstractmethod
    def smallest_text(self) -> str:
        """Returns the least that a split needs for an example, in words."""

    def warnings(self, documents: Sequence[int]) -> list[str]:
        """Returns warnings about the chunks, given the number of documents of each."""
        return []
