"""Scores of rankings, as trec_eval defines them; documents of equal scores have descending ids.

The relevance of the document at rank r is g_r. The best ranking of all judged documents has the gains b_r (Järvelin and
Kekäläinen, ACM TOIS 20(4), 2002; ndcg_cut, recip_rank and recall of trec_eval):

    nDCG@10 = sum over r <= 10 of max(g_r, 0) / log2(1 + r), divided by the same sum of b_r
    MRR@10 = 1 / r of the first document with g_r > 0, or 0 if r > 10
    recall@k = number of documents with g_r > 0 and r <= k, divided by that of all judged documents

A query without a relevant document has zeros.
"""

import itertools
import math
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from tftrain.config.fine_tuning import RANKING
from tftrain.finetune.retrieval import Ranked

DEEPEST = 100
_TOP, _RECALLS = 10, (1, 10, DEEPEST)


def ranking_scores(queries: Iterable[tuple[Sequence[float], Collection[float]]]) -> dict[str, float]:
    """Returns the means of the scores `RANKING`; NaN without a query.

    `queries` has for each query the relevance of the documents that were found, by rank, and of all documents that are
    judged.
    """
    rows = []
    for gains, judged in queries:
        total = sum(gain > 0 for gain in judged) or 1
        first = next((1 / rank for rank, gain in enumerate(gains[:_TOP], 1) if gain > 0), 0)
        recalls = (sum(gain > 0 for gain in gains[:most]) / total for most in _RECALLS)
        rows.append([_dcg(gains) / (_dcg(sorted(judged, reverse=True)) or 1), first, *recalls])
    means = np.mean(rows, axis=0).tolist() if rows else [math.nan] * len(RANKING)
    return dict(zip(RANKING, means, strict=True))


def _dcg(gains: Sequence[float]) -> float:
    return sum(max(gain, 0) / math.log2(1 + rank) for rank, gain in enumerate(gains[:_TOP], 1))


def candidate_scores(examples: Sequence, values: np.ndarray) -> dict[str, float]:
    """Returns the scores of a classifier's values of pairs; {} if the pairs are no candidates of queries."""
    if not isinstance(examples[0], Ranked):
        return {}
    pairs = zip(examples, np.nan_to_num(values, nan=-np.inf).tolist(), strict=False)
    queries = []
    for _, group in itertools.groupby(pairs, key=lambda pair: pair[0].query):
        found = sorted(group, key=lambda pair: (pair[1], pair[0].document), reverse=True)
        judged = found[0][0].judged
        queries.append(([judged.get(pair.document, 0) for pair, _ in found[:DEEPEST]], judged.values()))
    return ranking_scores(queries)
