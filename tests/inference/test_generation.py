"""Texts are continued with kept keys and values as without them, and tokens are drawn from their distribution."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.formats.models import DATA
from tftrain.config.fields import implementations
from tftrain.config.model import ModelConfig
from tftrain.config.model_source import ModelSource
from tftrain.config.predict import PredictFlags
from tftrain.formats.hugging_face_config import special_ids
from tftrain.inference import generation, trained_model
from tftrain.inference.generation import Generator, drawn
from tftrain.inference.serving import saved_model, signatures
from tftrain.inference.serving.signatures import ServedModel
from tftrain.model.key_value_cache import CachedDecoder
from tftrain.model.registry import model_class

WORDS, ROOM = 61, 20
SIZES = {"num_hidden_layers": 2, "hidden_size": 24, "num_attention_heads": 4, "intermediate_size": 40}
KINDS = {
    "learned": {"model_family": "gpt"},
    "rotary": {"model_family": "gpt", "position_embedding": "rotary"},
    "alibi": {"model_family": "gpt", "position_embedding": "alibi", "activation": "geglu"},
    "one key head": {"model_family": "llama", "num_key_value_heads": 1, "rope_scaling": "llama3:4,1,4,8"},
    "qwen": {"model_family": "llama", "query_key_norm": True, "bias": "query_key_value", "num_key_value_heads": 2},
}


@pytest.fixture(scope="module", autouse=True)
def decoders():
    """One decoder a network, as its graphs take most of a short generation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generation, "CachedDecoder", functools.cache(CachedDecoder))
        yield


