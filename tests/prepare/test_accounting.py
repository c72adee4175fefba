"""Every token of a text is in an example or is accounted for, whatever the text looks like."""

import re

import numpy as np
import pytest

from tests.kit import corpora
from tests.prepare.test_prepare import examples
from tftrain.files.errors import DataError
from tftrain.prepare.preparation import prepare

PARAGRAPH = "the model reads text and learns which word is missing from its data while examples pass through layer"


def lower_cased(documents, sentences=30):
    """Returns text without capitals, one long paragraph for each document."""
    texts = (corpora.text(1, seed=number, sentences=sentences) for number in range(documents))
    return "\n\n".join(text.lower().replace("\n", " ") for text in texts)


def made(prepare_config, tmp_path, text, **changes):
    return prepare(prepare_config(tmp_path / "out", text, **{"shard_mb": 1.0, "eval_fraction": 0.2} | changes))


def adds_up(manifest):
    return manifest.tokens_read == manifest.tokens_in_examples + sum(manifest.tokens_dropped.values())


@pytest.mark.parametrize("changes", [{}, {"dupe_factor": 2}])
def test_lower_cased_text_is_all_in_examples(prepare_config, tmp_path, changes):
    manifest = made(prepare_config, tmp_path, lower_cased(50), max_seq_length=64, deduplicate="none", **changes)
    assert adds_up(manifest)
    assert manifest.tokens_in_examples == manifest.tokens_read > 50 * 30 * 5
    # An example consumes 45 tokens on average, and a document ends with shorter ones.
    count = manifest.examples("train") + manifest.examples("eval")
    turns = changes.get("dupe_factor", 1)
    assert 1 < count / turns / (manifest.tokens_read / 61) < 2
    labels = [record["next_sentence_labels"][0] for record in examples(tmp_path / "out")]
    assert abs(np.mean(labels) - 0.5) < 2.5 / np.sqrt(len(labels))


def test_a_long_line_is_all_in_examples(prepare_config, tmp_path):
    words = np.random.default_rng(0).choice(corpora.WORDS, 60_000)
    changes = {"eval_fraction": 0.0, "max_seq_length": 128}
    manifest = made(prepare_config, tmp_path, " ".join(words), **changes)
    assert manifest.tokens_in_examples == manifest.tokens_read >= len(words)
    # There is one document, so all pairs are consecutive, and each has 125 tokens of its own.
    assert 1 < manifest.examples("train") / (manifest.tokens_read / 125) < 1.2


def test_examples_hold_the_tokens_of_the_text(prepare_config, tmp_path):
    """Counts the tokens in the records, without the accounting."""
    extra = [f"word{number}" for number in range(3000)]
    documents = [" ".join(extra[begin : begin + 100]) for begin in range(0, 3000, 100)]
    vocab = corpora.vocab_file(tmp_path / "vocab", extra)
    manifest = made(prepare_config, tmp_path, "\n\n".join(documents), vocab_file=str(vocab), deduplicate="none")
    records = examples(tmp_path / "out") + examples(tmp_path / "out", "eval")
    found = {token for record in records for token in record["input_ids"]}
    assert len(found - {2, 3}) == 3000 == manifest.tokens_in_examples == manifest.tokens_read


def test_duplicates_and_documents_of_one_token_are_counted(prepare_config, tmp_path, capsys):
    copies = [PARAGRAPH, f"{PARAGRAPH} .\n{PARAGRAPH.upper()}", "the"] * 20
    text = f"{corpora.text(40)}\n" + "\n\n".join(copies)
    manifest = made(prepare_config, tmp_path, text)
    words = len(PARAGRAPH.split())
    assert adds_up(manifest)
    assert manifest.tokens_dropped["duplicate_paragraph"] == 39 * words + 19 * (words + 1)
    # A random next sentence of one token may be such a document.
    assert 0 < manifest.tokens_dropped["document_of_one_token"] <= 20
    assert manifest.unk_share == 0
    printed = capsys.readouterr().out
    row = rf"tokens read +{manifest.tokens_read:,}\n  tokens in examples +{manifest.tokens_in_examples:,} +\d\d\.\d\d%"
    assert re.search(row, printed)
    assert printed.count("\nexample, B ") == 3
    kept = made(prepare_config, tmp_path, text, deduplicate="none", overwrite=True)
    assert kept.tokens_read == manifest.tokens_read
    assert kept.tokens_dropped["duplicate_paragraph"] == 0


def test_text_that_is_hardly_used_is_a_warning(prepare_config, tmp_path, capsys):
    text = corpora.text(10) + "\n\n" + "\n\n".join(["the"] * 1000)
    manifest = made(prepare_config, tmp_path, text, min_tokens_used=0.1)
    assert adds_up(manifest)
    assert manifest.tokens_dropped["document_of_one_token"] > 500
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "tokens are in examples" in line]
    assert re.search(r"only \d\d\.\d% of [\d,]+ tokens .*; join lines that belong to one document", line)


@pytest.mark.parametrize("words", [[], ["the"]])
def test_a_split_without_examples_is_refused(prepare_config, tmp_path, words):
    text = "\n\n".join(words + [PARAGRAPH] * 100)
    with pytest.raises(DataError, match=r"--input_files=.*: the (held-out|training) split has no example; expected"):
        made(prepare_config, tmp_path, text, min_tokens_used=0.0)
    assert not (tmp_path / "out").exists()


def test_unknown_characters_are_named(prepare_config, tmp_path, capsys):
    text = corpora.text(40).replace(" data ", " 漢字漢 ").replace(" model ", " дом ")
    manifest = made(prepare_config, tmp_path, text)
    records = examples(tmp_path / "out") + examples(tmp_path / "out", "eval")
    share = np.mean([token == 1 for record in records for token in record["input_ids"]])
    assert 0.01 < manifest.unk_share < 0.2
    assert abs(manifest.unk_share - share) < 0.02
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "[UNK]" in line]
    assert re.search(r"\d\.\d% of the tokens are \[UNK\], most often for 漢 .*; use a --vocab_file that has", line)
    assert "字" in line
    assert "д" in line
