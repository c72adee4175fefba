"""The tasks of every implementation: one update of a model on batches of one size, random ones or real text.

This module needs only numpy: an interpreter without TensorFlow imports it too.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

VOCAB = 30522
BERT, MODERNBERT = "bert", "modernbert"  # the families
# Layers, width, heads and width of the feed-forward layer of each family: BERT base, and a small ModernBERT.
_NAMES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
SIZES = {
    family: dict(zip(_NAMES, sizes, strict=True))
    for family, sizes in {BERT: (12, 768, 12, 3072), MODERNBERT: (6, 512, 8, 768)}.items()
}
DROPOUT, LEARNING_RATE, WEIGHT_DECAY = 0.1, 1e-4, 0.01

# The first step of a worker's turn is not counted: its weights are out of the caches and its threads asleep.
TURN_STEPS = 3

Batch = dict[str, np.ndarray]


class PeerTask(NamedTuple):
    """The size of a batch: its rows, which are samples, the tokens of a row, and the masked tokens of an example."""

    rows: int
    length: int
    predictions: int
    family: str = BERT
    of_text: bool = False


SYNTHETIC, TEXT = "synthetic_128", "text_512"
MODERN, MODERN_LONG = "modernbert_1024", "modernbert_8192"
MODERN_TEXT, MODERN_LONG_TEXT = "modernbert_text_1024", "modernbert_text_8192"
TASKS = {
    SYNTHETIC: PeerTask(8, 128, 20),
    TEXT: PeerTask(4, 512, 77, of_text=True),
    MODERN: PeerTask(4, 1024, 308, MODERNBERT),
    MODERN_LONG: PeerTask(1, 8192, 2458, MODERNBERT),
    MODERN_TEXT: PeerTask(4, 1024, 308, MODERNBERT, of_text=True),
    MODERN_LONG_TEXT: PeerTask(1, 8192, 2458, MODERNBERT, of_text=True),
}


def batches(settings: dict[str, Any], vocab: int = VOCAB) -> list[Batch]:
    """Returns the batches of a task, which a worker takes in turns: of real text, or one random batch of ids < `vocab`.

    Settings hold the task, and for real text `batches`, the file that `write` wrote.
    """
    if "batches" not in settings:
        return [synthetic(TASKS[settings["task"]], vocab)]
    with np.load(settings["batches"]) as file:
        arrays = dict(file)
    return [dict(zip(arrays, features, strict=True)) for features in zip(*arrays.values(), strict=True)]


def size(settings: dict[str, Any]) -> PeerTask:
    """Returns the size of the batches that `batches` returns; packed rows have more masked tokens than others."""
    if "batches" not in settings:
        return TASKS[settings["task"]]
    (rows, length), slots = (batches(settings)[0][name].shape for name in ("input_ids", "masked_lm_ids"))
    return TASKS[settings["task"]]._replace(rows=rows, length=length, predictions=slots[1])


def write(path: str, batches: Sequence[Batch]) -> None:
    """Writes batches of equal shapes to a .npz file."""
    np.savez(path, **{name: np.stack([batch[name] for batch in batches]) for name in batches[0]})


def synthetic(task: PeerTask, vocab: int = VOCAB) -> Batch:
    """Returns a full batch in the standard format: int32 features and fp32 weights, without padding."""
    random = np.random.default_rng(1)
    rows, length, slots = task[:3]
    positions = np.stack([np.sort(random.choice(length, slots, replace=False)) for _ in range(rows)])
    integers = {
        "input_ids": random.integers(0, vocab, (rows, length)),
        "input_mask": np.ones((rows, length)),
        "segment_ids": np.repeat([[0, 1]], rows, 0).repeat(length // 2, 1),
        "masked_lm_positions": positions,
        "masked_lm_ids": random.integers(0, vocab, (rows, slots)),
        "next_sentence_labels": random.integers(0, 2, rows),
    }
    features = {name: value.astype(np.int32) for name, value in integers.items()}
    ones = {"masked_lm_weights": (rows, slots), "example_weights": (rows,)}
    return features | {name: np.ones(shape, np.float32) for name, shape in ones.items()}


def turns(step: Callable[[Any], float], inputs: Sequence[Any]) -> Callable[[int], list[float]]:
    """Returns the function with which a worker answers requests: it runs so many steps and returns the seconds of each.

    Counted steps take one input after the other, and begin again after the last one. The first step of a turn does not
    count; it takes the input of the second one. `step` does one update with an input and returns its loss when the
    update is done. A loss that is not finite raises a FloatingPointError.
    """
    counted = 0

    def take(count: int) -> list[float]:
        nonlocal counted
        seconds: list[float] = []
        for number in range(count):
            start = time.perf_counter()
            loss = step(inputs[counted % len(inputs)])
            seconds.append(time.perf_counter() - start)
            counted += number > 0
            if not np.isfinite(loss):
                raise FloatingPointError(f"the loss is {loss}")
        return seconds

    return take
