"""Scores of rankings, against numbers of pytrec_eval 0.5; exact search, against sorting all documents."""

import json
from pathlib import Path

import numpy as np
import pytest

from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.files.errors import DataError
from tftrain.finetune import corpus_search, ranking, retrieval, scorers
from tftrain.finetune.examples import TextExample
from tftrain.finetune.retrieval import Ranked
from tftrain.finetune.tables import FileNotes

# Random relevance from -1 to 3 and whole-number scores, so that many are equal; a query without a relevant document,
# and relevant documents that no run has.
CASES = json.loads((Path(__file__).parent / "trec_scores.json").read_text())


def ranked(query, document, judged):
    return Ranked("x", ("text", "other"), 0.0, query, document, judged)


@pytest.mark.parametrize("case", CASES)
def test_scores_are_those_of_pytrec_eval(case):
    pairs = [
        (ranked(query, name, case["judged"][query]), score)
        for query, run in case["run"].items()
        for name, score in run.items()
    ]
    values = np.array([score for _, score in pairs], np.float32)
    found = ranking.candidate_scores([pair for pair, _ in pairs], values)
    assert found == pytest.approx(case["scores"], rel=1e-12)
    # A corpus: vectors of one number and queries of 1, one query after another.
    for query, run in case["run"].items():
        names = sorted(run, reverse=True)
        examples = [ranked("", name, {}) for name in names] + [ranked(query, "", case["judged"][query])]
        vectors = np.array([run[name] for name in names] + [1], np.float32)[:, None, None]
        own = [pair for pair, _ in pairs if pair.query == query]
        expected = ranking.candidate_scores(own, np.array([run[pair.document] for pair in own]))
        assert corpus_search.CorpusScorer(examples).scores(vectors) == expected


def test_pairs_have_the_scores_of_their_ranks(monkeypatch):
    monkeypatch.setattr(scorers, "_ROWS_AT_ONCE", 7)
    random = np.random.default_rng(2)
    outputs = random.normal(size=[40, 2, 3]).astype(np.float32)
    found = scorers.PairScorer([TextExample("x", ("a", "b"), None)] * 40).scores(outputs)
    cosines = outputs[:, 0].astype(np.float64) @ outputs[:, 1].T
    ranks = 1 + (cosines > np.diag(cosines)[:, None]).sum(1)
    expected = {f"recall_at_{most}": np.mean(ranks <= most) for most in (1, 10, 100)}
    expected |= {"mrr": np.mean(1 / ranks), "mrr_at_10": np.mean(np.where(ranks <= 10, 1 / ranks, 0))}
    expected["ndcg_at_10"] = np.mean(np.where(ranks <= 10, 1 / np.log2(1 + ranks), 0))
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("count", [1, 7, 100])
def test_search_finds_the_nearest_in_the_order_of_equal_ones(monkeypatch, count):
    monkeypatch.setattr(corpus_search, "_QUERIES", 4)
    monkeypatch.setattr(corpus_search, "_DOCUMENTS", 9)
    random = np.random.default_rng(count)
    queries, documents = (random.integers(-2, 3, [size, 3]).astype(np.float32) for size in (10, 40))
    documents[17] = np.nan
    scores = np.nan_to_num(queries @ documents.T, nan=-np.inf)
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    found = [np.stack(each) for each in zip(*corpus_search.nearest(queries, documents, count), strict=True)]
    np.testing.assert_array_equal(found[1], expected)
    np.testing.assert_array_equal(found[0], np.take_along_axis(scores, expected, 1))


def test_the_text_of_a_query_is_not_found_for_it():
    query = Ranked("x", ("same",), None, "q", "", {"a": 1})
    examples = [Ranked("x", (text,), None, "", name, {}) for name, text in (("q", "same"), ("b", "same"), ("a", "c"))]
    scorer = corpus_search.CorpusScorer([*examples, query])
    vectors = np.array([3, 2, 1, 1], np.float32)[:, None, None]
    assert scorer.scores(vectors)["mrr_at_10"] == 1 / 2
    (found,) = scorer.predictions(vectors)
    assert found["documents"] == [{"id": "b", "score": 2, "relevance": 0}, {"id": "a", "score": 1, "relevance": 1}]
    examples[0] = examples[0]._replace(texts=("other",))  # the id of another text
    assert corpus_search.CorpusScorer([*examples, query]).scores(vectors)["mrr_at_10"] == 1 / 3


