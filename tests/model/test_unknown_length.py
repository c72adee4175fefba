"""A graph for sequences of any length computes what graphs for one length compute."""

import numpy as np
import pytest
import tensorflow as tf

from tests.model.samples import outputs, small_batch, small_config, small_model
from tftrain.model.decoder import Decoder

ROUNDING = 4 * np.finfo(np.float32).eps
FEATURES = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions")


def any_length(function, names):
    spec = {name: tf.TensorSpec([None, None], tf.int32) for name in names}
    return tf.function(function, input_signature=[spec], autograph=False)


@pytest.mark.parametrize("changes", [{}, {"norm_position": "pre"}, {"activation": "geglu"}])
def test_an_encoder_takes_any_length(changes):
    model = small_model(small_config(**changes))
    function = any_length(lambda batch: (*outputs(model, batch), *model.encode(batch)), FEATURES)
    for length in (4, 19, 31):
        batch = small_batch(length=length)
        batch = {name: batch[name] for name in FEATURES}
        for found, expected in zip(function(batch), (*outputs(model, batch), *model.encode(batch)), strict=True):
            scale = float(tf.reduce_max(tf.abs(expected)))
            np.testing.assert_allclose(found, expected, rtol=0, atol=10 * ROUNDING * scale)
    assert function.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("positions", ["learned", "rotary", "alibi"])
def test_a_decoder_takes_any_length(positions):
    model = Decoder(small_config(model_family="gpt", hidden_size=24, position_embedding=positions), "float32", seed=1)
    function = any_length(lambda batch: model.logits(model.hidden_states(batch)), ["input_ids"])
    for length in (1, 19):
        batch = {"input_ids": small_batch(length=19)["input_ids"][:, :length]}
        expected = model.logits(model.hidden_states(batch))
        scale = float(tf.reduce_max(tf.abs(expected)))
        np.testing.assert_allclose(function(batch), expected, rtol=0, atol=10 * ROUNDING * scale)


def test_a_sequence_beyond_the_position_table_fails():
    model = small_model(small_config(max_position_embeddings=16))
    function = any_length(lambda batch: model.encode(batch), FEATURES[:3])
    batch = small_batch(length=19)
    with pytest.raises(tf.errors.InvalidArgumentError):
        function({name: batch[name] for name in FEATURES[:3]})
