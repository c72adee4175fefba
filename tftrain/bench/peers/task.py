"""The task of every implementation: one update of BERT-base on one batch of 8 samples of 128 tokens.

This module needs only numpy: an interpreter without TensorFlow imports it too.
"""

import time
from collections.abc import Callable

import numpy as np

BATCH = 8
SEQ = 128
PREDICTIONS = 20
VOCAB = 30522
LAYERS = 12
HIDDEN = 768
HEADS = 12
DROPOUT = 0.1
LEARNING_RATE = 1e-4
WEIGHT_DECAY = 0.01

# The first step of a worker's turn is not counted: its weights are out of the caches and its threads asleep.
TURN_STEPS = 3
PRODUCTS = "products"  # what a worker is asked for, if it can tell the time of its matrix products alone


def batch(vocab: int = VOCAB) -> dict[str, np.ndarray]:
    """Returns a full batch in the standard format: int32 features and fp32 weights, without padding."""
    random = np.random.default_rng(1)
    positions = np.stack([np.sort(random.choice(SEQ, PREDICTIONS, replace=False)) for _ in range(BATCH)])
    integers = {
        "input_ids": random.integers(0, vocab, (BATCH, SEQ)),
        "input_mask": np.ones((BATCH, SEQ)),
        "segment_ids": np.repeat([[0, 1]], BATCH, 0).repeat(SEQ // 2, 1),
        "masked_lm_positions": positions,
        "masked_lm_ids": random.integers(0, vocab, (BATCH, PREDICTIONS)),
        "next_sentence_labels": random.integers(0, 2, BATCH),
    }
    features = {name: value.astype(np.int32) for name, value in integers.items()}
    ones = {"masked_lm_weights": (BATCH, PREDICTIONS), "example_weights": (BATCH,)}
    return features | {name: np.ones(shape, np.float32) for name, shape in ones.items()}


def turns(step: Callable[[], float]) -> Callable[[int], list[float]]:
    """Returns the function with which a worker answers requests.

    Args:
        step: does one update and returns its loss once it is done.

    Returns:
        A function that takes a number of steps, runs them and returns the seconds of each.

    Raises (the returned function):
        FloatingPointError: the loss is not finite: the step did not train.
    """

    def take(count: int) -> list[float]:
        seconds = []
        for _ in range(count):
            start = time.perf_counter()
            loss = step()
            seconds.append(time.perf_counter() - start)
            if not np.isfinite(loss):
                raise FloatingPointError(f"the loss is {loss}")
        return seconds

    return take
