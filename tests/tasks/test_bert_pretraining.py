"""The loss sums against plain NumPy, and their additivity over micro-batches."""

import numpy as np
import pytest
import tensorflow as tf

from tests.model.samples import assert_close, dropout_key, rows, small_batch, small_config, small_model
from tests.test_run import configured
from tftrain.data import pipeline
from tftrain.model.bert import Outputs
from tftrain.model.part import ModelPart
from tftrain.parallel.mesh import Mesh
from tftrain.tasks import make_task
from tftrain.tasks.bert_pretraining import BertPretraining, LossSums, pretraining_loss_sums


def random_outputs(samples=5, predictions=4, vocab=59) -> Outputs:
    random = np.random.default_rng(7)
    mlm_logits = random.normal(scale=3, size=(samples, predictions, vocab))
    return Outputs(tf.constant(mlm_logits, tf.float32), tf.constant(random.normal(size=(samples, 2)), tf.float32))


def log_softmax(logits):
    logits = np.asarray(logits, np.float64)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.mark.parametrize("example_weights", [None, [1.0, 1.0, 0.0, 1.0, 0.5]])
def test_sums_equal_numpy(example_weights):
    outputs, batch = random_outputs(), small_batch()
    if example_weights:
        batch["example_weights"] = tf.constant(example_weights)
    sums = pretraining_loss_sums(outputs, batch)

    weights, words = batch["masked_lm_weights"].numpy(), batch["masked_lm_ids"].numpy()
    mlm = np.take_along_axis(log_softmax(outputs.mlm_logits), words[..., None], -1)[..., 0]
    pairs = np.ones(5) if example_weights is None else np.asarray(example_weights)
    labels = batch["next_sentence_labels"].numpy()
    nsp = log_softmax(outputs.nsp_logits)[np.arange(5), labels]
    expected = LossSums(
        mlm_sum=-(mlm * weights).sum(),
        mlm_weight=weights.sum(),
        mlm_correct=((np.argmax(outputs.mlm_logits, -1) == words) * weights).sum(),
        nsp_sum=-(nsp * pairs).sum(),
        nsp_correct=((np.argmax(outputs.nsp_logits, -1) == labels) * pairs).sum(),
        examples=pairs.sum(),
    )
    for name, actual, reference in zip(LossSums._fields, sums, expected, strict=True):
        assert actual.dtype == tf.float32
        assert_close(actual, reference, rtol=1e-6, what=name)


def test_right_predictions_are_counted_right():
    batch = small_batch()
    outputs = Outputs(10 * tf.one_hot(batch["masked_lm_ids"], 59), 10 * tf.one_hot(batch["next_sentence_labels"], 2))
    sums = pretraining_loss_sums(outputs, batch)
    assert sums.mlm_correct == sums.mlm_weight
    assert sums.nsp_correct == sums.examples


def test_labels_may_have_a_last_axis_of_one():
    outputs, batch = random_outputs(), small_batch()
    column = batch | {"next_sentence_labels": batch["next_sentence_labels"][:, None]}
    assert pretraining_loss_sums(outputs, column).nsp_sum == pretraining_loss_sums(outputs, batch).nsp_sum


def test_unused_slots_and_weightless_examples_have_no_gradient():
    outputs, batch = random_outputs(), small_batch()
    batch["example_weights"] = tf.constant([1.0, 0.0, 1.0, 1.0, 1.0])
    with tf.GradientTape() as tape:
        tape.watch(outputs)
        sums = pretraining_loss_sums(outputs, batch)
        loss = sums.mlm_sum + sums.nsp_sum
    gradient = tape.gradient(loss, outputs)
    assert not gradient.mlm_logits.numpy()[batch["masked_lm_weights"].numpy() == 0].any()
    assert not gradient.nsp_logits.numpy()[1].any()


def test_sums_and_gradients_of_micro_batches_add_up_to_those_of_the_batch():
    config = small_config(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    model, batch = small_model(config), small_batch(samples=6)
    variables = model.named_variables()

    def sums_and_gradients(first, last):
        part = rows(batch, first, last)
        with tf.GradientTape() as tape:
            sums = pretraining_loss_sums(model(part, dropout_key(first_sample=first)), part)
            loss = sums.mlm_sum + sums.nsp_sum
        return [*sums, *tape.gradient(loss, list(variables.values()))]

    whole = sums_and_gradients(0, 6)
    parts = [sums_and_gradients(first, first + 2) for first in (0, 2, 4)]
    key_kernels = {name: value for name, value in zip(variables, whole[6:], strict=True) if "key/kernel" in name}
    for name, one, *split in zip([*LossSums._fields, *variables], whole, *parts, strict=True):
        if name.endswith("key/bias"):  # 0 but for rounding, of the size of the key kernel's gradient
            size = np.abs(key_kernels[name.replace("bias", "kernel")]).max()
            np.testing.assert_allclose(sum(split), one, rtol=0, atol=32 * np.finfo(np.float32).eps * size)
        else:
            assert_close(sum(split), one, rtol=1e-5, what=name)


def test_means_are_sums_divided_by_their_weights():
    values = BertPretraining.mean_values([6.0, 2.0, 1.0, 4.0, 3.0, 4.0])
    assert values == {"mlm_loss": 3.0, "nsp_loss": 1.0, "mlm_accuracy": 0.5, "nsp_accuracy": 0.75, "loss": 4.0}


def test_a_mean_without_weight_is_nan():
    values = BertPretraining.mean_values([0.0, 0.0, 0.0, 4.0, 3.0, 4.0])
    assert np.isnan([values["mlm_loss"], values["mlm_accuracy"], values["loss"]]).all()
    assert values["nsp_loss"] == 1.0


def test_the_loss_is_that_of_its_own_weights():
    config = configured("--global_batch_size=6", "--output_dir=unused")
    task, batch = make_task(config, Mesh()), next(iter(batches_of(config, 6)))
    sums = task.compute(batch)
    np.testing.assert_allclose(
        task.loss(sums, task.loss_weights(batch)), task.mean_values(task.vector(sums).numpy())["loss"], rtol=1e-6
    )


@pytest.mark.parametrize("flags", [(), ("--norm_position=pre", "--activation=geglu")])
def test_parts_one_after_the_other_are_the_model(flags):
    config = configured("--global_batch_size=4", "--output_dir=unused", *flags)
    task, batch = make_task(config, Mesh()), next(iter(batches_of(config, 4)))
    layers = config.model.num_hidden_layers
    cuts = [(), *((layer,) for layer in range(layers)), ()]
    parts = [ModelPart(blocks, place == 0, place == len(cuts) - 1) for place, blocks in enumerate(cuts)]
    for key in (None, dropout_key()):
        x = None
        for part in parts:
            x = make_task(config, Mesh(), part).run_part(part, x, batch, key)
        expected = task.compute(batch, key)
        for name, value in x.items():
            np.testing.assert_array_equal(value, expected[name], err_msg=name)


def batches_of(config, samples):
    source = make_source(config)
    return pipeline.train_batches(source, config.data, config.run.seed, 0, samples, 0, samples)


def make_source(config):
    return pipeline.open_source(config.data, "train", config.model.vocab_size, config.run.seed)
