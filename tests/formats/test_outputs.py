"""Models that other libraries wrote give the outputs here that they gave there."""

import numpy as np
import pytest
import tensorflow as tf

from tests.formats.models import DATA, build, outputs, task_logits
from tftrain.config.convert import Place
from tftrain.formats.hugging_face_names import links_of, type_of
from tftrain.formats.registry import open_weights

OUTPUTS = {"hidden", "pooled", "logits", "task_logits", "mlm_logits", "nsp_logits"}
OUTPUTS |= {"mlm_log_probabilities", "nsp_log_probabilities"}
# The folders of fixtures, and how many of these outputs each has.
FIXTURES = {path.parent.name: len(OUTPUTS & set(np.load(path))) for path in sorted(DATA.glob("*/expected.npz"))}


def test_the_fixtures_have_their_outputs():
    assert (len(FIXTURES), sum(FIXTURES.values()), min(FIXTURES.values())) == (36, 75, 1)


def loss_of_a_decoder(model, expected):
    ids = tf.constant(expected["input_ids"], tf.int32)
    return model.cross_entropy(model.hidden_states({"input_ids": ids[:, :-1]}), ids[:, 1:])[0]


def loss_of_masked_words(model, expected):
    batch = {name: tf.constant(expected[name], tf.int32) for name in ("input_ids", "input_mask")}
    batch |= {"masked_lm_positions": tf.tile([[1, 4]], [3, 1]), "masked_lm_ids": batch["input_ids"][:, 2:4]}
    return model.loss_terms(model.hidden_states(batch), batch).mlm_entropy


def loss_of_a_task(model, expected):
    batch = {name: tf.constant(expected[name], tf.int32) for name in ("input_ids", "input_mask")}
    logits = task_logits(model, batch)
    real = tf.cast(batch["input_mask"], logits.dtype)[..., None] if logits.shape.rank == 3 else 1.0
    return tf.square(logits * real)


GRADIENTS = dict.fromkeys(("hf_llama", "hf_qwen2", "hf_qwen3"), loss_of_a_decoder)
GRADIENTS |= {"hf_modernbert": loss_of_masked_words}
GRADIENTS |= dict.fromkeys(("hf_roberta", "hf_xlm_roberta", "hf_camembert", "hf_distilbert"), loss_of_masked_words)
GRADIENTS |= {name: loss_of_a_task for name in FIXTURES if name.endswith(("_classes", "_mean", "_tokens", "_answers"))}
GRADIENTS = {name: loss for name, loss in GRADIENTS.items() if not name.startswith("hf_bert")}  # without gradients


@pytest.mark.parametrize("name", GRADIENTS)
def test_every_gradient_is_that_of_transformers(name):
    weights, expected = open_weights(Place("hf", str(DATA / name))), dict(np.load(DATA / name / "expected.npz"))
    for copy, own in type_of(weights.model).tied_copies.items():  # Some classes have the copy first.
        if f"gradient/{copy}" in expected:
            expected.setdefault(f"gradient/{own}", expected[f"gradient/{copy}"])
    model = build(weights, "float64")
    variables = model.named_variables()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(GRADIENTS[name](model, expected))
    found = dict(zip(variables, tape.gradient(loss, list(variables.values())), strict=True))
    links = [link for link in links_of(weights.model) if f"gradient/{link.theirs}" in expected]
    assert {our for link in links for our in link.ours} == set(variables)
    for link in links:
        theirs = expected[f"gradient/{link.theirs}"]
        ours = link.join([found[each].numpy() for each in link.ours])
        # Theirs are in fp64 but for cosine and sine, which transformers always rounds to fp32. The softmax cancels the
        # bias of keys, so its gradient is nothing but roundings.
        atol = max(1e-5 * np.abs(theirs).max(), 1e-12)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=atol, err_msg=link.theirs)


def test_the_row_of_padding_is_read_wherever_it_is():
    """`hf_roberta_model` has a row with its padding before the text, and hidden states of all places."""
    expected = np.load(DATA / "hf_roberta_model/expected.npz")
    assert expected["input_mask"][2].tolist() == [0] * 11 + [1] * 5
    found = outputs(open_weights(Place("hf", str(DATA / "hf_roberta_model"))), expected)["hidden"]
    np.testing.assert_allclose(found, expected["hidden"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FIXTURES)
def test_a_model_gives_the_outputs_of_the_library_that_wrote_it(name):
    expected = np.load(DATA / name / "expected.npz")
    kind = "hf" if name.startswith("hf_") else name.removesuffix("_encoder")
    found = outputs(open_weights(Place(kind, str(DATA / name))), expected)
    real = expected["input_mask"].astype(bool) if "input_mask" in expected else slice(None)
    for output in OUTPUTS & set(expected):
        rows = real if expected[output].ndim == 3 else slice(None)
        np.testing.assert_allclose(found[output][rows], expected[output][rows], rtol=1e-5, atol=1e-5, err_msg=output)
