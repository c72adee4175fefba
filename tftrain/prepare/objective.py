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
from tftrain.prepare.spool import Chunk
from tftrain.prepare.tokenized_text import TokenizedText


class Examples(abc.ABC):
    """The examples of one chunk."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """Returns the number of examples."""

    @property
    def records(self) -> int:
        """The number of records; one for each example, unless several are packed into one."""
        return len(self)

    @abc.abstractmethod
    def used(self) -> np.ndarray:
        """Returns which tokens of the text occur in an example, bool [tokens]."""

    @abc.abstractmethod
    def dropped(self) -> dict[str, int]:
        """Returns the numbers of the other tokens by reason. The reasons are the same for every chunk."""

    @abc.abstractmethod
    def details(self) -> dict[str, int]:
        """Returns counts for the log by name. The names are the same for every chunk."""

    def lengths(self) -> Counter:
        """Returns the number of examples of each length in tokens; none if all fill their records."""
        return Counter()

    @abc.abstractmethod
    def payloads(self, order: Sequence[int]) -> Iterator[bytes]:
        """Yields the records with the given numbers as serialized tf.train.Examples."""

    @abc.abstractmethod
    def lines(self, number: int) -> list[str]:
        """Returns a record, or its first example, as lines for a terminal."""


class Objective(abc.ABC):
    """What the examples of a data set are for. It has no state.

    Attributes:
        name: the value of `--objective`.
        special_tokens: of a byte-level BPE that is learned for it.
    """

    name: str
    special_tokens: tuple[str, ...]

    @abc.abstractmethod
    def passages(self, paragraphs: list[str], tokenizer_type: str) -> list[str]:
        """Returns the texts of a document that are tokenized one by one."""

    @abc.abstractmethod
    def examples(self, text: TokenizedText, chunk: Chunk, vocabulary: Vocabulary, config: PrepareConfig) -> Examples:
        """Makes the examples of a chunk.

        Args:
            text: the documents of the chunk.
            chunk: its split and number, for the random choices.
            vocabulary: the tokens by id.
            config: the configuration of the preparation.
        """

    @abc.abstractmethod
    def smallest_chunk(self, config: PrepareConfig) -> int:
        """Returns the bytes of text below which a chunk wastes too much; 0: any size is good."""

    @abc.abstractmethod
    def predictions(self, config: PrepareConfig) -> int | None:
        """Returns the manifest's max_predictions_per_seq."""

    @abc.abstractmethod
    def rows(self, accounting: Accounting) -> list[str]:
        """Returns the lines of the accounting's table that follow the number of examples."""

    @abc.abstractmethod
    def unused(self, accounting: Accounting, config: PrepareConfig) -> tuple[str, str]:
        """Returns why tokens are in no example, and what to do about it."""

    @abc.abstractmethod
    def smallest_text(self, config: PrepareConfig) -> str:
        """Returns the least that a split needs for an example, in words."""

    def warnings(self, documents: Sequence[int], config: PrepareConfig) -> list[str]:
        """Returns warnings about the chunks, given the number of documents of each."""
        return []