def network_of(kind, dtype="float64"):
    plain = {**implementations(ModelConfig), "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = ModelConfig(vocab_size=WORDS, **SIZES, max_position_embeddings=ROOM, initializer_range=0.3, **KINDS[kind])
    config = dataclasses.replace(config.with_family_defaults(set(KINDS[kind])), **plain)
    return model_class(config)(config, dtype, seed=3)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_whole_text(kind):
    network, rng = network_of(kind), np.random.default_rng(0)
    decoder = CachedDecoder(network)
    texts = rng.integers(0, WORDS, [3, ROOM]).astype(np.int32)
    expected = network.logits(network.hidden_states({"input_ids": tf.constant(texts)})).numpy()
    for lengths in ([5, 1, 9], [2, 2, 2]):  # The second time, the first texts are forgotten.
        lengths = np.array(lengths, np.int32)
        given = np.where(np.arange(lengths.max()) < lengths[:, None], texts[:, : lengths.max()], 7).astype(np.int32)
        found = [decoder.read(given, lengths, ROOM)]
        for step in range(ROOM - lengths.max()):
            at = lengths + step
            found.append(decoder.read_more(texts[range(3), at], at, ROOM))
        for step, logits in enumerate(found):
            np.testing.assert_allclose(logits, expected[range(3), lengths - 1 + step], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("top_k", "top_p"), [(None, 1.0), (3, 1.0), (None, 0.6), (4, 0.5), (1, 1.0), (None, 1e-9)])
@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_a_class_is_drawn_as_often_as_it_is_probable(temperature, top_k, top_p):
    logits = np.random.default_rng(1).normal(0, 2, 7)
    probabilities = np.exp(logits / temperature)
    order = np.argsort(-probabilities)
    probabilities[order[top_k or 7 :]] = 0
    probabilities /= probabilities.sum()
    kept = 1 + np.searchsorted(np.cumsum(probabilities[order]), top_p * (1 - 1e-12))
    probabilities[order[kept:]] = 0
    probabilities /= probabilities.sum()
    count = 4000
    uniform = np.append((np.arange(count - 1) + 0.5) / (count - 1), np.float32(1 - 2**-24)).astype(np.float32)
    rows = tf.tile(tf.constant(logits, tf.float32)[tf.newaxis], [count, 1])
    found = np.bincount(drawn(rows, tf.constant(uniform), temperature, top_k, top_p), minlength=7) / count
    np.testing.assert_allclose(found, probabilities, atol=1e-3)
    assert (found[probabilities == 0] == 0).all()


@pytest.fixture(scope="module")
def gpt():
    return trained_model.load(ModelSource(init_checkpoint="hf:tests/formats/data/hf_gpt2"))


PROMPTS = [np.array(each, np.int32) for each in ([5, 9, 30], [7], [11, 12, 13, 14, 15, 16, 17])]


def test_the_draws_of_a_text_depend_on_the_seed_and_its_number_alone(gpt):
    def continued(batches, **settings):
        generate = Generator(gpt, PredictFlags(**{"max_new_tokens": 10, "temperature": 1.0, "seed": 5, **settings}))
        return [text for batch in batches for text in generate(batch)[1]]

    together = continued([PROMPTS])
    assert continued([PROMPTS[:2], PROMPTS[2:]]) == together
    assert continued([PROMPTS], seed=6) != together
    assert continued([PROMPTS], top_k=1) == Generator(gpt, PredictFlags(max_new_tokens=10))(PROMPTS)[1]
    assert len(set(continued([[PROMPTS[0]] * 4]))) > 1


def test_a_continuation_ends_before_a_stop_string_and_its_pieces_are_the_whole(gpt):
    def continued(**settings):
        pieces = []
        generate = Generator(gpt, PredictFlags(max_new_tokens=16, temperature=1.0, seed=2, **settings))
        return generate(PROMPTS[:1], pieces.append)[1][0], pieces

    whole, pieces = continued()
    assert "".join(pieces) == whole
    assert len(pieces) > 5
    for stop in (whole[4:7], whole[0], whole[-1]):
        text, pieces = continued(stop=("never", stop))
        assert text == whole[: whole.index(stop)]
        assert "".join(pieces) == text


@pytest.mark.parametrize("name", ["hf_llama", pytest.param("hf_gpt2", marks=pytest.mark.nightly)])
def test_an_exported_model_generates_the_tokens_of_predict(tmp_path, name):
    """With a temperature, tokens depend on the seed alone, and those after the end token are end tokens."""
    model = trained_model.load(ModelSource(init_checkpoint=f"hf:{DATA / name}"))
    source = ServedModel(model, None, 5)
    saved_model.write(tmp_path / "1", source, {"generate": signatures.generate(source)})
    generate = tf.saved_model.load(str(tmp_path / "1")).signatures["generate"]
    texts, most = [np.array(ids, np.int32) for ids in ([5, 9, 100], [7], [3, 250, 60, 8])], 12
    ids, lengths = trained_model.padded(texts)

    def generated(temperature=0.0, top_p=1.0, seed=0):
        settings = {"temperature": tf.constant(temperature), "top_p": tf.constant(top_p), "seed": tf.constant(seed)}
        settings |= {"lengths": tf.constant(lengths), "max_new_tokens": tf.constant(most)}
        found = generate(input_ids=tf.constant(ids + (np.arange(4) >= lengths[:, None])), **settings)
        return found["output_ids"].numpy(), found["lengths"].numpy()

    tokens, counts = generated()
    vocabulary = model.tokenizer.vocabulary
    _, expected = Generator(model, PredictFlags(max_new_tokens=most))(texts)
    assert [vocabulary.decode(row[:count]) for row, count in zip(tokens, counts, strict=True)] == expected
    assert all((row[count:] == vocabulary.end_id).all() for row, count in zip(tokens, counts, strict=True))
    drawn_tokens = [generated(2.0, seed=seed)[0].tolist() for seed in (1, 1, 2)]
    assert drawn_tokens[0] == drawn_tokens[1] != drawn_tokens[2]
    assert generated(0.7, top_p=1e-6)[0].tolist() == tokens.tolist()


def test_both_end_tokens_end_a_text_in_predict_and_in_an_export():
    """The one that --task=completion teaches after each completion, and the tokenizer's own eos_token."""
    model = trained_model.load(ModelSource(init_checkpoint=f"hf:{DATA / 'hf_llama'}"))
    text, vocabulary = [np.array([5, 9, 100], np.int32)], model.tokenizer.vocabulary

    def generated(tokenizer):
        ends = model._replace(tokenizer=tokenizer)
        _, (found,) = Generator(ends, PredictFlags(max_new_tokens=6))(text)
        function = signatures.generate(ServedModel(ends, None, 5)).function
        tokens = function(tf.constant(text), tf.constant([3]), 6, tf.constant(0.0), tf.constant(1.0), tf.constant(0))
        ids, length = tokens["output_ids"].numpy()[0], int(tokens["lengths"][0])
        assert vocabulary.decode(ids[:length]) == found
        return ids, length

    greedy, _ = generated(model.tokenizer)
    eos = model.tokenizer._replace(special=(("eos_token", vocabulary.tokens[greedy[2]]),))
    assert generated(eos)[1] == 2
    tokens = list(vocabulary.tokens)
    tokens[vocabulary.end_id], tokens[greedy[1]] = tokens[greedy[1]], tokens[vocabulary.end_id]
    both = eos._replace(vocabulary=dataclasses.replace(vocabulary, tokens=tuple(tokens), roles=None))
    assert generated(both)[1] == 1
    config = dataclasses.replace(model.config, task="completion")
    assert special_ids(config, both)["eos_token_id"] == [greedy[1], greedy[2]]
    assert special_ids(config, model.tokenizer)["eos_token_id"] == vocabulary.end_id


def test_an_export_names_the_inputs_that_ask_for_more_positions_than_the_model_has():
    model = trained_model.load(ModelSource(init_checkpoint=f"hf:{DATA / 'hf_gpt2'}"))
    function = tf.function(signatures.generate(ServedModel(model, None, 5)).function, autograph=False)
    settings = tf.constant(0.0), tf.constant(1.0), tf.constant(0)
    text = tf.constant([[5, 9, 100]]), tf.constant([3])
    assert function(*text, tf.constant(17), *settings)["output_ids"].shape == [1, 17]
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="lengths and max_new_tokens: expected a sum of at most 20"
    ):
        function(*text, tf.constant(18), *settings)


def greedy(network, prompt, most):
    """Returns the `most` most probable tokens after a prompt, int32 [1, S]."""
    decoder, length, room = CachedDecoder(network), prompt.shape[1], prompt.shape[1] + most
    tokens = [int(tf.argmax(decoder.read(prompt, np.array([length], np.int32), room)[0]))]
    while len(tokens) < most:
        places = np.array([length + len(tokens) - 1], np.int32)
        tokens.append(int(tf.argmax(decoder.read_more(np.array(tokens[-1:], np.int32), places, room)[0])))
    return tokens


# `test_logits_are_those_of_the_whole_text` and tests/formats/test_outputs.py have the shorter texts.
@pytest.mark.nightly
@pytest.mark.parametrize("name", ["hf_llama", "hf_qwen2", "hf_qwen3"])
def test_tokens_are_those_of_transformers(name):
    network = trained_model.load(ModelSource(init_checkpoint=f"hf:{DATA / name}")).network
    expected = np.load(DATA / name / "greedy.npz")
    for prompt, tokens in zip(expected["prompts"].astype(np.int32), expected["tokens"], strict=True):
        assert greedy(network, prompt[np.newaxis], len(tokens)) == tokens.tolist()
