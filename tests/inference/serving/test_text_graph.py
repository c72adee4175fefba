"""The tokenizers inside an exported model give the tokens of those that prepare training data."""

import json
import random

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import corpora, scripts
from tests.test_predict import BERT, Drawn, load, sentencepiece
from tests.tokenizer import libraries
from tftrain.finetune.encoding import ExampleEncoder, Sequences
from tftrain.inference import trained_model
from tftrain.inference.serving.text_graph import TextGraph, WordPieceGraph, words_of
from tftrain.tokenizer import tokenizer_files
from tftrain.tokenizer.normalization import bert_words
from tftrain.tokenizer.tokenizer_files import Tokenizer as ModelTokenizer
from tftrain.tokenizer.vocabulary import read_vocabulary

__all__ = ["sentencepiece"]

CODES = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
TEXTS = ["", "[MASK]", "a[MASK]b [MASK]", "[mask] [MASK", "x" * 100 + " " + "x" * 101, "\u0e01" * 250]
TEXTS += [
    "seding edings ss",
    "a \u00c9 e\u0301\t\u4e00\u4e01, don't",
    " ".join("abcdefghijklmnopqrstuvwxyz") + " [MASK]",
]


@pytest.fixture(scope="module", params=[(True,), (False,), (True, False), (False, True)], ids=str)
def normalizers(request):
    """Both ways to the words of a text for values of lower_case and, if it differs, strip_accents."""
    return bert_words(*request.param), lambda texts: words_of(texts, *request.param)


def assert_same_words(normalizers, texts):
    specified, graph = normalizers
    found = tf.function(graph, autograph=False)(tf.constant(texts)).to_list()
    expected = [specified(text) for text in texts]
    decoded = [[word.decode() for word in words] for words in found]
    assert [each for each in zip(texts, decoded, expected, strict=True) if each[1] != each[2]] == []


def test_every_code_point_is_normalized_as_in_training(normalizers):
    # Ideographs and private use are two thirds of all: some of them.
    codes = [code for code in CODES if code < 0x3400 or 0xA000 <= code < 0xAC80 or code % 37 == 0]
    assert_same_words(normalizers, [f"a{chr(code)}B" for code in codes])


def test_random_texts_are_normalized_as_in_training(normalizers):
    rng = random.Random(7)
    draws = (lambda: rng.randrange(1, 0x3000), lambda: rng.choice(CODES), lambda: rng.randrange(1, 0x600))
    assert_same_words(normalizers, ["".join(chr(draw()) for _ in range(20)) for draw in draws for _ in range(700)])


def test_words_are_cut_into_the_pieces_of_training(tmp_path):
    file = corpora.vocab_file(tmp_path / "vocab", extra=["##a", "##every", "##mod", "\u00e9t\u00e9"])
    vocabulary = read_vocabulary(str(file), "wordpiece")
    rng = random.Random(3)
    heads = [token for token in vocabulary.tokens[5:] if not token.startswith("##")]
    tails = [token[2:] for token in vocabulary.tokens if token.startswith("##")]
    words = ["".join([rng.choice(heads), *rng.choices([*tails, "el"], k=rng.randint(0, 3))]) for _ in range(3000)]
    words += ["model" * 20, "model" * 21, "\u00e9t\u00e9", "q"]
    texts = [" ".join(words[begin : begin + 7]) for begin in range(0, len(words), 7)]
    expected = ModelTokenizer(vocabulary, False, "bert").build()(texts)
    split = bert_words(lower_case=False)
    found = WordPieceGraph(vocabulary)(tf.ragged.constant([split(text) for text in texts])).to_list()
    assert found == [ids.tolist() for ids in expected]
    assert max(map(len, found)) > 14, "words have several pieces"
    assert any(vocabulary.id("[UNK]") in ids for ids in found)


def assert_same_ids(model, texts):
    ids, mask = tf.function(TextGraph(model), autograph=False)(tf.constant(texts))
    samples, padding_id = trained_model.TextEncoder(model)(texts), model.tokenizer.vocabulary.padding_id
    expected, lengths = trained_model.padded([sample.ids for sample in samples], padding_id)
    np.testing.assert_array_equal(ids, expected)
    np.testing.assert_array_equal(tf.reduce_sum(mask, axis=1), lengths)


