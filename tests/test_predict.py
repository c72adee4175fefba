"""Predictions are those of the library that wrote the model, whatever else is in the batch."""

import contextlib
import dataclasses
import io
import json
import os
import shutil
import subprocess
import sys
import types

import numpy as np
import pytest
import tensorflow as tf

from tests.formats.models import DATA
from tests.kit.ranks import ROOT
from tftrain import predict
from tftrain.config.convert import Place
from tftrain.config.fields import implementations
from tftrain.config.model import ModelConfig
from tftrain.config.model_source import ModelSource
from tftrain.config.predict import PredictFlags
from tftrain.formats import registry
from tftrain.formats.weights import Weights
from tftrain.host.text import printable
from tftrain.inference import candidates, predictions, trained_model
from tftrain.inference.trained_model import Sample
from tftrain.tokenizer.tokenizer_files import Tokenizer
from tftrain.tokenizer.vocabulary import Vocabulary

BERT, GPT = f"hf:{DATA / 'hf_bert'}", f"hf:{DATA / 'hf_gpt2'}"


def run(capsys, *arguments):
    """Runs the program; returns its exit code and what it printed to both streams."""
    try:
        code = predict.main(["predict", *map(str, arguments)])
    except SystemExit as error:
        code = error.code
    return code, *capsys.readouterr()


def objects(capsys, *arguments):
    code, out, err = run(capsys, "--format=jsonl", *arguments)
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]


def load(name, **changes):
    source = f"{name}:{DATA / name}" if ":" not in name else name
    return trained_model.load(ModelSource(init_checkpoint=source, **changes))


def softmax(logits):
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def assert_candidates(found, probabilities, tokens):
    """Compares candidates with the probabilities of all tokens, [tokens]."""
    assert [each.token for each in found] == [tokens[best] for best in np.argsort(-probabilities)[: len(found)]]
    expected = [probabilities[tokens.index(each.token)] for each in found]
    np.testing.assert_allclose([each.probability for each in found], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("place", "output"),
    [
        (BERT, "mlm_logits"),
        (f"tf1:{DATA / 'tf1'}", "mlm_log_probabilities"),
        (f"megatron:{DATA / 'megatron'}", "mlm_logits"),
    ],
)
def test_masked_tokens_are_those_of_the_library_that_wrote_the_model(place, output):
    model = load(place, tokenizer_dir=str(DATA / "hf_bert"))
    expected = np.load(f"{place.partition(':')[2]}/expected.npz")
    row, length = 2, 5  # The one whose tokens are all of the first type.
    assert not expected["segment_ids"][row].any()
    ids = expected["input_ids"][row, :length].astype(np.int32)
    samples = [Sample(ids, np.arange(length), 0, 0, 0), Sample(np.tile(ids, 3), np.array([4]), 0, 0, 0)]
    tokens = model.tokenizer.vocabulary.tokens
    found = candidates.masked_tokens(model, top_k=4)(samples)
    assert [len(each) for each in found] == [length, 1]
    # Megatron-LM pads the vocabulary: rows without a token have no probability.
    probabilities = softmax(expected[output][row, :length, : len(tokens)])
    for each, values in zip(found[0], probabilities, strict=True):
        assert_candidates(each, values, list(tokens))


def test_the_next_token_is_that_of_the_library_that_wrote_the_model():
    model = load(GPT)
    expected = np.load(DATA / "hf_gpt2/expected.npz")
    samples = [
        Sample(expected["input_ids"][row, :length].astype(np.int32), np.zeros(0, int), 0, 0, 0)
        for row, length in enumerate((16, 3, 9))
    ]
    names = [candidates.decode_bytes([token]) for token in model.tokenizer.vocabulary.tokens]
    for row, found in enumerate(candidates.next_tokens(model, PredictFlags(top_k=3))(samples)):
        probabilities = softmax(expected["logits"][row, len(samples[row].ids) - 1])
        best = np.argsort(-probabilities)[:3]
        assert [each.token for each in found.candidates] == [names[number] for number in best]
        np.testing.assert_allclose([each.probability for each in found.candidates], probabilities[best], rtol=1e-4)
        assert found.text == ""


