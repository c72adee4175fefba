"""The unigram entropy is that of the text, not of what masking left of it."""

import numpy as np

from tftrain.tasks.bert_pretraining import original_tokens

CLS, SEP, MASK = 2, 3, 4


def test_masked_tokens_are_put_back_and_special_tokens_left_out():
    batch = {
        "input_ids": np.array(
            [
                [CLS, 10, MASK, SEP, 12, SEP, 0, 0],
                [CLS, MASK, 11, SEP, 99, SEP, 14, SEP],
                [CLS, 50, 50, 50, 50, 50, 50, SEP],
            ],
            np.int32,
        ),
        "input_mask": np.array([[1] * 6 + [0] * 2, [1] * 8, [1] * 8], np.int32),
        "masked_lm_positions": np.array([[2, 0], [1, 4], [1, 2]], np.int32),
        "masked_lm_ids": np.array([[11, 0], [10, 13], [1, 1]], np.int32),
        "masked_lm_weights": np.array([[1, 0], [1, 1], [0, 0]], np.float32),
        # The last example only fills the batch.
        "example_weights": np.array([1, 1, 0], np.float32),
    }
    assert sorted(original_tokens(batch)) == [10, 10, 11, 11, 12, 13, 14]


def test_a_batch_of_nothing_but_filling_has_no_tokens():
    batch = {"example_weights": np.zeros(2, np.float32)}
    assert original_tokens(batch).size == 0