def test_texts_of_an_encoder_become_the_samples_of_prediction():
    assert_same_ids(load(BERT), TEXTS)


def test_a_long_clause_without_spaces_is_cut_as_in_fine_tuning():
    model = load(BERT)
    text = "a " + "\u0e01\u0e02" * 80
    (expected,) = ExampleEncoder(model.tokenizer, model.max_seq_length)([(text,)])
    assert TextGraph(model).examples(tf.constant([text]))["input_ids"].numpy().tolist() == [expected.ids.tolist()]
    assert np.sum(expected.ids == model.tokenizer.vocabulary.unknown_id) == 2


def test_accents_that_prediction_keeps_are_kept_inside_a_graph():
    given = load(BERT).tokenizer
    tokens = (*given.vocabulary.tokens, "\u00e9", "\u304c", "\u30c7\u30fc\u30bf")
    vocabulary = given.vocabulary.__class__(tokens, "wordpiece")
    tokenizer = given._replace(vocabulary=vocabulary, strip_accents=False)
    model = trained_model.with_weights(Drawn(tokenizer))
    text = "\u00c9 \u304c \u30c7\u30fc\u30bf"
    assert_same_ids(model, [text])
    (sample,) = trained_model.TextEncoder(model)([text])
    assert [tokens[number] for number in sample.ids[1:-1]] == list(tokens[-3:])


def test_sentencepiece_inside_a_graph_gives_the_samples_of_prediction(sentencepiece):
    assert_same_ids(trained_model.with_weights(Drawn(sentencepiece)), TEXTS)


# The daily one has byte pairs; test_pipeline_graph.py has the ids of both.
@pytest.mark.parametrize("name", [pytest.param("xlm_roberta", marks=pytest.mark.nightly), "roberta"])
def test_texts_and_pairs_of_robertas_kind_become_the_samples_of_training(tmp_path, name):
    (tmp_path / "tokenizer.json").write_bytes(libraries.LIBRARIES[name]())
    model = trained_model.with_weights(Drawn(tokenizer_files.read(tmp_path)))
    texts = [text.replace("[MASK]", "<mask>") for text in TEXTS]
    assert_same_ids(model, [*texts, *scripts.lines(36)])
    pairs = list(zip(scripts.lines(24, seed=1), scripts.lines(24, seed=2), strict=True))
    encoder = ExampleEncoder(model.tokenizer, model.max_seq_length)
    rows = Sequences(encoder(pairs), encoder.padding_id).rows(np.arange(len(pairs)), model.max_seq_length)
    found = TextGraph(model).examples(*(tf.constant(each) for each in zip(*pairs, strict=True)))
    for own, expected in zip(("input_ids", "input_mask", "segment_ids"), rows, strict=True):
        np.testing.assert_array_equal(found[own], expected[:, : found[own].shape[1]])
    assert (rows[0][rows[1] == 0] == 1).all(), "padding is <pad>"
    assert not rows[2].any(), "there is one token type"


def test_texts_of_a_decoder_of_llamas_kind_become_the_samples_of_prediction(tmp_path):
    settings = {"eos_token": "</s>", "bos_token": "<s>", "add_bos_token": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "tokenizer.json").write_bytes(libraries.llama())
    tokenizer = tokenizer_files.read(tmp_path)
    model = trained_model.with_weights(Drawn(tokenizer, model_family="gpt"))
    assert tokenizer.begin_ids.tolist() == [tokenizer.vocabulary.id("<s>")]
    assert_same_ids(model, ["the model", "", " x  \U0001f600", "every layer " * 30])


def test_texts_of_a_decoder_become_the_samples_of_prediction(tmp_path):
    vocabulary = read_vocabulary(str(corpora.vocab_file(tmp_path / "vocab")), "wordpiece")
    tokenizer = ModelTokenizer(vocabulary, True, "nfkc")
    model = trained_model.with_weights(Drawn(tokenizer, model_family="gpt"))
    assert_same_ids(model, ["the model", "", "every layer " * 30])
