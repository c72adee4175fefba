"""Tokenizers that others made: which are read, and which are refused because their words are others."""

import json
import shutil
from pathlib import Path

import pytest
import tokenizers

from tftrain.files.errors import FormatError
from tftrain.finetune import squad
from tftrain.finetune.encoding import ExampleEncoder
from tftrain.tokenizer import tokenizer_files
from tftrain.tokenizer.added_tokens import with_added as with_added_tokens
from tftrain.tokenizer.vocabulary import read_vocabulary

BERT = Path(__file__).parents[1] / "formats/data/hf_bert"
NOT_CHINESE = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": False}
NOT_CHINESE |= {"lowercase": True, "strip_accents": None}


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("tokenizer_config.json", {"word_tokenizer_type": "mecab"}, "word_tokenizer_type 'mecab'"),
        ("tokenizer_config.json", {"subword_tokenizer_type": "character"}, "subword_tokenizer_type 'character'"),
        ("tokenizer_config.json", {"tokenize_chinese_chars": False}, "tokenize_chinese_chars False"),
    ],
)
def test_words_that_are_not_those_of_bert_are_refused(tmp_path, file, changes, message):
    folder = shutil.copytree(BERT, tmp_path / "model")
    assert tokenizer_files.read(folder).lower_case
    content = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(content | changes))
    with pytest.raises(FormatError, match=f"{folder}: the tokenizer has {message}; expected words as BERT has them"):
        tokenizer_files.read(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": {"type": "NFC"}},
        {"normalizer": None},
        {"normalizer": NOT_CHINESE},
        {"pre_tokenizer": {"type": "Whitespace"}},
    ],
    ids=str,
)
def test_words_of_another_pipeline_are_those_of_the_library(tmp_path, changes):
    folder, written = shutil.copytree(BERT, tmp_path / "model"), tmp_path / "written"
    content = json.loads((folder / "tokenizer.json").read_text()) | changes
    (folder / "tokenizer.json").write_text(json.dumps(content))
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = ["a bed\u4e00\u4e01 e\u0301.", "", "Sing-sing bedss"]
    for _ in range(2):
        own = tokenizer_files.read(folder)
        assert own.vocabulary.tokenizer_type == "pipeline"
        assert own.vocabulary.roles == tokenizer_files.read(BERT).vocabulary.roles
        found = [ids.tolist() for ids in own.build()(texts)]
        assert found == [each.ids for each in library.encode_batch(texts, add_special_tokens=False)]
        written.mkdir(exist_ok=True)
        tokenizer_files.write(written, own)
        folder = written


ADDED = [
    {"content": "[E1]", "special": True},
    {"content": "covid19", "normalized": True},
    {"content": "<ent>", "lstrip": True, "rstrip": True, "special": True},
    {"content": "tic", "single_word": True},
    {"content": "Ärzte", "normalized": True},
]
TEXTS = ["a [E1] bed", "the Covid19s COVID19 covid19", "a <ent> sing tic tics", "ärzte ARZTE [e1] [MASK] [SEP]", ""]
TEXTS += ["[E1][E1]\tbed\u3000<ent>"]


def with_added(tmp_path, where):
    """A folder with a tokenizer whose added tokens are in the file `where`, and those of the library."""
    folder = shutil.copytree(BERT, tmp_path / "added")
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    for each in ADDED:
        add = library.add_special_tokens if each.get("special") else library.add_tokens
        add([tokenizers.AddedToken(**({"normalized": False} | each))])
    library.save(str(folder / "tokenizer.json"))
    added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    if where != "tokenizer.json":
        (folder / "tokenizer.json").unlink()
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        decoder = {str(each["id"]): {name: each[name] for name in each if name != "id"} for each in added}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"added_tokens_decoder": decoder}))
    if where == "tokenizer.json alone":
        (folder / "vocab.txt").unlink()
    # The five special tokens are letters here.
    content = json.loads(library.to_str())
    for each in content["added_tokens"]:
        each["special"] = each["content"] in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    library = tokenizers.Tokenizer.from_str(json.dumps(content))
    library.encode_special_tokens = True
    return folder, [encoding.ids for encoding in library.encode_batch(TEXTS, add_special_tokens=False)]


