"""A graph for sequences of any length computes what graphs for one length compute."""

import numpy as np
import pytest
import tensorflow as tf

from tests.model.samples import outputs, small_batch, small_config, small_model

ROUNDING = 4 * np.finfo(np.float32).eps
FEATURES = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions")


def any_length(function, names):
    spec = {name: tf.TensorSpec([None, None], tf.int32) for name in names}
    return tf.function(function, input_signature=[spec], autograph=False)


def assert_same(function, compute, names, batch, roundings):
    batch = {name: batch[name] for name in names}
    for found, expected in zip(function(batch), compute(batch), strict=True):
        scale = float(tf.reduce_max(tf.abs(expected)))
        np.testing.assert_allclose(found, expected, rtol=0, atol=roundings * ROUNDING * scale)


def test_an_encoder_takes_any_length():
    model = small_model(small_config())
    compute = lambda batch: (*outputs(model, batch), *model.encode(batch))  # noqa: E731
    function = any_length(compute, FEATURES)
    for length in (4, 31):
        assert_same(function, compute, FEATURES, small_batch(length=length), 10)
    assert function.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("positions", ["learned", "rotary", "alibi"])
def test_a_decoder_takes_any_length(positions):
    model = small_model(small_config(model_family="gpt", hidden_size=24, position_embedding=positions))
    compute = lambda batch: [model.logits(model.hidden_states(batch))]  # noqa: E731
    function = any_length(compute, ["input_ids"])
    for length in (1, 19):
        batch = {"input_ids": small_batch(length=19)["input_ids"][:, :length]}
        assert_same(function, compute, ["input_ids"], batch, 10)


def test_a_sequence_beyond_the_position_table_fails():
    model = small_model(small_config(max_position_embeddings=16))
    function = any_length(lambda batch: model.encode(batch), FEATURES[:3])
    batch = small_batch(length=19)
    with pytest.raises(tf.errors.InvalidArgumentError):
        function({name: batch[name] for name in FEATURES[:3]})
