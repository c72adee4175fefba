"""What the model promises about padding, positions, the tied table and splits of a batch."""

import numpy as np
import pytest
import tensorflow as tf

from tests.model.samples import (
    assert_close,
    dropout_key,
    loss_and_gradients,
    outputs,
    small_batch,
    small_config,
    small_model,
)
from tftrain.ops.dropout import keep_mask

DTYPES = ["float32", "bfloat16", "float16"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_padding_holds_no_information(dtype):
    model, batch = small_model(small_config(), dtype), small_batch()
    padding = 1 - batch["input_mask"]
    changed = batch | {
        "input_ids": batch["input_ids"] * batch["input_mask"] + 7 * padding,
        "segment_ids": batch["segment_ids"] * batch["input_mask"] + padding,
    }
    for before, after in zip(outputs(model, batch), outputs(model, changed), strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sample_without_tokens_is_finite_and_leaves_the_others_alone(dtype):
    model, batch = small_model(small_config(), dtype), small_batch()
    empty = batch | {"input_mask": batch["input_mask"] * tf.constant([[1], [1], [0], [1], [1]])}
    before, after = outputs(model, batch).mlm_logits.numpy(), outputs(model, empty).mlm_logits.numpy()
    np.testing.assert_array_equal(np.delete(before, 2, 0), np.delete(after, 2, 0))
    _, gradients = loss_and_gradients(model, empty)
    assert np.isfinite(after).all()
    assert all(np.isfinite(gradient).all() for gradient in gradients.values())


def test_gradient_of_the_tied_table_is_dense_and_the_sum_of_both_uses():
    model, batch = small_model(small_config()), small_batch()
    word = model.named_variables()["embeddings/word"]
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(tf.square(outputs(model, batch).mlm_logits))
    whole = tape.gradient(total, word)
    looked_up = model.token_embedding.rows(batch["input_ids"])
    with tf.GradientTape() as tape:
        tape.watch(looked_up.values)
        total = tf.reduce_sum(tf.square(outputs(model, batch | {"token_rows": looked_up.values}).mlm_logits))
    output, of_rows = tape.gradient(total, [word, looked_up.values])
    assert isinstance(whole, tf.Tensor)
    np.testing.assert_array_equal(looked_up.ids, tf.reshape(batch["input_ids"], [-1]))
    of_rows = tf.IndexedSlices(tf.reshape(of_rows, [-1, word.shape[1]]), looked_up.ids, word.shape)
    assert_close(output + tf.convert_to_tensor(of_rows), whole, rtol=1e-5)


def test_every_dropout_place_of_the_model_has_a_mask_of_its_own(monkeypatch):
    sites = []

    def record(shape, dropout):
        sites.append((dropout.site, dropout.rate))
        return keep_mask(shape, dropout)

    monkeypatch.setattr("tftrain.ops.dropout.keep_mask", record)
    model = small_model(small_config(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.2))
    outputs(model, small_batch(), dropout_key())
    assert [rate for _, rate in sites] == [0.1] + 2 * [0.2, 0.1, 0.1]
    assert len({site for site, _ in sites}) == len(sites)


def test_a_sequence_beyond_the_position_embedding_is_refused():
    with pytest.raises(ValueError, match="--max_position_embeddings=31"):
        outputs(small_model(small_config()), small_batch(length=32))