@pytest.mark.parametrize("where", ["tokenizer.json", "tokenizer_config.json"])
def test_added_tokens_of_word_pieces_are_those_of_the_library(tmp_path, where):
    folder, expected = with_added(tmp_path, where)
    own = tokenizer_files.read(folder)
    assert own.vocabulary.tokens[35:] == tuple(each["content"] for each in ADDED)
    assert [ids.tolist() for ids in own.build()(TEXTS)] == expected
    (tmp_path / "written").mkdir()
    tokenizer_files.write(tmp_path / "written", own, 128)
    again = tokenizer_files.read(tmp_path / "written")
    assert (again.vocabulary, again.model) == (own.vocabulary, own.model)
    settings = json.loads((tmp_path / "written/tokenizer_config.json").read_text())
    assert settings["model_max_length"] == 128
    assert settings["added_tokens_decoder"]["36"]["content"] == "covid19"
    assert (tmp_path / "written/vocab.txt").read_text() == (BERT / "vocab.txt").read_text()


@pytest.mark.parametrize(
    ("files", "text", "expected"),
    [
        ({"added_tokens.json": {"[E1]": 35}}, "a [E1] b [e1]", [6, 35, 7, 35]),
        ({"added_tokens.json": {"[E1]": 36, "<x>": 35}}, "<x>[E1]", [35, 36]),
        ({"special_tokens_map.json": {"additional_special_tokens": ["[E1]"]}}, "a [E1] [e1]", [6, 35, None]),
        ({"special_tokens_map.json": {"additional_special_tokens": [{"content": "bed"}]}}, "abed", [6, "bed"]),
        ({"tokenizer_config.json": {"extra_special_tokens": {"entity": "[E1]"}}}, "[E1]", [35]),
    ],
    ids=str,
)
def test_added_tokens_are_read_from_each_file_that_has_them(tmp_path, files, text, expected):
    folder = shutil.copytree(BERT, tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    own = tokenizer_files.read(folder)
    (ids,) = own.build()([text])
    found = ids.tolist()[: len(expected)]
    expected = [own.vocabulary.id(each) if isinstance(each, str) else each for each in expected]
    assert [None if each is None else number for each, number in zip(expected, found, strict=True)] == expected


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("added_tokens.json", added) for added in ({"[E1]": 40}, {"a": 35}, {"[E1]": "35"}, {"[E1]": -1}, {"": 35})),
        ("tokenizer_config.json", {"added_tokens_decoder": ["x"]}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {"content": "y"}}}),
        ("tokenizer_config.json", {"extra_special_tokens": [5]}),
        ("special_tokens_map.json", {"additional_special_tokens": {"a": None}}),
    ],
    ids=str,
)
def test_a_damaged_added_token_or_one_with_the_id_of_another_is_refused(tmp_path, name, content):
    folder = shutil.copytree(BERT, tmp_path / "model")
    (folder / name).write_text(json.dumps(content))
    with pytest.raises(FormatError, match="added token"):
        tokenizer_files.read(folder)


def test_added_tokens_of_another_tokenizer_beside_a_vocabulary_are_not_read(tmp_path):
    shutil.copy(BERT / "vocab.txt", tmp_path)
    shutil.copy(BERT.parent / "hf_gpt2/tokenizer.json", tmp_path)
    vocabulary = read_vocabulary(str(tmp_path / "vocab.txt"), "wordpiece")
    assert with_added_tokens(vocabulary, str(tmp_path), True, None) == (vocabulary, None)


def test_an_added_token_of_a_context_is_a_word_with_its_place(tmp_path):
    folder, _ = with_added(tmp_path, "tokenizer.json")
    encoder = ExampleEncoder(tokenizer_files.read(folder), 32)
    context = "a [E1]bed, tics tic"
    question = squad.Question("line 1", "1", "a", context, ("[E1]",), (2,))
    (window,), (encoded,) = squad.divide([question], encoder, "wordpiece", 16, 8)
    begin, end = window[-1]
    assert encoded.ids[begin : end + 1].tolist() == [35]
    assert [context[first:last] for first, last in window.spans] == ["a", "[E1]", "bed", ",", "tics", "tic"]