def write(folder, name, rows):
    (folder / name).write_text("".join(f"{json.dumps(row) if isinstance(row, dict) else row}\n" for row in rows))
    return str(folder / name)


CORPUS = [{"_id": f"d{n}", "title": "Title" * (n % 2), "text": f"text {n}"} for n in range(3)]
QUERIES = [{"_id": n, "text": f"query {n}"} for n in range(3)]
HEADER = "query-id\tcorpus-id\tscore"


def read(
    folder,
    task="embedding",
    labels=(),
    corpus=CORPUS,
    queries=QUERIES,
    name="test.tsv",
    qrels=(HEADER, "1\td2\t2"),
    **more,
):
    files = {
        "eval_corpus": write(folder, "corpus.jsonl", corpus),
        "eval_file": write(folder, "queries.jsonl", queries),
        "eval_qrels": write(folder, name, qrels),
    }
    notes = FileNotes()
    found = retrieval.read(FineTuningConfig(**files, **more), task, labels, notes)
    return found, [text for _, text in notes]


def test_files_of_beir_and_of_trec_eval_are_read(tmp_path):
    found, notes = read(tmp_path)
    assert [(each.texts, each.query, each.document, each.judged) for each in found] == [
        (("text 2",), "", "d2", {}),
        (("Title text 1",), "", "d1", {}),
        (("text 0",), "", "d0", {}),
        (("query 1",), "1", "", {"d2": 2}),
    ]
    assert [note.rpartition("/")[2] for note in notes] == ["test.tsv: 1 queries and 3 documents, 1 of them judged"]
    assert read(tmp_path, name="qrels.txt", qrels=["1 0 d2 2", ""])[0] == found
    unknown = read(tmp_path, qrels=[HEADER, "1\td2\t2", "7\td1\t1", "1\td9\t1"])[1][1:]
    assert ["queries.jsonl: 7" in unknown[0], "corpus.jsonl: d9" in unknown[1]] == [True, True]


def test_a_classifier_ranks_the_judged_documents(tmp_path):
    qrels = [HEADER, "1\td2\t2", "1\td0\t0", "1\td9\t1", "2\td0\t1"]
    found = read(tmp_path, "classification", ("no", "yes"), qrels=qrels)[0]
    expected = [("query 1", "text 2"), ("query 1", "text 0"), ("query 2", "text 0")]
    assert [each.texts for each in found] == expected
    assert [each.label for each in found] == ["yes", "no", "yes"]
    assert [each.label for each in read(tmp_path, "regression", qrels=qrels)[0]] == [2, 0, 1]
    # One of the two relevant documents of the first query has no text.
    scores = ranking.candidate_scores(found, np.array([0.5, 0.7, 0.1]))
    assert scores["mrr_at_10"] == (1 / 2 + 1) / 2
    assert scores["recall_at_10"] == (1 / 2 + 1) / 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"corpus": [CORPUS[0], CORPUS[0]]}, "line 2: the id d0 occurs for the second time"),
        ({"corpus": [{"text": "a"}]}, "line 1: the columns are text; expected one of _id, id"),
        ({"corpus": [{"_id": None, "text": "a"}]}, "line 1: _id is None; expected an id"),
        ({"queries": [{"_id": 1, "text": 5}]}, "line 1: text is 5; expected a text"),
        ({"qrels": [HEADER, "1\td2\tx"]}, "line 2 is 'x'; expected a number"),
        ({"qrels": [HEADER, "1\td2\t1", "1\td2\t0"]}, "line 3: query 1 and document d2 occur with another relevance"),
        ({"qrels": [HEADER, "8\td2\t1"]}, "it has no query of"),
        ({"qrels": [HEADER, "1\td9\t1"]}, "it has no query of"),
        ({"name": "a.txt", "qrels": ["1 1"]}, "line 1: 2 fields; expected QUERY, DOCUMENT and RELEVANCE"),
        ({"task": "classification", "labels": ("a", "b", "c")}, "3 classes; expected a model of two"),
    ],
)
def test_a_damaged_file_is_refused_with_its_line(tmp_path, given, message):
    with pytest.raises(DataError, match=message):
        read(tmp_path, **given)
