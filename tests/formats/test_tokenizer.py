"""Tokenizers that others made: which are read, and which are refused because their words are others."""

import json
import shutil
from pathlib import Path

import pytest

from tftrain.formats import tokenizer
from tftrain.formats.errors import FormatError

BERT = Path(__file__).parent / "data/hf_bert"


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("tokenizer_config.json", {"word_tokenizer_type": "mecab"}, "word_tokenizer_type 'mecab'"),
        ("tokenizer_config.json", {"subword_tokenizer_type": "character"}, "subword_tokenizer_type 'character'"),
        ("tokenizer_config.json", {"tokenize_chinese_chars": False}, "tokenize_chinese_chars False"),
        ("tokenizer.json", {"normalizer": {"type": "NFC"}}, "normalizer 'NFC'"),
        ("tokenizer.json", {"normalizer": None}, "normalizer None"),
        (
            "tokenizer.json",
            {"normalizer": {"type": "BertNormalizer", "handle_chinese_chars": False}},
            "handle_chinese_chars False",
        ),
        ("tokenizer.json", {"pre_tokenizer": {"type": "Whitespace"}}, "pre_tokenizer 'Whitespace'"),
    ],
)
def test_words_that_are_not_those_of_bert_are_refused(tmp_path, file, changes, message):
    folder = shutil.copytree(BERT, tmp_path / "model")
    assert tokenizer.read(folder).lower_case
    content = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(content | changes))
    with pytest.raises(FormatError, match=f"{folder}: the tokenizer has {message}; expected words as BERT has them"):
        tokenizer.read(folder)
