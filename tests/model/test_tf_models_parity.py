"""Outputs, loss and every gradient equal those of tf-models' BertPretrainerV2, an independent implementation."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

from tests.kit.tf_models import bert_pretrainer, features, tf_models
from tests.model.samples import PLAIN, assert_close, loss_and_gradients, outputs, small_batch
from tftrain.config.convert import Place
from tftrain.formats.registry import open_weights
from tftrain.model.bert import BertPretrainer

pytestmark = pytest.mark.slow

CONFIG = {"vocab_size": 59, "num_hidden_layers": 3, "hidden_size": 21, "num_attention_heads": 3}
CONFIG |= {"intermediate_size": 35, "max_position_embeddings": 31, "type_vocab_size": 2, "hidden_act": "gelu"}


def weights_of(model, folder):
    """Returns the variables of tf-models' model under our names, by way of a checkpoint."""
    (folder / "bert_config.json").write_text(json.dumps(CONFIG))
    tf.train.Checkpoint(model=model).write(str(folder / "bert_model.ckpt"))
    return open_weights(Place("tf_models", str(folder)))


@pytest.mark.parametrize("form", ["tanh", "erf"])
def test_outputs_loss_and_every_gradient_equal_tf_models(form, tmp_path):
    theirs, random = bert_pretrainer(CONFIG, lambda x: tf.nn.gelu(x, form == "tanh")), np.random.default_rng(1)
    batch = small_batch()
    theirs(features(batch))  # makes the variables
    for variable in theirs.trainable_variables:
        variable.assign(random.normal(float("gamma" in variable.name), 0.2, variable.shape))
    weights = weights_of(theirs, tmp_path)
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = dataclasses.replace(weights.model, gelu_form=form, **dropout, **PLAIN)
    model = BertPretrainer(config, "float32", 1, initial=weights.shard)

    entropy = tf_models("official.nlp.modeling.losses").weighted_sparse_categorical_crossentropy_loss
    with tf.GradientTape() as tape:
        found = theirs(features(batch), training=False)
        expected_loss = entropy(batch["next_sentence_labels"], found["next_sentence"], from_logits=True)
        labels, label_weights = batch["masked_lm_ids"], batch["masked_lm_weights"]
        expected_loss += entropy(labels, found["mlm_logits"], label_weights, from_logits=True)
    gradients = tape.gradient(expected_loss, theirs.trainable_variables, unconnected_gradients="zero")
    actual = outputs(model, batch)
    assert_close(actual.mlm_logits, found["mlm_logits"], rtol=1e-5)
    assert_close(actual.nsp_logits, found["next_sentence"], rtol=1e-5)
    alone = small_batch(samples=1, length=7, predictions=1)  # and without padding
    assert_close(outputs(model, alone).mlm_logits, theirs(features(alone))["mlm_logits"], rtol=1e-5)
    loss, actual = loss_and_gradients(model, batch)
    assert_close(loss, expected_loss, rtol=1e-5)

    for variable, gradient in zip(theirs.trainable_variables, gradients, strict=True):
        variable.assign(tf.convert_to_tensor(gradient))
    expected = weights_of(theirs, tmp_path)
    assert actual.keys() == set(expected.shapes)
    for name, gradient in actual.items():
        if name.endswith("key/bias"):  # it cancels in the softmax: both gradients are rounding errors of 0
            size = np.abs(actual[name.replace("bias", "kernel")]).max()
            atol = 16 * np.finfo(np.float32).eps * size
            np.testing.assert_allclose(gradient, expected.read(name), rtol=0, atol=atol)
        else:
            assert_close(gradient, expected.read(name), rtol=1e-4, what=name)
