"""Outputs, loss and every gradient equal those of tf-models' BertPretrainerV2."""

import numpy as np
import pytest
import tensorflow as tf

from tests.model.samples import (
    VOCAB,
    assert_close,
    loss_and_gradients,
    outputs,
    small_batch,
    small_config,
    small_model,
)
from tests.model.tf_models_oracle import build_oracle

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["tanh", "erf"])
def pair(request):
    config = small_config(gelu_form=request.param)
    model, oracle = small_model(config), build_oracle(config, VOCAB)
    oracle.copy_weights(model)
    return model, oracle


def test_outputs_and_loss_equal_tf_models(pair):
    model, oracle = pair
    batch = small_batch()
    actual, expected = outputs(model, batch), oracle.run(batch)
    assert_close(actual.mlm_logits, expected.mlm_logits, rtol=1e-5)
    assert_close(actual.nsp_logits, expected.nsp_logits, rtol=1e-5)
    loss, _ = loss_and_gradients(model, batch)
    assert_close(loss, oracle.loss(expected, batch), rtol=1e-5)


def test_every_gradient_equals_tf_models(pair):
    model, oracle = pair
    batch = small_batch()
    _, actual = loss_and_gradients(model, batch)
    with tf.GradientTape() as tape:
        loss = oracle.loss(oracle.run(batch), batch)
    expected = tape.gradient(loss, oracle.variables)
    assert set(actual) == set(expected)
    for name, gradient in actual.items():
        reference = tf.reshape(tf.convert_to_tensor(expected[name]), gradient.shape)
        if name.endswith("key/bias"):  # it cancels in the softmax: both gradients are rounding errors of 0
            size = np.abs(actual[name.replace("bias", "kernel")]).max()
            np.testing.assert_allclose(gradient, reference, rtol=0, atol=16 * np.finfo(np.float32).eps * size)
        else:
            assert_close(gradient, reference, rtol=1e-4, what=name)


def test_parity_holds_for_one_sample_without_padding(pair):
    model, oracle = pair
    batch = small_batch(samples=1, length=7, predictions=1)
    assert_close(outputs(model, batch).mlm_logits, oracle.run(batch).mlm_logits, rtol=1e-5)


def test_a_model_that_tf_models_lacks_is_refused():
    with pytest.raises(ValueError, match="post-norm"):
        build_oracle(small_config(norm_position="pre"), VOCAB)