def test_a_continuation_takes_the_best_token_each_time_and_stops_at_the_end_token():
    model = load(GPT)
    ids = np.array([5, 9, 30], np.int32)
    ends, plain = [], ids
    for _ in range(25):  # More than the 20 positions of the model, which then reads the last 20 tokens.
        x = model.network.hidden_states({"input_ids": plain[None, -20:]})
        plain = np.append(plain, np.argmax(model.network.logits(x)[0, -1])).astype(np.int32)
        ends.append(int(plain[-1]))
    sample = Sample(ids, np.zeros(0, int), 0, 0, 0)
    (found,) = candidates.next_tokens(model, PredictFlags(top_k=1, max_new_tokens=25))([sample])
    assert found.text == model.tokenizer.vocabulary.decode(ends)
    # With the fourth new token as the end token, three are left.
    number = ends.index(ends[3])
    tokens = list(model.tokenizer.vocabulary.tokens)
    end = tokens.index("<|endoftext|>")
    tokens[end], tokens[ends[3]] = tokens[ends[3]], tokens[end]
    swapped = model._replace(tokenizer=model.tokenizer._replace(vocabulary=Vocabulary(tuple(tokens), "bpe")))
    (found,) = candidates.next_tokens(swapped, PredictFlags(top_k=1, max_new_tokens=25))([sample])
    assert found.text == swapped.tokenizer.vocabulary.decode(ends[:number])


def test_the_rest_of_a_batch_does_not_change_a_prediction(capsys):
    texts = ["a [MASK] c", "[MASK]", "q w e r t y u i o p [MASK] s [MASK]", "no mask", "", "zs"]
    together = objects(capsys, f"--init_checkpoint={BERT}", *texts)
    alone = objects(capsys, f"--init_checkpoint={BERT}", "--batch_size=1", *texts)
    assert [each["text"] for each in together] == texts
    assert [[mask["position"] for mask in each["masks"]] for each in together] == [[2], [1], [11, 13], [], [], []]
    for first, second in zip(together, alone, strict=True):
        for left, right in zip(first["masks"], second["masks"], strict=True):
            assert len(left["candidates"]) == 5
            assert [each["token"] for each in left["candidates"]] == [each["token"] for each in right["candidates"]]
            values = [[each["probability"] for each in mask["candidates"]] for mask in (left, right)]
            np.testing.assert_allclose(*values, rtol=1e-5)


def test_lines_of_a_file_and_of_standard_input_are_read_as_arguments_are(capsys, tmp_path, monkeypatch):
    texts = ["a [MASK] c", "", "x", "[MASK] \u00e9"]
    (tmp_path / "texts").write_text("\n".join(texts) + "\r\n", encoding="utf-8")
    flags = f"--init_checkpoint={BERT}", "--top_k=2", "--batch_size=3"
    expected = run(capsys, *flags, "--", *texts)
    assert expected[0] == 0
    assert expected[1].splitlines()[0] == "a [MASK] c"
    assert expected[1].splitlines()[2:6] == ["", "  no [MASK]", "x", "  no [MASK]"]
    with open(tmp_path / "texts", "rb") as file:
        monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(fileno=file.fileno))
        assert run(capsys, *flags, "--input_file=-")[:2] == expected[:2]


def test_a_text_that_is_cut_and_those_with_unknown_words_are_named_and_counted_where_they_are_many(capsys, tmp_path):
    long = " ".join("abcdefghijklmnopqr") + " [MASK] s [MASK]"
    (tmp_path / "texts").write_text(f"a [MASK]\n{long}\n" + "5 [MASK] 6\n" * 22, encoding="utf-8")
    code, out, err = run(capsys, f"--init_checkpoint={BERT}", f"--input_file={tmp_path / 'texts'}", "--format=jsonl")
    assert code == 0
    assert [len(json.loads(line)["masks"]) for line in out.splitlines()] == [1, 0] + [1] * 22
    assert len(err.splitlines()) == predictions.MAX_WARNINGS + 1
    assert err.splitlines()[-1] == "predict: and 3 more such warnings"
    assert err.splitlines()[:2] == [
        f"predict: {tmp_path}/texts: line 2: 3 tokens are left out, 2 [MASK] among them: the model reads at most 20",
        f"predict: {tmp_path}/texts: line 3: not in the vocabulary: 2 of 5 tokens, which become [UNK]",
    ]


