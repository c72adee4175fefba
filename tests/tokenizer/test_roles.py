"""Roles of tokens: assigned by files, by templates and by usual names, with any ids."""

import json

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from tftrain.files.errors import DataError, FormatError
from tftrain.tokenizer import roles, tokenizer_files
from tftrain.tokenizer.roles import Roles
from tftrain.tokenizer.vocabulary import Vocabulary, read_vocabulary, write_vocabulary

BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a")
ROBERTA = ("<s>", "<pad>", "</s>", "<unk>", "a", "<mask>")
OTHER = ("a", "#p", "#u", "#c", "#s", "#m")
NAMED = dict(zip((f"{name}_token" for name in ("pad", "unk", "cls", "sep", "mask")), OTHER[1:], strict=True))


@pytest.mark.parametrize(
    ("tokens", "settings", "expected"),
    [
        (BERT, {}, Roles(0, 1, 2, 3, 4, 3)),
        (BERT[::-1], {}, Roles(5, 4, 3, 2, 1, 2)),
        (ROBERTA, {}, Roles(1, 3, 0, 2, 5, 2, 2, 0)),
        (OTHER, NAMED, Roles(1, 2, 3, 4, 5, 4)),
        (OTHER, NAMED | {"pad_token": {"content": "#u", "lstrip": False}}, Roles(2, 2, 3, 4, 5, 4)),
        ((*OTHER, "[PAD]"), NAMED | {"pad_token": None, "eos_token": "a"}, Roles(6, 2, 3, 4, 5, 0)),
        (("a", "<|endoftext|>", "<bos>"), {"bos_token": "<bos>"}, Roles(beginning=2, end=1)),
        (("a", "<bos>", "<eos>"), {"bos_token": "<bos>", "eos_token": "<eos>"}, Roles(None, None, 1, 2, None, 2)),
        (("a",), {"pad_token": "missing"}, Roles()),
    ],
    ids=str,
)
def test_files_assign_roles_and_usual_names_have_the_rest(tmp_path, tokens, settings, expected):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert roles.beside(str(tmp_path), tokens) == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mask_token": "<nope>"}, "no token is the mask_token '<nope>'; expected one of the 6 of the vocabulary"),
        ({"cls_token": "x", "bos_token": {"content": "y"}}, "no token is the cls_token 'x' and bos_token 'y'"),
        ({"mask_token": 7}, "mask_token is 7; expected a token or null"),
        ({"sep_token": {"lstrip": True}}, "sep_token is .*lstrip.*; expected a token or null"),
    ],
)
def test_a_name_that_no_token_has_is_not_replaced_by_the_usual_one(tmp_path, settings, message):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(DataError, match=f"tokenizer_config.json: {message}"):
        roles.beside(str(tmp_path), ROBERTA)
    (tmp_path / "vocab.txt").write_text("\n".join([*BERT, ""]))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"mask_token": "[PAD]"}))
    with pytest.raises(DataError, match=r"vocab.txt: the mask '\[PAD\]' has another role too"):
        read_vocabulary(str(tmp_path / "vocab.txt"), "wordpiece")


def library(pair):
    """A tokenizer of letters with ROBERTA's tokens and a template for two texts."""
    tokenizer = Tokenizer(models.WordLevel({token: number for number, token in enumerate(ROBERTA)}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([token for token in ROBERTA if token != "a"])
    ids = [(token, number) for number, token in enumerate(ROBERTA)]
    if pair == "far":
        ids, pair = [("<s>", 70000), ("</s>", 2)], "<s> $A </s> </s> $B </s>"
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", pair, special_tokens=ids) if pair else None
    return tokenizer


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ("<s> $A </s> </s> $B </s>", Roles(1, 3, 0, 2, 5, 2, 2, 0)),
        ("<s> $A </s> $B:1 </s>:1", Roles(1, 3, 0, 2, 5, 2, 1, 1)),
        ("<pad> $A <unk> $B <unk>", Roles(1, 3, 1, 3, 5, 2, 1, 0)),
        (None, Roles(1, 3, 0, 2, 5, 2, 2, 0)),
        ("$A </s> $B </s>", r"it puts the tokens \[\] before a text, \[2\] between two and \[2\] after"),
        ("<s> $A </s> <s> $B </s>", r"\[2, 0\] between two"),
        ("far", r"it puts the ids \[70000\] before a text and \[2\] after it; expected those of its tokens"),
    ],
)
def test_the_template_says_what_is_around_texts(tmp_path, pair, expected):
    library(pair).save(str(tmp_path / "tokenizer.json"))
    if isinstance(expected, str):
        with pytest.raises(FormatError, match=expected):
            tokenizer_files.read(tmp_path)
        return
    own = tokenizer_files.read(tmp_path)
    assert own.vocabulary.roles == expected
    (tmp_path / "written").mkdir()
    tokenizer_files.write(tmp_path / "written", own)
    assert tokenizer_files.read(tmp_path / "written") == own


@pytest.mark.parametrize(
    "recorded", [{"padding": 6}, {"padding": -1}, {"mask": "5"}, {"pad": 1}, [1], "x", {"mask": True}]
)
def test_roles_of_a_manifest_that_are_not_those_of_its_vocabulary_are_refused(tmp_path, recorded):
    (tmp_path / "manifest.json").write_text(json.dumps({"roles": recorded}))
    with pytest.raises(DataError, match=r"manifest.json: roles is .*; expected ids below 6 by role"):
        roles.beside(str(tmp_path), BERT)


def test_a_role_without_a_token_is_named(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join([*OTHER, ""]))
    with pytest.raises(DataError, match=r"lacks \[PAD\] .*; expected \[PAD\].*tokenizer_config.json"):
        read_vocabulary(str(tmp_path / "vocab.txt"), "wordpiece")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(NAMED))
    vocabulary = read_vocabulary(str(tmp_path / "vocab.txt"), "wordpiece")
    assert (vocabulary.of_role("mask"), vocabulary.padding_id) == ("#m", 1)
    assert vocabulary.ordinary_ids.tolist() == [0]
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "<s>": 1}, "a"))
    (tmp_path / "tokenizer_config.json").unlink()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(FormatError, match=r"no token ends a document.* none is for padding and separator and mask"):
        tokenizer_files.read(tmp_path)


def test_tokens_with_line_breaks_are_those_that_were_written(tmp_path):
    tokens = ("<eos>", "\n", "\n\n", "\r", "\0", '"', '""', '"a"', '"\n"', "", "\u2028", "\\n", "\x85")
    vocabulary = Vocabulary(tokens, "pipeline", Roles(end=0))
    write_vocabulary(str(tmp_path / "vocab"), vocabulary)
    assert read_vocabulary(str(tmp_path / "vocab"), "pipeline", vocabulary.roles) == vocabulary
