"""Masks: the right shares of the right tokens, and a function of the seed and the sample's number alone."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tftrain.data.masking import Masking, random_block, stream_key
from tftrain.tokenizer.vocabulary import SPECIAL_TOKENS, Vocabulary

pytestmark = pytest.mark.slow

PAD, UNK, CLS, SEP, MASK = range(5)
LENGTH = 64


@functools.cache
def vocabulary(size=500):
    """Ids from 5: every third begins a word, the others go on one."""
    words = [f"w{number}" if number % 3 == 0 else f"##w{number}" for number in range(size - 6)]
    return Vocabulary((*SPECIAL_TOKENS, "[unused1]", *words), "wordpiece")


@functools.cache
def masking(whole_words=False, slots=12, prob=0.15, seed=1):
    return Masking(vocabulary(), LENGTH, slots, prob, whole_words, stream_key(seed, "test"))


def pairs(count, seed=0):
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        first, second = rng.integers(6, 500, rng.integers(2, 30)), rng.integers(6, 500, rng.integers(2, 30))
        rows.append([CLS, *first.tolist(), SEP, *second.tolist(), SEP])
    return tf.ragged.constant(rows, tf.int32)


@functools.cache
def traced(rule):
    signature = [tf.RaggedTensorSpec([None, None], tf.int32, 1), tf.TensorSpec([], tf.int64)]
    return tf.function(rule, input_signature=signature, autograph=False)


def mask(rule, tokens, first_sample=0):
    made = traced(rule)(tokens, tf.constant(first_sample, tf.int64))
    return {name: value.numpy() for name, value in made.items()}


def test_random_block_of_a_sample_is_its_own():
    key = stream_key(1, "test")
    whole = random_block(key, tf.constant(1000, tf.int64), tf.constant(50), 7).numpy()
    for first, rows in ((1000, 3), (1017, 33), (1049, 1)):
        part = random_block(key, tf.constant(first, tf.int64), tf.constant(rows), 7).numpy()
        np.testing.assert_array_equal(part, whole[first - 1000 : first - 1000 + rows])
    assert len(np.unique(whole)) > 0.99 * whole.size
    far = random_block(key, tf.constant(2**40, tf.int64), tf.constant(50), 7).numpy()
    assert not np.isin(far, whole).any()


@pytest.mark.parametrize("whole_words", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_a_sample_is_masked_alike_in_every_batch(whole_words):
    rule, tokens = masking(whole_words), pairs(40)
    whole = mask(rule, tokens, first_sample=123)
    for begin, end in ((0, 1), (5, 13), (39, 40)):
        part = mask(rule, tokens[begin:end], first_sample=123 + begin)
        for name, value in part.items():
            np.testing.assert_array_equal(value, whole[name][begin:end], err_msg=name)


def test_other_sample_numbers_and_seeds_give_other_masks():
    tokens = pairs(40)
    made = [mask(masking(seed=seed), tokens, first)["masked_lm_positions"] for seed, first in ((1, 0), (1, 40), (2, 0))]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert (made[one] != made[other]).any(1).mean() > 0.9


@pytest.mark.parametrize("whole_words", [False, True])
def test_labels_put_back_give_the_text(whole_words):
    tokens = pairs(200)
    made = mask(masking(whole_words), tokens)
    rows, slots = np.nonzero(made["masked_lm_weights"])
    positions = made["masked_lm_positions"][rows, slots]
    restored = made["input_ids"].copy()
    restored[rows, positions] = made["masked_lm_ids"][rows, slots]
    np.testing.assert_array_equal(restored, tokens.to_tensor(shape=[None, LENGTH]).numpy())
    original = restored[rows, positions]
    assert not np.isin(original, [PAD, UNK, CLS, SEP, MASK]).any()
    assert len(set(zip(rows.tolist(), positions.tolist(), strict=True))) == len(rows)


def test_unused_slots_are_zero():
    made = mask(masking(), pairs(50))
    unused = made["masked_lm_weights"] == 0
    assert unused.any()
    assert mask(masking(slots=3, prob=0.5), pairs(100))["masked_lm_weights"].sum(1).max() == 3
    assert not made["masked_lm_positions"][unused].any()
    assert not made["masked_lm_ids"][unused].any()


def test_eighty_ten_ten_without_special_tokens():
    made = mask(masking(), pairs(3000))
    rows, slots = np.nonzero(made["masked_lm_weights"])
    now, was = made["input_ids"][rows, made["masked_lm_positions"][rows, slots]], made["masked_lm_ids"][rows, slots]
    shares = np.array([(now == MASK).mean(), ((now != MASK) & (now != was)).mean(), (now == was).mean()])
    # Five standard deviations of a share of 0.8 among n draws; a random token is the old one once in 494.
    tolerance = 5 * np.sqrt(0.8 * 0.2 / len(now)) + 0.1 / 494
    np.testing.assert_allclose(shares, [0.8, 0.1, 0.1], atol=tolerance)
    replaced = now[(now != MASK) & (now != was)]
    assert (replaced.min(), replaced.max()) == (6, 499)
    assert len(np.unique(replaced)) > 440


@pytest.mark.parametrize("whole_words", [False, True])
def test_words_or_tokens_are_those_that_fit_in_random_order(whole_words):
    """The specification: BERT's loop over shuffled words, in plain Python."""
    tokens, rule = pairs(300), masking(whole_words)
    made = mask(rule, tokens)
    scores = random_block(rule.key, tf.constant(0, tf.int64), tf.constant(300), LENGTH + 2 * 12).numpy()
    starts = vocabulary().word_starts | (not whole_words)
    for row, text in enumerate(tokens.to_list()):
        words = []
        for position, token in enumerate(text):
            if token > SEP and (starts[token] or text[position - 1] <= SEP):
                words.append([position])
            elif token > SEP:
                words[-1].append(position)
        # The number of a word counts special tokens too, each of which is a word of its own.
        numbers = np.cumsum([starts[t] or t <= SEP or p == 0 or text[p - 1] <= SEP for p, t in enumerate(text)]) - 1
        budget = np.clip(np.round(np.float32(sum(map(len, words))) * np.float32(0.15)), 1, 12)
        expected = []
        for word in sorted(words, key=lambda word, row=row, numbers=numbers: scores[row, numbers[word[0]]]):
            if len(expected) + len(word) <= budget:
                expected += word
        chosen = made["masked_lm_positions"][row][made["masked_lm_weights"][row] > 0]
        assert chosen.tolist() == sorted(expected)


def test_a_sample_whose_words_are_all_too_long_has_no_prediction():
    row = [CLS, 6, 7, 8, 6, 7, SEP]
    made = mask(masking(whole_words=True), tf.ragged.constant([row, [CLS, 6, 7, 6, SEP]], tf.int32))
    assert made["masked_lm_weights"].sum(1).tolist() == [0, 1]
    assert made["masked_lm_positions"][1, 0] == 3


def test_text_without_anything_to_select_has_no_prediction():
    made = mask(masking(), tf.ragged.constant([[CLS, UNK, SEP, UNK, SEP]], tf.int32))
    assert not made["masked_lm_weights"].any()
    assert made["input_ids"][0, :5].tolist() == [CLS, UNK, SEP, UNK, SEP]