def test_an_argument_that_is_not_utf_8_is_named(capsys):
    code, _, err = run(capsys, f"--init_checkpoint={BERT}", "a", "b\udcff")
    assert (code, err) == (1, "predict: text 2: not UTF-8; convert it, for instance with iconv -t UTF-8\n")


@pytest.mark.parametrize("lower_case", [True, False])
def test_case_follows_the_tokenizer_of_the_model(tmp_path, lower_case):
    folder = shutil.copytree(DATA / "hf_bert", tmp_path / "model")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"do_lower_case": lower_case}))
    model = load(f"hf:{folder}")
    tokens = model.tokenizer.vocabulary.tokens
    (sample,) = trained_model.TextEncoder(model)(["A \u00c9 b[MASK]c"])
    first = ["a", "e"] if lower_case else ["[UNK]", "[UNK]"]
    assert [tokens[number] for number in sample.ids] == ["[CLS]", *first, "b", "[MASK]", "c", "[SEP]"]
    assert (sample.masks.tolist(), sample.unknown) == ([4], 0 if lower_case else 2)


@pytest.mark.parametrize(
    ("of_settings", "of_pipeline", "first"),
    [
        ({}, None, "e"),
        ({}, False, "[UNK]"),
        ({"strip_accents": True}, False, "e"),
        ({"strip_accents": None}, False, "e"),
    ],
)
def test_accents_follow_the_settings_then_the_pipeline_then_the_case(tmp_path, of_settings, of_pipeline, first):
    """As in transformers."""
    folder = shutil.copytree(DATA / "hf_bert", tmp_path / "model")
    settings = json.loads((folder / "tokenizer_config.json").read_text()) | {"do_lower_case": True}
    settings.pop("strip_accents", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | of_settings))
    normalizer = {"type": "BertNormalizer", "lowercase": True, "strip_accents": of_pipeline}
    (folder / "tokenizer.json").write_text(json.dumps({"normalizer": normalizer}))
    model = load(f"hf:{folder}")
    (sample,) = trained_model.TextEncoder(model)(["\u00c9"])
    assert model.tokenizer.vocabulary.tokens[sample.ids[1]] == first


class Drawn(Weights):
    """A model whose weights are all drawn, with a tokenizer."""

    path, shapes, missing = "drawn", {}, ()

    def __init__(self, tokenizer, **changes):
        sizes = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "max_position_embeddings": 16}
        self.model = ModelConfig(vocab_size=len(tokenizer.vocabulary), **sizes, **changes)
        self.tokenizer = tokenizer

    def read(self, name):
        raise AssertionError(f"{name} is not there")


@pytest.fixture(scope="module")
def sentencepiece():
    from collections import Counter

    from tests.kit.corpora import WORDS
    from tftrain.tokenizer.vocabulary_learner import learn_sentencepiece

    vocabulary, model = learn_sentencepiece(Counter(dict.fromkeys(WORDS, 3)), 60, True)
    return Tokenizer(vocabulary, True, "nfkc", model)


def test_sentencepiece_tokens_are_those_of_its_own_library(sentencepiece):
    import sentencepiece as library

    model = trained_model.with_weights(Drawn(sentencepiece))
    processor = library.SentencePieceProcessor(model_proto=sentencepiece.model)
    tokens = sentencepiece.vocabulary.tokens
    (sample,) = trained_model.TextEncoder(model)(["Every Batch [MASK] layers"])
    before, after = (processor.encode(part, out_type=str) for part in ("Every Batch ", " layers"))
    assert before
    assert [tokens[number] for number in sample.ids] == ["[CLS]", *before, "[MASK]", *after, "[SEP]"]
    (found,) = candidates.masked_tokens(model, top_k=3)([sample])
    assert len(found) == 1
    assert {each.token for each in found[0]} <= set(tokens)


