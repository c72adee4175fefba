"""Outputs, loss and every gradient equal those of tf-models' BertPretrainerV2, an independent implementation."""

import json

import numpy as np
import pytest
import tensorflow as tf

from tests.kit.tf_models import bert_pretrainer, features, tf_models
from tests.model.samples import assert_close, loss_and_gradients, outputs, small_batch, small_config, small_model
from tftrain.config.convert import Place
from tftrain.formats.registry import open_weights, write_weights
from tftrain.formats.weights import Weights

pytestmark = pytest.mark.slow


class OwnWeights(Weights):
    """The variables of a model of ours, for files of other libraries."""

    path = "the model"

    def __init__(self, model, config):
        self.model, self._variables = config, model.named_variables()
        self.shapes = {name: tuple(variable.shape) for name, variable in self._variables.items()}

    def read(self, name):
        return self._variables[name].numpy()


def test_outputs_loss_and_every_gradient_equal_tf_models(tmp_path):
    """Weights go to the library, and its gradients come back, by way of its checkpoints."""
    config, batch, place = small_config(gelu_form="tanh"), small_batch(), Place("tf_models", str(tmp_path))
    model = small_model(config)
    write_weights(place, OwnWeights(model, config))
    theirs = bert_pretrainer(json.loads((tmp_path / "bert_config.json").read_text()))
    theirs(features(batch))  # makes the variables
    checkpoint = tf.train.Checkpoint(model=theirs)
    checkpoint.read(str(tmp_path / "bert_model.ckpt")).assert_existing_objects_matched()

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
    checkpoint.write(str(tmp_path / "bert_model.ckpt"))
    expected = open_weights(place)
    assert actual.keys() == set(expected.shapes)
    for name, gradient in actual.items():
        if name.endswith("key/bias"):  # it cancels in the softmax: both gradients are rounding errors of 0
            size = np.abs(actual[name.replace("bias", "kernel")]).max()
            atol = 16 * np.finfo(np.float32).eps * size
            np.testing.assert_allclose(gradient, expected.read(name), rtol=0, atol=atol)
        else:
            assert_close(gradient, expected.read(name), rtol=1e-4, what=name)
