"""The cache of keys and values makes generation fast, and the tokens are those of transformers.

python -m pytest -s -m "nightly or not nightly" tests/inference/test_generation_speed.py     # prints the seconds
"""

import statistics
import time

import numpy as np
import pytest
import tensorflow as tf

from tests.formats.models import DATA
from tests.inference.test_generation import WORDS, network_of
from tftrain.config.model_source import ModelSource
from tftrain.inference import trained_model
from tftrain.model.key_value_cache import CachedDecoder

SIZES = {"num_hidden_layers": 6, "hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 1408}


def greedy(read, read_more, most):
    """Returns the most probable token, `most` times, and the median of the seconds of each but the first two."""
    tokens, seconds = [int(tf.argmax(read()[0]))], []
    while len(tokens) < most:
        began = time.perf_counter()
        tokens.append(int(tf.argmax(read_more(tokens)[0])))
        seconds.append(time.perf_counter() - began)
    return tokens, statistics.median(seconds[1:])


def with_cache(network, prompt, most):
    """Continues a prompt, int32 [1, S], with the keys and values of the tokens before."""
    decoder, length = CachedDecoder(network), prompt.shape[1]

    def read_more(tokens):
        places = np.array([length + len(tokens) - 1], np.int32)
        return decoder.read_more(np.array(tokens[-1:], np.int32), places, length + most)

    return greedy(lambda: decoder.read(prompt, np.array([length], np.int32), length + most), read_more, most)


def without_cache(network, prompt, most):
    """The same by reading the whole text again for each token."""

    @tf.function(input_signature=[tf.TensorSpec([1, None], tf.int32)], autograph=False)
    def last_logits(ids):
        return network.logits(network.hidden_states({"input_ids": ids})[:, -1:])[0]

    def read_more(tokens):
        return last_logits(tf.constant(np.append(prompt, [tokens], axis=1), tf.int32))

    return greedy(lambda: last_logits(tf.constant(prompt)), read_more, most)


@pytest.mark.parametrize("name", ["hf_llama", "hf_qwen2", "hf_qwen3"])
def test_512_tokens_are_those_of_transformers(name):
    network = trained_model.load(ModelSource(init_checkpoint=f"hf:{DATA / name}")).network
    expected = np.load(DATA / name / "greedy.npz")
    for prompt, tokens in zip(expected["prompts"].astype(np.int32), expected["tokens"], strict=True):
        assert with_cache(network, prompt[np.newaxis], 512)[0] == tokens.tolist()


@pytest.mark.nightly
def test_a_token_after_512_takes_at_most_a_fifteenth_of_the_time_without_a_cache():
    network, prompt = network_of("llama", "float32", **SIZES), np.arange(512, dtype=np.int32)[np.newaxis] % WORDS
    (tokens, cached), (expected, seconds) = (each(network, prompt, 34) for each in (with_cache, without_cache))
    assert tokens == expected
    print(f"\na token: {cached:.4f} s with the cache, {seconds:.4f} s without, {seconds / cached:.1f} times")
    assert seconds >= 15 * cached
