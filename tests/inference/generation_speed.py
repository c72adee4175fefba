"""The time of a token after a text of 512, with a cache of keys and values and without it.

python -m tests.inference.generation_speed
"""

import statistics
import time

import numpy as np
import tensorflow as tf

from tftrain.config.fields import implementations
from tftrain.config.model import ModelConfig
from tftrain.model.key_value_cache import CachedDecoder
from tftrain.model.registry import model_class

SIZES = {"num_hidden_layers": 6, "hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 1408}
WORDS = 61


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


def main() -> None:
    """Prints the seconds of a token."""
    config = ModelConfig(
        model_family="llama", vocab_size=WORDS, max_position_embeddings=1024, **SIZES, **implementations(ModelConfig)
    )
    network = model_class(config)(config.with_family_defaults({"model_family"}), "float32", seed=3)
    prompt = np.arange(512, dtype=np.int32)[np.newaxis] % WORDS
    (tokens, cached), (expected, seconds) = (each(network, prompt, 34) for each in (with_cache, without_cache))
    assert tokens == expected
    print(f"a token: {cached:.4f} s with the cache, {seconds:.4f} s without, {seconds / cached:.1f} times")


if __name__ == "__main__":
    main()
