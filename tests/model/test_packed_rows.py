"""Several examples in a row: the same losses and gradients as in rows of their own, and nothing leaks between them."""

import numpy as np
import pytest
import tensorflow as tf

from tests.model.samples import assert_close, loss_and_gradients, small_batch, small_config, small_model
from tftrain.model.attention_cores import CORES, AttentionMask

GROUPS = ([0], [1, 4], [5, 2, 6], [3, 7])  # the samples of each row, which have 4 to 19 tokens
LENGTH, MOST, PREDICTIONS = 28, 3, 4  # tokens, sequences, and predictions of a sequence
CORE_FLAGS = {
    "plain": {},
    "fused": {"attn_softmax_impl": "fused"},
    "flash": {"attn_impl": "flash"},
    "roberta": {"model_family": "roberta"},
}


def packed(batch):
    """Returns the samples of a batch in the rows of GROUPS."""
    given, rows = {name: value.numpy() for name, value in batch.items()}, []
    for group in GROUPS:
        sizes = given["input_mask"][group].sum(1)
        starts = np.cumsum([0, *sizes[:-1]])
        parts = [slice(size) for size in sizes]
        tokens = {
            name: np.concatenate([given[name][number][part] for number, part in zip(group, parts, strict=True)])
            for name in ("input_ids", "input_mask", "segment_ids")
        }
        tokens["sequence_ids"] = np.repeat(np.arange(len(group)) + 1, sizes)
        tokens["position_ids"] = np.concatenate([np.arange(size) for size in sizes])
        slots = {name: given[name][group].ravel() for name in ("masked_lm_ids", "masked_lm_weights")}
        slots["masked_lm_positions"] = (given["masked_lm_positions"][group] + starts[:, None]).ravel()
        sequences = {"sequence_starts": starts, "sequence_weights": np.ones(len(group), np.float32)}
        sequences["next_sentence_labels"] = given["next_sentence_labels"][group]
        lengths = ((tokens, LENGTH), (slots, MOST * PREDICTIONS), (sequences, MOST))
        rows.append(
            {
                name: np.pad(values, (0, length - len(values)))
                for part, length in lengths
                for name, values in part.items()
            }
        )
    stacked = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return {name: tf.constant(x, tf.float32 if "weights" in name else tf.int32) for name, x in stacked.items()}


@pytest.mark.parametrize("core", CORE_FLAGS)
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_packed_examples_have_the_losses_and_gradients_of_rows_of_their_own(core, compiled):
    changes = {"hidden_size": 24} | CORE_FLAGS[core]  # heads of 8, as flash wants them
    model, apart = small_model(small_config(**changes)), small_batch(samples=8)
    compute = tf.function(loss_and_gradients, jit_compile=True, autograph=False) if compiled else loss_and_gradients
    expected_loss, expected = loss_and_gradients(model, apart)
    loss, gradients = compute(model, packed(apart))
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-6)
    largest = max(np.abs(gradient).max() for gradient in expected.values())
    for name, gradient in gradients.items():
        if name.endswith("key/bias"):  # zero but for rounding
            assert np.abs(gradient).max() < 1e-5 * largest
        else:
            assert_close(gradient, expected[name], rtol=1e-5, what=name)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("causal", [False, True], ids=["both directions", "causal"])
@pytest.mark.parametrize("core", [name for name in CORES if name != "cudnn"])
def test_cores_attend_within_a_sequence_alone(core, causal, dtype):
    random = np.random.default_rng(0)
    query, key, value = (tf.constant(random.normal(size=(2, 11, 3, 8)) * 3, dtype) for _ in range(3))
    sequences = tf.constant([[1] * 4 + [2] * 5 + [0] * 2, [1] * 2 + [2] + [3] * 8])
    mask = AttentionMask(tf.cast(sequences > 0, tf.int32), causal, (0.5, 0.25, 0.125), sequences)
    context = CORES[core](query, key, value, mask, None)
    for row, numbers in enumerate(sequences.numpy()):
        for number in set(numbers):
            own = np.flatnonzero(numbers == number)
            found = tf.gather(context[row], own)
            if number == 0:
                assert not np.asarray(found).any()
                continue
            part = [tf.gather(each[row], own)[tf.newaxis] for each in (query, key, value)]
            alone = AttentionMask(tf.ones([1, len(own)], tf.int32), causal, mask.slopes)
            roundings = 16 if dtype == "float32" else 4
            assert_close(found, CORES[core](*part, alone, None)[0], rtol=1e-5, dtype=dtype, roundings=roundings)
