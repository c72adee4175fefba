"""Models that other libraries wrote give the outputs here that they gave there."""

import numpy as np
import pytest
import tensorflow as tf

from tests.formats.models import DATA, build, outputs, task_logits
from tftrain.config.convert import Place
from tftrain.formats.hugging_face_names import links_of
from tftrain.formats.registry import open_weights

FIXTURES = {
    "hf_bert": ("hf", {"hidden", "mlm_logits", "nsp_logits"}),
    "hf_bert_masked_lm": ("hf", {"hidden", "mlm_logits"}),
    "hf_bert_model": ("hf", {"hidden", "pooled"}),
    "hf_megatron_bert": ("hf", {"hidden", "mlm_logits", "nsp_logits"}),
    "hf_gpt2": ("hf", {"hidden", "logits"}),
    "hf_llama": ("hf", {"hidden", "logits"}),
    "hf_qwen2": ("hf", {"hidden", "logits"}),
    "hf_qwen3": ("hf", {"hidden", "logits"}),
    "hf_bert_classes": ("hf", {"hidden", "task_logits"}),
    "hf_bert_tokens": ("hf", {"hidden", "task_logits"}),
    "hf_bert_answers": ("hf", {"hidden", "task_logits"}),
    "hf_modernbert": ("hf", {"hidden", "mlm_logits"}),
    "hf_modernbert_classes": ("hf", {"hidden", "task_logits"}),
    "hf_modernbert_mean": ("hf", {"hidden", "task_logits"}),
    "hf_modernbert_tokens": ("hf", {"hidden", "task_logits"}),
    "hf_modernbert_answers": ("hf", {"hidden", "task_logits"}),
    "tf1": ("tf1", {"hidden", "mlm_log_probabilities", "nsp_log_probabilities"}),
    "tf_models": ("tf_models", {"hidden", "mlm_logits", "nsp_logits"}),
    "tf_models_encoder": ("tf_models", {"hidden", "pooled"}),
    "nvidia": ("nvidia", {"hidden", "nsp_log_probabilities"}),
    "megatron": ("megatron", {"mlm_logits", "nsp_logits"}),
    "nvidia_encoder": ("nvidia", {"hidden", "pooled"}),
}


@pytest.mark.parametrize("name", ["hf_llama", "hf_qwen2", "hf_qwen3"])
def test_every_gradient_is_that_of_transformers(name):
    weights, expected = open_weights(Place("hf", str(DATA / name))), np.load(DATA / name / "expected.npz")
    model, ids = build(weights, "float64"), tf.constant(expected["input_ids"], tf.int32)
    variables = model.named_variables()
    with tf.GradientTape() as tape:
        entropy, _ = model.cross_entropy(model.hidden_states({"input_ids": ids[:, :-1]}), ids[:, 1:])
        loss = tf.reduce_sum(entropy)
    compare_gradients(weights, expected, variables, tape.gradient(loss, list(variables.values())))


def compare_gradients(weights, expected, variables, gradients):
    found = dict(zip(variables, gradients, strict=True))
    links = [link for link in links_of(weights.model) if f"gradient/{link.theirs}" in expected]
    assert {our for link in links for our in link.ours} == set(variables)
    for link in links:
        theirs = expected[f"gradient/{link.theirs}"]
        ours = link.join([found[each].numpy() for each in link.ours])
        # Theirs are in fp64 but for cosine and sine, which transformers always rounds to fp32.
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * np.abs(theirs).max(), err_msg=link.theirs)


def test_every_gradient_of_a_modernbert_is_that_of_transformers():
    weights, expected = (
        open_weights(Place("hf", str(DATA / "hf_modernbert"))),
        np.load(DATA / "hf_modernbert/expected.npz"),
    )
    model = build(weights, "float64")
    batch = {name: tf.constant(expected[name], tf.int32) for name in ("input_ids", "input_mask")}
    batch["masked_lm_positions"] = tf.tile([[1, 4]], [3, 1])
    batch["masked_lm_ids"] = batch["input_ids"][:, 2:4]
    variables = model.named_variables()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model.loss_terms(model.hidden_states(batch), batch).mlm_entropy)
    compare_gradients(weights, expected, variables, tape.gradient(loss, list(variables.values())))


@pytest.mark.parametrize("kind", ["classes", "mean", "tokens", "answers"])
def test_every_gradient_of_a_fine_tuned_modernbert_is_that_of_transformers(kind):
    folder = DATA / f"hf_modernbert_{kind}"
    weights, expected = open_weights(Place("hf", str(folder))), np.load(folder / "expected.npz")
    model = build(weights, "float64")
    batch = {name: tf.constant(expected[name], tf.int32) for name in ("input_ids", "input_mask")}
    variables = model.named_variables()
    with tf.GradientTape() as tape:
        logits = task_logits(model, batch)
        real = tf.cast(batch["input_mask"], logits.dtype)[..., None] if logits.shape.rank == 3 else 1.0
        loss = tf.reduce_sum(tf.square(logits * real))
    compare_gradients(weights, expected, variables, tape.gradient(loss, list(variables.values())))


@pytest.mark.parametrize("name", FIXTURES)
def test_a_model_gives_the_outputs_of_the_library_that_wrote_it(name):
    kind, compared = FIXTURES[name]
    expected = np.load(DATA / name / "expected.npz")
    found = outputs(open_weights(Place(kind, str(DATA / name))), expected)
    real = expected["input_mask"].astype(bool) if "input_mask" in expected else slice(None)
    assert compared <= set(expected)
    for output in compared:
        rows = real if expected[output].ndim == 3 else slice(None)
        np.testing.assert_allclose(found[output][rows], expected[output][rows], rtol=1e-5, atol=1e-5, err_msg=output)
