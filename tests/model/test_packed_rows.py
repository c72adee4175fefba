"""Several examples in a row: the same losses and gradients as in rows of their own, and nothing leaks between them."""

import numpy as np
import pytest
import tensorflow as tf

from tests.model.samples import VOCAB, assert_close, loss_and_gradients, small_config, small_model
from tftrain.model.attention_cores import CORES, AttentionMask
from tftrain.prepare.packing import pack

SIZES = [12, 7, 19, 5, 4, 9, 3]  # tokens of each example
LENGTH, MOST, PREDICTIONS = 19, 3, 3  # tokens, sequences and predictions of a row
CORE_FLAGS = {
    "plain": {},
    "fused": {"attn_softmax_impl": "fused"},
    "flash": {"attn_impl": "flash"},
    "roberta": {"model_family": "roberta"},
}


def make_examples(seed=0):
    """Returns the examples, each with random ids, token types, masked words and a label."""
    random = np.random.default_rng(seed)

    def example(size):
        masks = int(random.integers(1, PREDICTIONS + 1))
        return {
            "input_ids": random.integers(VOCAB, size=size),
            "segment_ids": random.integers(2, size=size),
            "masked_lm_positions": random.choice(size, masks, replace=False),
            "masked_lm_ids": random.integers(VOCAB, size=masks),
            "next_sentence_labels": int(random.integers(2)),
        }

    return [example(size) for size in SIZES]


def filled(values, length):
    return np.pad(np.asarray(values), (0, length - len(values)))


def row_of(group, most, starts):
    """Returns a row with a group of examples; `starts` are their first places."""
    sizes = [len(example["input_ids"]) for example in group]
    words = np.concatenate([example["masked_lm_ids"] for example in group])
    positions = [example["masked_lm_positions"] + start for example, start in zip(group, starts, strict=True)]
    tokens = {name: np.concatenate([each[name] for each in group]) for name in ("input_ids", "segment_ids")}
    tokens["input_mask"] = np.ones(sum(sizes))
    slots = {"masked_lm_positions": np.concatenate(positions), "masked_lm_ids": words}
    slots["masked_lm_weights"] = np.ones(len(words))
    row = {name: filled(values, LENGTH) for name, values in tokens.items()}
    return row | {name: filled(values, PREDICTIONS * most) for name, values in slots.items()}


def in_own_rows(examples):
    """Returns a batch with one example in each row."""
    labels = [{"next_sentence_labels": example["next_sentence_labels"]} for example in examples]
    return batch_of([row_of([example], 1, [0]) | label for example, label in zip(examples, labels, strict=True)])


def packed(examples):
    """Returns a batch of the same examples in as few rows as possible."""
    rows = []
    for numbers in pack(np.array([len(example["input_ids"]) for example in examples]), LENGTH, MOST):
        group = [examples[number] for number in numbers if number >= 0]
        sizes = [len(example["input_ids"]) for example in group]
        starts = np.cumsum([0, *sizes])[:-1]
        rows.append(
            row_of(group, MOST, starts)
            | {
                "sequence_ids": filled(np.repeat(np.arange(len(sizes)) + 1, sizes), LENGTH),
                "position_ids": filled(np.concatenate([np.arange(size) for size in sizes]), LENGTH),
                "sequence_starts": filled(starts, MOST),
                "sequence_weights": filled(np.ones(len(sizes)), MOST),
                "next_sentence_labels": filled([example["next_sentence_labels"] for example in group], MOST),
            }
        )
    return batch_of(rows)


def batch_of(rows):
    stacked = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return {name: tf.constant(x, tf.float32 if "weights" in name else tf.int32) for name, x in stacked.items()}


@pytest.mark.parametrize(
    ("core", "compiled"),
    [
        pytest.param(core, compiled, marks=pytest.mark.nightly if compiled and core != "flash" else [])
        for core in CORE_FLAGS
        for compiled in (False, True)
    ],
)
def test_packed_examples_have_the_losses_and_gradients_of_rows_of_their_own(core, compiled):
    changes = {"hidden_size": 24} | CORE_FLAGS[core]  # heads of 8, as flash wants them
    model, examples = small_model(small_config(**changes)), make_examples()
    apart, together = in_own_rows(examples), packed(examples)
    assert together["input_ids"].shape[0] < 0.6 * apart["input_ids"].shape[0]
    compute = tf.function(loss_and_gradients, jit_compile=True, autograph=False) if compiled else loss_and_gradients
    expected_loss, expected = loss_and_gradients(model, apart)
    loss, gradients = compute(model, together)
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
