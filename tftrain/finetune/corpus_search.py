"""Exact search among the vectors of a corpus, and the scores of what it finds for held-out queries."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tftrain.finetune.ranking import DEEPEST, ranking_scores
from tftrain.finetune.retrieval import Ranked
from tftrain.finetune.scorers import Scorer, rounded

_QUERIES, _DOCUMENTS = 512, 8192  # scores at a time: 16 MB in fp32
_SHOWN = 10


def nearest(queries: np.ndarray, documents: np.ndarray, count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields scores and indices of the nearest documents of some queries at a time, fp32 and int64 [n, count].

    Vectors are fp32 [n, D], and a score is a dot product. Equal ones are in the order of the documents; NaN is last.
    """
    for begin in range(0, len(queries), _QUERIES):
        own = queries[begin : begin + _QUERIES]
        best, found = np.zeros([len(own), 0], np.float32), np.zeros([len(own), 0], np.int64)
        for first in range(0, len(documents), _DOCUMENTS):
            scores = own @ documents[first : first + _DOCUMENTS].T
            indices = np.broadcast_to(np.arange(first, first + scores.shape[1]), scores.shape)
            scores = np.concatenate([best, np.where(np.isnan(scores), -np.inf, scores)], axis=1)
            with tf.device("CPU:0"):  # It takes the first of equal ones.
                best, places = (each.numpy() for each in tf.math.top_k(scores, min(count, scores.shape[1])))
            found = np.take_along_axis(np.concatenate([found, indices], axis=1), places, axis=1)
        yield from zip(best, found, strict=True)


class CorpusScorer(Scorer):
    """Ranks documents by the dot products of vectors. A query's own text in the corpus, under its id, is left out."""

    def __init__(self, examples: Sequence[Ranked]):
        """Takes all documents, in the order of equal scores, and then the queries."""
        super().__init__(examples)
        self._documents, self._queries = ([each for each in examples if bool(each.query) == side] for side in (0, 1))
        self._found: list[list[tuple[str, float]]] = []

    def scores(self, outputs: np.ndarray) -> dict[str, float]:
        """Returns the scores of vectors, [n, 1, D]."""
        vectors, documents, self._found = outputs[:, 0], self._documents, []
        rows = nearest(vectors[len(documents) :], vectors[: len(documents)], DEEPEST + 1)
        for (scores, indices), query in zip(rows, self._queries, strict=False):
            found = ((documents[index], score) for score, index in zip(scores.tolist(), indices, strict=True))
            own = query.query, query.texts
            others = [(each.document, score) for each, score in found if (each.document, each.texts) != own]
            self._found.append(others[:DEEPEST])
        pairs = zip((query.judged for query in self._queries), self._found, strict=True)
        return ranking_scores(([own.get(name, 0) for name, _ in found], own.values()) for own, found in pairs)

    def predictions(self, outputs: np.ndarray) -> Iterator[dict[str, Any]]:
        """Yields each query with its best documents, of the outputs that were scored last."""
        for query, found in zip(self._queries, self._found, strict=False):
            best = [
                {"id": name, "score": rounded(score), "relevance": query.judged.get(name, 0)}
                for name, score in found[:_SHOWN]
            ]
            yield {"query": query.query, "texts": query.texts, "documents": best}
