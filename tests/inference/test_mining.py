"""Hard negatives, against sorting all texts of a corpus by their scores."""

import json
import types

import numpy as np
import pytest

from tests.formats.models import DATA
from tests.test_predict import run as run_program
from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.config.predict import PredictFlags
from tftrain.finetune import corpus_search
from tftrain.inference import mining

COUNT = 300


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """Files of pairs and of a corpus, and what gives the vectors of their texts."""
    monkeypatch.setattr(corpus_search, "_QUERIES", 16)
    monkeypatch.setattr(corpus_search, "_DOCUMENTS", 64)
    random = np.random.default_rng(4)
    corpus = [f"text {number}" for number in range(COUNT)]
    # Anchors with several positives; a positive outside of the corpus; an anchor that is in the corpus.
    pairs = [(f"anchor {number % 40}", f"text {random.integers(COUNT)}") for number in range(60)]
    pairs += [("anchor 0", "elsewhere"), ("text 7", "text 8"), ("text 7", "text 9")]
    vectors = {}
    for text in (*corpus, *(text for pair in pairs for text in pair)):
        vectors.setdefault(text, random.normal(size=4).astype(np.float32))
    vectors["text 5"] = vectors["text 6"]
    (tmp_path / "corpus.txt").write_text("".join(f"{text}\n" for text in (*corpus, corpus[3])))
    lines = ({"text": anchor, "text_pair": positive} for anchor, positive in pairs)
    (tmp_path / "pairs.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    def of_column(given, column):
        assert column == (set(given) != {anchor for anchor, _ in pairs})  # the partners' prompt is that of documents
        return np.stack([vectors[text] for text in given])

    model = types.SimpleNamespace(vectors=of_column)
    return types.SimpleNamespace(folder=tmp_path, corpus=corpus, pairs=pairs, vectors=vectors, model=model)


def mined(texts, **flags):
    path = str(texts.folder / "pairs.jsonl")
    flags = {"mine": str(texts.folder / "corpus.txt"), "mine_negatives": 3} | flags
    settings = PredictFlags(input_file=path, **flags)
    return list(mining.mined(texts.model, settings, FineTuningConfig(train_file=path)))


def candidates(texts, anchor, positive, first, last, margin):
    """Returns all texts that may be negatives of a pair, the nearest first."""
    own = {other for each, other in texts.pairs if each == anchor} | {anchor}
    score = {text: float(texts.vectors[anchor] @ texts.vectors[text]) for text in (*texts.corpus, positive)}
    ranked = sorted((text for text in texts.corpus if text not in own), key=lambda text: -score[text])
    limit = score[positive] - margin * abs(score[positive])
    return [text for text in ranked[first - 1 : last] if score[text] <= limit]


@pytest.mark.parametrize(("first", "last", "margin"), [(1, 100, 0.05), (10, 40, 0.0), (1, 300, 0.5), (250, 400, 0.2)])
@pytest.mark.parametrize("sampling", ["top", "random"])
def test_negatives_are_those_of_an_exact_search(texts, caplog, first, last, margin, sampling):
    seed = {"seed": 3} if sampling == "random" else {}
    flags = {"mine_skip": first - 1, "mine_depth": last, "mine_margin": margin, "mine_sampling": sampling, **seed}
    found = mined(texts, **flags)
    expected = {pair: candidates(texts, *pair, first, last, margin) for pair in dict.fromkeys(texts.pairs)}
    enough = [pair for pair, each in expected.items() if len(each) >= 3]
    assert [(row["anchor"], row["positive"]) for row in found] == enough
    assert 0 < len(enough) < len(expected)
    assert f"{len(expected) - len(enough)} of {len(expected)} pairs have fewer negatives" in caplog.text
    drawn = [[row[f"negative_{number}"] for number in (1, 2, 3)] for row in found]
    if sampling == "top":
        assert drawn == [expected[pair][:3] for pair in enough]
        return
    for pair, each in zip(enough, drawn, strict=True):
        assert sorted(set(each), key=expected[pair].index) == each
    assert drawn != [expected[pair][:3] for pair in enough]
    assert mined(texts, **flags) == found
    assert mined(texts, **flags | {"seed": 4}) != found


def test_the_positives_of_the_file_may_be_the_corpus(texts):
    path = str(texts.folder / "pairs.jsonl")
    found = mined(texts, mine=path, mine_margin=0)
    positives = {positive for _, positive in texts.pairs}
    assert found
    assert {text for row in found for name, text in row.items() if name.startswith("negative")} <= positives


def test_the_program_writes_samples_for_training(tmp_path, capsys):
    (tmp_path / "pairs.tsv").write_text("text\ttext_pair\na bed\tsing a\nq\tbed bed\n")
    (tmp_path / "corpus.jsonl").write_text(
        "".join(f'{{"text": "{text}"}}\n' for text in ("a", "sing", "q q", "bed a q"))
    )
    source = f"--init_checkpoint=hf:{DATA / 'hf_bert_model'}"
    given = (source, f"--input_file={tmp_path / 'pairs.tsv'}", f"--mine={tmp_path / 'corpus.jsonl'}")
    code, out, err = run_program(capsys, *given, "--mine_negatives=1", "--mine_margin=0", "--batch_size=2")
    assert code == 0, err
    rows = [json.loads(line) for line in out.splitlines()]
    assert all(row.keys() == {"anchor", "positive", "negative_1"} for row in rows)
    decoder = f"--init_checkpoint=hf:{DATA / 'hf_gpt2'}"
    code, out, err = run_program(capsys, decoder, *given[1:], "--mine_negatives=1", "--mine_margin=0")
    assert (code, out.count("negative_1")) == (0, 2), err


def test_texts_that_are_longer_than_the_model_reads_are_refused_or_cut_with_a_warning(tmp_path, capsys):
    (tmp_path / "pairs.tsv").write_text(f"text\ttext_pair\na bed\tsing a\nq\t{'sing ' * 20}\n")
    files = f"--input_file={tmp_path / 'pairs.tsv'}", f"--mine={tmp_path / 'pairs.tsv'}"
    given = (f"--init_checkpoint=hf:{DATA / 'hf_bert_model'}", *files)
    code, _, err = run_program(capsys, *given, "--max_seq_length=4096")
    assert (code, "--max_seq_length=4096: expected at most" in err) == (1, True)
    code, _, err = run_program(capsys, *given, "--max_seq_length=8", "--mine_negatives=1", "--mine_margin=0")
    cut = "1 of 2 texts are cut: the model reads at most 8 tokens"
    assert (code, err.count(cut), err.count("are cut")) == (0, 1, 1)
