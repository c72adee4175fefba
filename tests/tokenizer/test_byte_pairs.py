"""Byte-level BPE: text comes back exactly, any threads learn the same, and files that are not one are named."""

import json
import random
import subprocess
import sys
from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.kit import corpora
from tftrain.files.errors import DataError
from tftrain.tokenizer.byte_pairs import ALPHABET, learn_byte_pairs, read_byte_pairs
from tftrain.tokenizer.pipelines import encode, read
from tftrain.tokenizer.vocabulary import END_OF_TEXT

LINES = corpora.text(30).splitlines()


@pytest.fixture(scope="module")
def learned():
    return learn_byte_pairs([LINES], 300)


@pytest.fixture
def files(learned, tmp_path):
    """Writes the vocabulary in both formats; returns the folder and the content of tokenizer.json."""
    content = json.loads(learned[1])
    (tmp_path / "tokenizer.json").write_bytes(learned[1])
    (tmp_path / "gpt2-vocab.json").write_text(json.dumps(content["model"]["vocab"]))
    merges = [" ".join(pair) for pair in content["model"]["merges"]]
    (tmp_path / "gpt2-merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
    return tmp_path, content


def test_vocabulary_is_the_end_token_the_bytes_and_pairs(learned):
    vocabulary, _ = learned
    assert len(vocabulary) == 300
    assert vocabulary.tokens[0] == END_OF_TEXT
    assert vocabulary.end_id == 0
    assert vocabulary.unknown_id is None
    assert set(vocabulary.tokens[1:257]) == set(ALPHABET)
    assert {"er", "issing", "Ġare"} <= set(vocabulary.tokens[257:])


@given(
    st.one_of(st.text(st.characters(exclude_categories=["Cs"])), st.binary().map(lambda part: part.decode("latin-1")))
)
@example(END_OF_TEXT)
@example("\ufffd\0\r\n \u00a0\u3000\U0010ffff e\u0301\u00e9")
@example(" the  model\treads 1234's\n\n")
@settings(max_examples=200)
def test_every_text_comes_back_exactly_without_an_end_token(learned, text):
    vocabulary, model = learned
    (ids,) = encode(read(model), [text])
    assert vocabulary.decode(ids) == text
    assert vocabulary.end_id not in ids


def test_tokens_do_not_depend_on_the_texts_beside_them(learned):
    tokenizer = read(learned[1])
    together = [ids.tolist() for ids in encode(tokenizer, ["", *LINES, "x" * 300_000, *LINES])]
    alone = [encode(tokenizer, [line])[0].tolist() for line in LINES]
    assert together[1 : 1 + len(LINES)] == together[-len(LINES) :] == alone
    assert together[0] == []


# Many pairs are equally frequent, so an order that depended on threads or on the hash of a map would show.
TIES = """
import hashlib, random, sys
from tftrain.tokenizer.byte_pairs import learn_byte_pairs
rng = random.Random(0)
words = [" " + "".join(rng.choices("bdfgklmnprstaeiou", k=rng.randint(2, 9))) for _ in range(3000)]
random.Random(int(sys.argv[1])).shuffle(words)
vocabulary, model = learn_byte_pairs([words[:1000], words[1000:]], 900)
print(len(vocabulary), hashlib.sha256(model).hexdigest())
"""


def test_threads_and_order_of_the_texts_change_nothing():
    found = set()
    for number, threads in enumerate((1, 2, 7)):
        command = [sys.executable, "-c", TIES, str(number)]
        environment = {"RAYON_NUM_THREADS": str(threads), "PYTHONPATH": ":".join(sys.path)}
        found.add(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert len(found) == 1
    assert found.pop().startswith("900 ")


def test_learned_tokens_are_short_enough_for_a_vocabulary_file():
    vocabulary, _ = learn_byte_pairs([["=" * 10_000, "漢字" * 300] * 3], 400)
    assert 32 < max(len(token.encode()) for token in vocabulary.tokens) <= 256


def test_both_formats_of_an_existing_vocabulary_are_read(files, learned):
    folder, _ = files
    rng = random.Random(0)
    text = "".join(rng.choices("the model reads <|endoftext|>é漢\n", k=2000))
    for name in ("tokenizer.json", "gpt2-vocab.json"):
        vocabulary, model = read_byte_pairs(str(folder / name))
        assert vocabulary == learned[0]
        assert encode(read(model), [text])[0].tolist() == encode(read(learned[1]), [text])[0].tolist()


def test_dropout_and_lengths_of_an_existing_vocabulary_are_left_out(files, learned):
    folder, content = files
    content["model"]["dropout"] = 0.5
    content["truncation"] = {"max_length": 3, "stride": 0, "strategy": "LongestFirst", "direction": "Right"}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    _, model = read_byte_pairs(str(folder / "tokenizer.json"))
    text = " ".join(LINES[:3])
    assert encode(read(model), [text])[0].tolist() == encode(read(learned[1]), [text])[0].tolist()


def changed(content, **changes):
    return {**content, **changes}


def without(content, token):
    model = content["model"]
    vocabulary = {name: number for name, number in model["vocab"].items() if name != token}
    return changed(content, model={**model, "vocab": vocabulary, "merges": []}, added_tokens=[])


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda content: [], "not a vocabulary; expected a byte-level BPE, as GPT-2's"),
        (lambda content: changed(content, model={"type": "WordPiece"}), "the tokenizer is not a BPE"),
        (lambda content: changed(content, model={"type": "BPE", "vocab": 1}), r"not a tokenizer \("),
        (lambda content: changed(content, normalizer={"type": "Lowercase"}), "does not give the original text"),
        (lambda content: without(content, END_OF_TEXT), r"the ids of its 299 tokens leave out a number"),
        (lambda content: without(content, content["model"]["merges"][-1][0]), "leave out a number"),
    ],
)
def test_tokenizer_that_is_not_byte_level_is_named(files, change, match):
    folder, content = files
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(change(content)))
    with pytest.raises(DataError, match=rf"tokenizer.json: .*{match}") as caught:
        read_byte_pairs(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("gpt2-merges.txt", None, r"gpt2-merges.txt: No such file or directory; expected .* with merges.txt beside it"),
        ("gpt2-merges.txt", "#version: 0.2\nt h\nnosuch e\n", r"gpt2-merges.txt: line 3: not two tokens"),
        ("gpt2-vocab.json", '{"a": 0, "<|endoftext|>": 1}', r"not two tokens that make a third"),
        ("gpt2-vocab.json", '{"a": -1}', "not a vocabulary of tokens with their ids"),
        ("gpt2-vocab.json", "{", r"gpt2-vocab.json: not JSON"),
    ],
)
def test_damaged_files_of_gpt2_are_named(files, name, text, match):
    folder, _ = files
    (folder / name).unlink()
    if text is not None:
        (folder / name).write_text(text)
    with pytest.raises(DataError, match=match):
        read_byte_pairs(str(folder / "gpt2-vocab.json"))


