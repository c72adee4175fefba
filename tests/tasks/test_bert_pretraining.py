"""The loss sums against plain NumPy, and their additivity over micro-batches."""

import numpy as np
import pytest
import tensorflow as tf

from tests.kit.runs import configured
from tests.model import samples
from tests.model.samples import LossSums, assert_close, batch_sums, small_batch
from tftrain.architecture.describe import describe
from tftrain.architecture.flops import step
from tftrain.data import pipeline
from tftrain.data.prepared import open_data
from tftrain.data.source import open_source
from tftrain.model.bert import LossTerms
from tftrain.model.part import ModelPart
from tftrain.parallel.mesh import Mesh
from tftrain.tasks import make_task
from tftrain.tasks.bert_pretraining import BertPretraining
from tftrain.tasks.task import Contents


def comparison(samples=5, predictions=4) -> LossTerms:
    random = np.random.default_rng(7)
    entropy, correct = random.random((samples, predictions)), random.integers(2, size=(samples, predictions))
    return LossTerms(*(tf.constant(each, tf.float32) for each in (entropy, correct, random.normal(size=(samples, 2)))))


@pytest.mark.parametrize("example_weights", [None, [1.0, 1.0, 0.0, 1.0, 0.5]])
def test_sums_equal_numpy(example_weights):
    found, batch = comparison(), small_batch()
    if example_weights:
        batch["example_weights"] = tf.constant(example_weights)
    sums = batch_sums(found, batch)

    weights, labels = batch["masked_lm_weights"].numpy(), batch["next_sentence_labels"].numpy()
    pairs = np.ones(5) if example_weights is None else np.asarray(example_weights)
    nsp = found.nsp_logits.numpy().astype(np.float64)
    expected = LossSums(
        mlm_sum=(found.mlm_entropy * weights).numpy().sum(),
        mlm_weight=weights.sum(),
        mlm_correct=(found.mlm_correct * weights).numpy().sum(),
        nsp_sum=((np.log(np.exp(nsp).sum(-1)) - nsp[np.arange(5), labels]) * pairs).sum(),
        nsp_correct=((np.argmax(nsp, -1) == labels) * pairs).sum(),
        examples=pairs.sum(),
    )
    for name, actual, reference in zip(LossSums._fields, sums, expected, strict=True):
        assert actual.dtype == tf.float32
        assert_close(actual, reference, rtol=1e-6, what=name)


def test_labels_may_have_a_last_axis_of_one():
    found, batch = comparison(), small_batch()
    column = batch | {"next_sentence_labels": batch["next_sentence_labels"][:, None]}
    assert batch_sums(found, column).nsp_sum == batch_sums(found, batch).nsp_sum


def test_unused_slots_and_weightless_examples_have_no_gradient():
    found, batch = comparison(), small_batch()
    batch["example_weights"] = tf.constant([1.0, 0.0, 1.0, 1.0, 1.0])
    with tf.GradientTape() as tape:
        tape.watch(found)
        sums = batch_sums(found, batch)
        loss = sums.mlm_sum + sums.nsp_sum
    gradient = tape.gradient(loss, found)
    np.testing.assert_array_equal(gradient.mlm_entropy, batch["masked_lm_weights"])
    assert gradient.mlm_correct is None or not gradient.mlm_correct.numpy().any()
    assert not gradient.nsp_logits.numpy()[1].any()


def test_means_are_sums_divided_by_their_weights():
    values = BertPretraining.mean_values(BertPretraining, [6.0, 2.0, 1.0, 4.0, 3.0, 4.0])
    assert values == {"mlm_loss": 3.0, "nsp_loss": 1.0, "mlm_accuracy": 0.5, "nsp_accuracy": 0.75, "loss": 4.0}
    # A mean without weight is None and no part of the loss.
    values = BertPretraining.mean_values(BertPretraining, [0.0, 0.0, 0.0, 4.0, 3.0, 4.0])
    assert [values[name] for name in ("mlm_loss", "mlm_accuracy", "nsp_loss", "loss")] == [None, None, 1.0, 1.0]
    assert BertPretraining.mean_values(BertPretraining, [0.0] * 6)["loss"] is None


def test_the_loss_is_that_of_its_own_weights():
    config = configured("--global_batch_size=6", "--output_dir=unused")
    task, batch = make_task(config, Mesh()), next(iter(batches_of(config, 6)))
    sums = task.compute(batch)
    expected = task.mean_values(task.vector(sums).numpy())["loss"]
    np.testing.assert_allclose(task.loss(sums, task.loss_weights(batch)), expected, rtol=1e-6)


@pytest.mark.parametrize("flags", [(), ("--norm_position=pre", "--activation=geglu")])
def test_parts_one_after_the_other_are_the_model(flags):
    config = configured("--global_batch_size=4", "--output_dir=unused", *flags)
    task, batch = make_task(config, Mesh()), next(iter(batches_of(config, 4)))
    layers = config.model.num_hidden_layers
    cuts = [(), *((layer,) for layer in range(layers)), ()]
    parts = [ModelPart(blocks, place == 0, place == len(cuts) - 1) for place, blocks in enumerate(cuts)]
    for key in (None, samples.dropout_key()):
        x = None
        for part in parts:
            x = make_task(config, Mesh(), part).run_part(part, x, batch, key)
        expected = task.compute(batch, key)
        for name, value in x.items():
            np.testing.assert_array_equal(value, expected[name], err_msg=name)


def batches_of(config, samples):
    source = open_source(open_data(config.data, config.model), "train", config.run.seed)
    return pipeline.train_batches(source, config.data, config.run.seed, 0, samples, 0, samples)


def test_the_contents_of_a_batch_are_its_examples_and_tokens():
    task = make_task(configured("--global_batch_size=4", "--output_dir=unused"), Mesh())
    whole = {"input_ids": tf.zeros([2, 5], tf.int32), "masked_lm_positions": tf.zeros([2, 3], tf.int32)}
    batch = whole | {"input_mask": tf.constant([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])}
    packed = batch | {"sequence_weights": tf.constant([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])}
    model = configured("--global_batch_size=4", "--output_dir=unused").model
    operations = step(describe(model), tokens=5, predictions=3, samples=2)
    assert task.contents(batch) == Contents(samples=2, tokens=8, positions=10, flops=operations)
    assert task.contents(packed) == Contents(samples=5, tokens=8, positions=10, flops=operations)
    assert task.contents(whole) == Contents(samples=2, tokens=10, positions=10, flops=operations)


def test_the_tokens_of_a_text_are_those_before_masking_without_special_ones():
    cls, sep, mask = 2, 3, 4
    ids = [[cls, 10, mask, sep, 12, sep, 0, 0], [cls, mask, 11, sep, 99, sep, 14, sep], [cls, *[50] * 6, sep]]
    batch = {
        "input_ids": np.array(ids, np.int32),
        "input_mask": np.array([[1] * 6 + [0] * 2, [1] * 8, [1] * 8], np.int32),
        "masked_lm_positions": np.array([[2, 0], [1, 4], [1, 2]], np.int32),
        "masked_lm_ids": np.array([[11, 0], [10, 13], [1, 1]], np.int32),
        "masked_lm_weights": np.array([[1, 0], [1, 1], [0, 0]], np.float32),
        # The last example only fills the batch.
        "example_weights": np.array([1, 1, 0], np.float32),
    }
    assert sorted(BertPretraining.text_tokens(batch)) == [10, 10, 11, 11, 12, 13, 14]
    assert BertPretraining.text_tokens({"example_weights": np.zeros(2, np.float32)}).size == 0
