"""Tokenizers of the library's format as graphs: the ids of the library, in twelve scripts."""

import json
import unicodedata

import numpy as np
import pytest
import tensorflow as tf
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from tests.kit import scripts
from tests.tokenizer import libraries
from tests.tokenizer.libraries import LIBRARIES
from tftrain.inference.serving.pipeline_graph import PipelineGraph

# Spaces beside a mask, tokens that no text spells, one character, none.
TEXTS = ["", " ", "   a", "a<mask>b", "a  <mask>  b <mask>", "<mask>", "</s> <pad>a", "a\r\nb", "'s it's !'s '"]
TEXTS += ["\n\n x", "e\u0301\u0323x"]


def same_ids(model, texts):
    """Returns the texts whose ids are not those of the library, which is asked without this project's code."""
    content, mask, hidden = json.loads(model), None, set()
    if "<mask>" in Tokenizer.from_buffer(model).get_vocab():
        mask, hidden = "<mask>", {"<s>", "</s>", "<pad>", "<unk>"}
    graph = PipelineGraph(model, hidden | {mask} - {None}, mask)
    for each in content["added_tokens"] if mask else ():
        each["special"] = each["content"] in hidden
    if mask and content["model"]["type"] == "Unigram":  # Its tokens would be found in a text that spells them.
        content["added_tokens"] = [each for each in content["added_tokens"] if not each["special"]]
        content["model"]["vocab"] = [
            ["\U0010ffff" * (each[0] in hidden) + each[0], each[1]] for each in content["model"]["vocab"]
        ]
    library = Tokenizer.from_str(json.dumps(content))
    library.encode_special_tokens = True
    run = tf.function(
        lambda strings: graph(strings, with_mask=mask is not None), autograph=False, reduce_retracing=True
    )
    different = []
    for begin in range(0, len(texts), 1000):
        part = texts[begin : begin + 1000]
        expected = [each.ids for each in library.encode_batch(part, add_special_tokens=False)]
        found = run(tf.constant(part)).to_list()
        different += [text for text, *both in zip(part, found, expected, strict=True) if both[0] != both[1]]
    return different


@pytest.mark.parametrize("name", LIBRARIES)
def test_ids_are_those_of_the_library(name):
    model = LIBRARIES[name]()
    assert same_ids(model, TEXTS + scripts.lines(600, seed=5)) == []


def test_a_map_of_characters_replaces_what_the_library_does():
    content = json.loads(libraries.xlm_roberta())["normalizer"]
    rng = np.random.default_rng(3)
    codes = [code for code in range(1, 0x110000) if not 0xD800 <= code < 0xE000]
    marks = [0x300, 0x301, 0x323, 0x344, 0x3099, 0x200D, 0xFE0F, 0xD, 0xA, 0x61, 0x65, 0xA9, 0x1100, 0x1161, 0xFF9E]
    drawn = rng.choice([*rng.choice(codes, 4000), *(marks * 300), *range(1, 0x500)], [3000, 12])
    texts = [f"a{chr(code)}ab" for code in codes if code < 0x3400 or 0xF900 <= code < 0x10000 or code % 37 == 0]
    texts += ["".join(map(chr, row)) for row in drawn.tolist()]
    from tftrain.inference.serving.character_map_graph import CharacterMapGraph

    graph = tf.function(CharacterMapGraph(content["precompiled_charsmap"]).__call__, autograph=False)
    normalizer = Tokenizer.from_buffer(libraries.xlm_roberta()).normalizer
    found = [each.decode() for each in graph(tf.constant(texts)).numpy()]
    different = [text for text, own in zip(texts, found, strict=True) if own != normalizer.normalize_str(text)]
    assert different == []


def test_added_tokens_are_found_with_the_spaces_that_belong_to_them():
    tokenizer = Tokenizer.from_buffer(libraries.xlm_roberta())
    from tokenizers import AddedToken

    tokens = [AddedToken("[E1]", normalized=False), AddedToken("[E1]x", normalized=False, rstrip=True)]
    tokenizer.add_tokens([*tokens, AddedToken("\\1+", normalized=False, lstrip=True, rstrip=True)])
    texts = ["a [E1] b", "a[E1]x  b", "[E1]x", "a \\1+ b\\1+", "[E1][E1]x\t<mask> [E1]", "\\1"]
    assert same_ids(tokenizer.to_str().encode(), texts) == []


def variant(**changes):
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "<mask>": 1}, "<unk>"))
    tokenizer.model = models.Unigram([("<unk>", 0.0), ("a", -1.0)], 0)
    for name, value in changes.items():
        setattr(tokenizer, name, value)
    return tokenizer.to_str().encode()


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_forms_of_unicode_are_those_of_the_library(form):
    known = unicodedata.ucd_3_2_0  # Later characters may have a form in one of the two only.
    codes = [code for code in range(1, 0x30000) if known.category(chr(code)) not in ("Cn", "Co", "Cs")]
    texts = [
        f"{chr(code)}\u0301\u0323\u3099a{chr(code)}" for code in codes if not 0x3400 <= code < 0xF900 or code % 37 == 0
    ]
    normalizer = getattr(normalizers, form)()
    graph = PipelineGraph(variant(normalizer=normalizer), (), None)
    found = [each.decode() for each in graph._normalize(tf.constant(texts)).numpy()]
    assert found == list(map(normalizer.normalize_str, texts))
    assert graph.needs_tensorflow_text


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (variant(normalizer=normalizers.Lowercase()), "its normalizer has Lowercase"),
        (variant(pre_tokenizer=pre_tokenizers.Punctuation()), "its pre-tokenizer has Punctuation"),
        (variant(pre_tokenizer=pre_tokenizers.ByteLevel(use_regex=False)), "ByteLevel, or other words"),
        (variant(model=models.WordLevel({"a": 0}, "a")), "its model is a WordLevel"),
        (variant(model=models.BPE({"a": 0}, [], unk_token="a")), "no unknown token for a run"),
        (variant(model=models.Unigram([("<unk>", 0.0)], 0, True)), "not a token for each byte"),
    ],
)
def test_what_has_no_ops_is_named(model, message):
    with pytest.raises(ValueError, match=message):
        PipelineGraph(model, (), None)