# The words of Llama 3 and Qwen: contractions, letters, few digits, signs, line breaks, spaces.
WORDS_OF_TODAY = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@pytest.mark.parametrize("end", ["<|endoftext|>", "<|end_of_text|>", "</s>"])
@pytest.mark.parametrize("composes", [False, True])
def test_tokenizers_of_todays_kind_give_the_tokens_of_the_library(tmp_path, end, composes):
    theirs = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(WORDS_OF_TODAY), "isolated")
    theirs.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    theirs.decoder = decoders.ByteLevel()
    theirs.normalizer = normalizers.NFC() if composes else None
    special = ["<|begin_of_text|>", end, "<|im_start|>"]
    text = "the model of 12345 weights isn't\n\n  caf\u00e9 cafe\u0301, \u4e00!\n" * 3
    settings = {"vocab_size": 300, "initial_alphabet": sorted(pre_tokenizers.ByteLevel.alphabet())}
    trainer = trainers.BpeTrainer(special_tokens=special, show_progress=False, **settings)
    theirs.train_from_iterator([text], trainer)
    theirs.post_processor = processors.TemplateProcessing(single=f"{special[0]} $A", special_tokens=[(special[0], 0)])
    theirs.save(str(tmp_path / "tokenizer.json"))
    vocabulary, model = read_byte_pairs(str(tmp_path / "tokenizer.json"))
    assert vocabulary.tokens[vocabulary.end_id] == end
    plain, special = (partial(encode, read(model, with_special)) for with_special in (False, True))
    assert plain([text])[0].tolist() == theirs.encode(text, add_special_tokens=False).ids
    spelled = f"<|im_start|>a{end}"
    assert special([spelled])[0].tolist() == theirs.encode(spelled, add_special_tokens=False).ids
    assert vocabulary.decode(plain([spelled])[0]) == spelled
    assert not {0, 1, 2} & set(plain([spelled])[0].tolist())


@pytest.mark.parametrize(
    ("tokens", "match"),
    [
        (ALPHABET, r"the vocabulary lacks <\|endoftext\|>"),
        ([*ALPHABET[:255], END_OF_TEXT], "1 of the 256 bytes are not tokens"),
    ],
)
def test_a_vocabulary_without_all_bytes_or_an_end_token_is_named(tmp_path, tokens, match):
    (tmp_path / "merges.txt").write_text("")
    (tmp_path / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    with pytest.raises(DataError, match=match):
        read_byte_pairs(str(tmp_path / "vocab.json"))
