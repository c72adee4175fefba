"""A chunk of documents as token ids."""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np


class TokenizedText(NamedTuple):
    """Documents as one stream of tokens. No document and no passage is empty.

    Attributes:
        tokens: int32 [tokens] token ids.
        passages: int64 [passages + 1] first position of each sentence, or of what else `Objective.passages` divides a
            document into; the last element is the number of tokens.
        documents: int64 [documents + 1] first position of each document; the last element is the number of tokens.
    """

    tokens: np.ndarray
    passages: np.ndarray
    documents: np.ndarray

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