def test_a_decoder_with_positions_in_the_attention_reads_texts_of_any_length(sentencepiece):
    model = trained_model.with_weights(Drawn(sentencepiece, model_family="gpt", position_embedding="rotary"))
    (sample,) = trained_model.TextEncoder(model)(["every layer " * 30])
    assert sample.cut == 0
    assert len(sample.ids) > 16
    (found,) = candidates.next_tokens(model, PredictFlags(top_k=70, max_new_tokens=2))([sample])
    assert len(found.candidates) == len(sentencepiece.vocabulary)
    assert sum(each.probability for each in found.candidates) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "pooling"),
    [("hf_bert_model", "mean"), ("hf_bert_classes", "cls"), ("hf_gpt2", "last"), ("hf_qwen3", "max")],
)
def test_every_model_gives_embeddings(capsys, name, pooling):
    texts = ["a bed sing", "q"]
    found = objects(capsys, f"--init_checkpoint=hf:{DATA / name}", f"--embedding={pooling}", *texts, "a bed sing\tq")
    model = load(f"hf:{DATA / name}")
    for text, each in zip(texts, found, strict=False):
        (sample,) = trained_model.TextEncoder(model)([text])
        mask = np.ones_like(sample.ids)
        batch = trained_model.encoder_batch(*(tf.constant(array)[None] for array in (sample.ids, mask)))
        hidden = model.network.encode(batch)[0].numpy()[0]
        vector = {"mean": hidden.mean(0), "cls": hidden[0], "last": hidden[-1], "max": hidden.max(0)}[pooling]
        np.testing.assert_allclose(each["embedding"], vector / np.linalg.norm(vector), rtol=1e-5, atol=1e-6)
    cosine = np.dot(*(each["embedding"] for each in found[:2]))
    assert found[2]["prediction"] == pytest.approx(cosine, abs=1e-5)


def test_a_model_without_masked_words_says_how_to_use_it(capsys):
    code, _, err = run(capsys, f"--init_checkpoint=hf:{DATA / 'hf_bert_model'}", "a text")
    assert code == 1
    assert "it has no masked_lm" in err
    assert "--embedding=mean for the vectors of texts" in err


@pytest.mark.parametrize("core", ["flash", "cudnn"])
def test_predictions_need_no_op_that_the_model_was_trained_with(core):
    weights = registry.open_weights(Place("hf", str(DATA / "hf_bert")))
    weights.model = dataclasses.replace(weights.model, attn_impl=core, ln_impl="fused", gelu_impl="fused")
    config = trained_model.with_weights(weights).config
    assert {name: getattr(config, name) for name in implementations(config)} == implementations(ModelConfig)


def test_weights_without_a_tokenizer_take_that_of_a_flag(capsys, tmp_path):
    folder = shutil.copytree(DATA / "tf1", tmp_path / "model")
    (folder / "vocab.txt").unlink()
    found = objects(capsys, f"--init_checkpoint=tf1:{folder}", f"--tokenizer_dir={DATA / 'hf_bert'}", "a [MASK]")
    assert found == objects(capsys, f"--init_checkpoint=tf1:{DATA / 'tf1'}", "a [MASK]")
    flags = f"--init_checkpoint=hf:{DATA / 'hf_roberta'}", f"--tokenizer_dir={DATA / 'hf_modernbert'}"
    assert "its tokenizer's padding has id 3, its pad_token_id is 1; expected one id" in run(capsys, *flags, "a")[2]


def test_a_reader_that_has_enough_ends_the_program_without_a_word(capsys, monkeypatch):
    class Full(io.StringIO):
        def write(self, _):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Full())
    code, _, err = run(capsys, f"--init_checkpoint={BERT}", "a [MASK]")
    assert (code, err) == (1, "")


@pytest.mark.nightly  # tests/inference/test_generation.py has the pieces, without a terminal.
def test_a_continuation_appears_on_a_terminal_token_by_token():
    flags = f"--init_checkpoint={GPT}", "--top_k=2", "--max_new_tokens=8", "hello there"
    command = [sys.executable, "-m", "tftrain.predict", *flags]
    plain = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    leader, follower = os.openpty()
    shown, ended = b"", subprocess.Popen(command, cwd=ROOT, stdout=follower, stderr=subprocess.DEVNULL)
    os.close(follower)
    with contextlib.suppress(OSError):  # The end of the program.
        while block := os.read(leader, 1 << 16):
            shown += block
    assert ended.wait() == 0
    first, following = shown.decode().splitlines()
    # A model may write what a terminal obeys.
    assert first == "hello there" + printable(json.loads(plain[2].removeprefix("  continued: ")))
    assert following == plain[1]
