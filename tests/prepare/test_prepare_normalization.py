"""A preparation normalizes as its flags and its manifest say, and holds the characters of its text."""

import logging

import numpy as np
import pytest

from tests.kit import corpora
from tests.prepare.test_prepare import examples
from tftrain.data.manifest import read_manifest
from tftrain.prepare.preparation import prepare
from tftrain.tokenizer.vocabulary import read_vocabulary

SUPERSCRIPT = "\u00b2"


def used_tokens(folder):
    manifest = read_manifest(str(folder))
    tokens = read_vocabulary(manifest.path(manifest.vocab_file), "wordpiece").tokens
    return {tokens[number] for example in examples(folder) for number in example["input_ids"]}


@pytest.mark.parametrize(
    ("normalization", "recorded", "found"),
    [(None, "bert", SUPERSCRIPT), ("nfkc", "nfkc", "2")],
)
def test_given_vocabulary_is_used_with_the_normalization_of_the_flag(
    prepare_config, tmp_path, caplog, normalization, recorded, found
):
    text = corpora.text(30).replace("text", SUPERSCRIPT)
    vocab_file = corpora.vocab_file(tmp_path / "vocab", ["2", SUPERSCRIPT])
    changes = {"text": text, "eval_fraction": 0.0, "vocab_file": str(vocab_file)}
    changes["normalization"] = normalization
    with caplog.at_level(logging.WARNING):
        prepare(prepare_config(tmp_path / "out", **changes))
    assert read_manifest(str(tmp_path / "out")).normalization == recorded
    assert used_tokens(tmp_path / "out") & {"2", SUPERSCRIPT} == {found}
    expected = f"{vocab_file}: 1 whole words of it, such as {SUPERSCRIPT}, never occur with --normalization=nfkc"
    assert (expected in caplog.text) == (recorded == "nfkc")


@pytest.mark.parametrize(("normalization", "found"), [("bert", SUPERSCRIPT), ("nfkc", "2")])
def test_vocabulary_is_learned_from_the_words_that_are_tokenized(prepare_config, tmp_path, normalization, found):
    text = corpora.text(30).replace("text", SUPERSCRIPT)
    changes = {"text": text, "eval_fraction": 0.0, "vocab_file": None, "vocab_size": 200}
    prepare(prepare_config(tmp_path / "out", normalization=normalization, **changes))
    assert used_tokens(tmp_path / "out") & {"2", SUPERSCRIPT, "[UNK]"} == {found}


def test_chinese_text_keeps_its_characters(prepare_config, tmp_path, caplog):
    rng = np.random.default_rng(0)
    codes, weights = np.arange(0x4E00, 0x4E00 + 500), 1 / np.arange(1, 501)

    def sentence():
        return "".join(map(chr, rng.choice(codes, rng.integers(5, 25), p=weights / weights.sum()))) + "\u3002"

    text = "\n\n".join("\n".join(sentence() for _ in range(10)) for _ in range(40))
    changes = {"text": text, "eval_fraction": 0.0, "vocab_file": None}
    with caplog.at_level(logging.WARNING):
        prepare(prepare_config(tmp_path / "out", vocab_size=600, **changes))
        assert "--vocab_size=600: the text" not in caplog.text
        prepare(prepare_config(tmp_path / "small", vocab_size=100, **changes))
        assert "--vocab_size=100: the text has " in caplog.text
    assert "[UNK]" not in used_tokens(tmp_path / "out")
    assert "too few different words" not in caplog.text
