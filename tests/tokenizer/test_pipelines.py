"""Pipelines of the library `tokenizers` and models of sentencepiece: read as they are, kept, and named if damaged."""

import json

import pytest
import sentencepiece
from tokenizers import Tokenizer

from tests.kit import scripts
from tests.tokenizer import libraries
from tests.tokenizer.libraries import LIBRARIES, XLM_R, sentencepiece_model
from tftrain.files.errors import FormatError
from tftrain.tokenizer import character_map, pipelines, tokenizer_files

LINES = [line for line in scripts.lines(5_500, seed=3) if "</s>" not in line][:5_000]
NAMES = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>"}


def folder_of(tmp_path, model, **settings):
    (tmp_path / "tokenizer.json").write_bytes(model)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings or NAMES))
    return tmp_path


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_tokenizer_is_read_and_written_with_the_ids_of_the_library(tmp_path, name):
    own = tokenizer_files.read(folder_of(tmp_path, LIBRARIES[name]()))
    library = Tokenizer.from_buffer(LIBRARIES[name]())
    library.encode_special_tokens = True
    expected = [each.ids for each in library.encode_batch(LINES, add_special_tokens=False)]
    assert [ids.tolist() for ids in own.build()(LINES)] == expected
    if own.vocabulary.is_for_encoders:
        (spelled,) = own.build()(["a</s><s>b <mask> <pad>"])
        assert not set(own.vocabulary.roles.special) & set(spelled.tolist()), "what a text spells is letters"
    written = tmp_path / "written"
    written.mkdir()
    tokenizer_files.write(written, own)
    assert tokenizer_files.read(written) == own


@pytest.mark.parametrize("name", ["xlm_roberta", "roberta"])
def test_a_mask_takes_the_spaces_that_the_library_gives_it(tmp_path, name):
    own, library = (
        tokenizer_files.read(folder_of(tmp_path, LIBRARIES[name]())),
        Tokenizer.from_buffer(LIBRARIES[name]()),
    )
    texts = ["a <mask>b", "<mask>", "  <mask>. a<mask>"]
    own = own._replace(vocabulary=own.vocabulary)
    found = own.build(with_mask=True)(texts)
    expected = [each.ids for each in library.encode_batch(texts, add_special_tokens=False)]
    if own.finds_masks:  # A byte-level BPE divides texts at a mask.
        assert [ids.tolist() for ids in found] == expected
    assert own.vocabulary.roles.separators == 2
    assert own.vocabulary.of_role("mask") == "<mask>"


def test_a_model_of_sentencepiece_gives_the_ids_of_sentencepiece():
    content = sentencepiece_model()
    oracle = sentencepiece.SentencePieceProcessor(model_proto=content)
    own = Tokenizer.from_buffer(pipelines.of_sentencepiece(content, "", None)[1])
    fairseq = Tokenizer.from_buffer(pipelines.of_sentencepiece(content, "", None, XLM_R)[1])
    # The library replaces characters of some graphemes in another way, see `character_map_graph`.
    same = [
        line
        for line in LINES[:1200]
        if own.normalizer.normalize_str(line) == oracle.normalize(line).replace("\u2581", " ").strip()
    ]
    assert len(same) > 960
    for line in same:
        expected = oracle.encode(line)
        assert own.encode(line, add_special_tokens=False).ids == expected
        shifted = [3 if number == 0 else number + 1 for number in expected]
        assert fairseq.encode(line, add_special_tokens=False).ids == shifted


def test_a_folder_with_a_model_of_sentencepiece_alone_is_read(tmp_path):
    (tmp_path / "sentencepiece.bpe.model").write_bytes(sentencepiece_model())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": XLM_R}))
    own = tokenizer_files.read(tmp_path)
    assert own.vocabulary.tokens[:4] == libraries.ROBERTA
    assert own.vocabulary.roles[:8] == (1, 3, 0, 2, len(own.vocabulary) - 1, 2, 2, 0)
    library = Tokenizer.from_buffer(own.model)
    assert library.encode("a", "b").tokens[:1] == ["<s>"]
    assert [library.encode("a", "b").tokens.count(each) for each in ("<s>", "</s>")] == [1, 3]


def test_texts_of_spaced_and_byte_tokens_come_back(tmp_path):
    own = tokenizer_files.read(folder_of(tmp_path, libraries.llama()))
    texts = ["the model  reads\n\U0001f600 x", "漢字 a"]
    assert [own.vocabulary.decode(ids) for ids in own.build()(texts)] == texts
    assert own.vocabulary.word_starts.sum() > 100


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", libraries.damaged_map, "the map of its Precompiled normalizer can't be read"),
        ("tokenizer.json", lambda: b'{"model": {"type": "Unigram", "vocab": 3}}', r"not a tokenizer \("),
        (
            "tokenizer.json",
            lambda: libraries.xlm_roberta().replace(b'"unk_id": 3', b'"unk_id": null'),
            "its Unigram model has no unk_id",
        ),
        ("tokenizer.json", lambda: libraries.changed(libraries.xlm_roberta(), decoder=5), r"not a tokenizer \("),
        ("spiece.model", lambda: b"no model", "not a sentencepiece model"),
        ("spiece.model", lambda: sentencepiece_model("char", 200), r"its model_type is 4, .*expected unigram"),
    ],
)
def test_what_is_damaged_or_unknown_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content())
    with pytest.raises(FormatError, match=rf"{name}: .*{message}"):
        tokenizer_files.read(tmp_path)


def test_a_damaged_map_of_characters_never_leads_out_of_itself():
    whole = bytes(sentencepiece_model())
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(whole)
    charsmap = proto.normalizer_spec.precompiled_charsmap
    entries = character_map.entries(charsmap, 5)
    expected = {"\uff11": "1", "\ufb01": "fi", "e\u0301": "\u00e9", "\ufffd": " "}
    assert {key: entries[key] for key in expected} == expected
    others = (b"\xff" * 600, charsmap[:4] + b"\xfe" * (len(charsmap) - 4), charsmap[:-1] + b"a")
    for damage in (charsmap[:100], b"", charsmap[:4], *others, charsmap[:-2] + b"\xff\0"):
        with pytest.raises(ValueError, match=r"map of|leads out|no end|utf-8"):
            character_map.parts(damage)
