"""Vectors of texts against numpy in fp64: poolings with padding anywhere, a dense layer, the length."""

import numpy as np
import pytest
import tensorflow as tf

from tests.model.samples import small_config
from tftrain.model.bert import pooled
from tftrain.model.registry import model_class

# Padding after, before and around a text, between two of its tokens, and none; a row without tokens.
MASK = np.array([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [0, 1, 1, 0, 0], [1, 0, 0, 1, 0], [1] * 5, [0] * 5])
UNPOOLED = np.array([1, 2, 0, 1, 4, 0])


def own_pooled(hidden, mask, pooling):
    """Row by row over the tokens that are there."""
    rows = np.zeros([len(hidden), hidden.shape[-1]])
    for number, (states, real) in enumerate(zip(hidden, mask, strict=True)):
        if len(own := states[real > 0]):
            rows[number] = {"mean": own.mean(0), "max": own.max(0), "cls": own[0], "last": own[-1]}[pooling]
    return rows


@pytest.mark.parametrize("pooling", ["mean", "max", "cls", "last"])
def test_poolings_take_the_tokens_that_are_there(pooling):
    hidden = np.random.default_rng(1).normal(size=(*MASK.shape, 7)) - 3.0
    found = pooled(tf.constant(hidden), tf.constant(MASK), pooling).numpy()
    np.testing.assert_allclose(found, own_pooled(hidden, MASK, pooling), rtol=1e-14)
    if pooling in ("cls", "last"):
        np.testing.assert_array_equal(found, own_pooled(hidden, MASK, pooling))
    half = tf.constant(hidden, tf.bfloat16)
    found, expected = pooled(half, tf.constant(MASK), pooling), own_pooled(half.numpy().astype(float), MASK, pooling)
    np.testing.assert_allclose(found.numpy().astype(float), expected, rtol=2**-8)


@pytest.mark.parametrize(
    ("family", "flags"),
    [
        ("bert", {}),
        ("bert", {"pooling": "cls", "embedding_dense": 5}),
        ("gpt", {"embedding_dense": 30, "embedding_activation": "identity", "normalize_embeddings": False}),
        ("llama", {"pooling": "max", "embedding_dense": 4}),
    ],
    ids=str,
)
def test_vectors_are_those_of_the_formula(family, flags):
    of_family = {"activation": "swiglu", "position_embedding": "rotary", "bias": "none", "hidden_size": 24}
    more = of_family if family == "llama" else {}
    config = small_config(model_family=family, task="embedding", **{**more, **flags})
    model = model_class(config)(config, "float64", 1)
    ids = np.random.default_rng(2).integers(1, 59, MASK.shape)
    real = np.sort(MASK[:-1], axis=1)[:, ::-1]  # Padding after each text.
    batch = {"input_ids": ids[:-1], "input_mask": real, "segment_ids": np.zeros_like(real)}
    batch = {name: tf.constant(value, tf.int32) for name, value in batch.items()}
    hidden, _ = model.encode(batch)
    for unpooled in (None, UNPOOLED[:-1]):
        given = batch if unpooled is None else batch | {"unpooled": tf.constant(unpooled, tf.int32)}
        mask = real if unpooled is None else real * (np.cumsum(real, 1) > unpooled[:, None])
        expected = own_pooled(hidden.numpy(), mask, config.text_pooling)
        if model.projection is not None:
            assert [each.name for each in model.architecture.variables()][-1].startswith("projection/")
            kernel, bias = (each.numpy() for each in model.projection.weights)
            expected = expected @ kernel + bias
            expected = np.tanh(expected) if config.embedding_activation == "tanh" else expected
        if config.normalize_embeddings:
            expected /= np.maximum(np.linalg.norm(expected, axis=1, keepdims=True), 1e-6)
        found = model.task_outputs(given)
        assert found.shape == (5, config.vector_size)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)
    assert set(model.named_outputs(batch, None, ())) == {"last_hidden_state", "sentence_embedding"}


def test_the_vector_of_a_decoder_depends_on_no_padding():
    config = small_config(model_family="gpt", position_embedding="rotary", hidden_size=24, task="embedding")
    model = model_class(config)(config, "float64", 1)
    ids = tf.constant([[7, 9, 30, 0, 0], [7, 9, 30, 41, 5]])
    batch = {"input_ids": ids, "input_mask": tf.constant([[1, 1, 1, 0, 0]] * 2)}
    same, other = model.task_outputs(batch)
    np.testing.assert_allclose(same, other, rtol=1e-12)
