"""An exported model beside the model that it was made of: largest differences, equal predictions, size and speed."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

Function = Callable[..., Mapping[str, np.ndarray]]

_SEQUENCES, _LENGTH = 8, 128
_WARM_UP, _TIMED = 2, 15
# Their best class is compared too.
_LOGITS = "logits"


class Comparison(NamedTuple):
    """What was measured on random tokens.

    Attributes:
        largest: of each output, the largest magnitude in the original.
        error: of each output, the largest difference.
        same_best: share of the places with the same most probable token; None without logits.
    """

    largest: dict[str, float]
    error: dict[str, float]
    same_best: float | None


def samples(inputs: list[str], tokens: int, longest: float) -> dict[str, np.ndarray]:
    """Returns a batch of random tokens, int32 [8, S], with rows of different lengths and at most 128 tokens."""
    random, length = np.random.default_rng(1), int(min(longest, _LENGTH))
    ids = random.integers(0, tokens, (_SEQUENCES, length), np.int32)
    lengths = np.linspace(length, max(1, length // 4), _SEQUENCES).astype(int)
    mask = (np.arange(length) < lengths[:, np.newaxis]).astype(np.int32)
    features = {"input_ids": ids, "input_mask": mask, "token_type_ids": np.zeros_like(ids)}
    return {name: features[name] for name in inputs}


def compare(pairs: list[tuple[Function, Function]], batch: Mapping[str, np.ndarray]) -> Comparison:
    """Compares functions of an exported model with the original ones.

    Args:
        pairs: of an original function and the exported one.
        batch: the inputs; the places that are padding are not compared.
    """
    real = np.array(batch["input_mask"], bool) if "input_mask" in batch else np.ones(batch["input_ids"].shape, bool)
    largest, error, same_best = {}, {}, None
    for original, exported in pairs:
        expected, found = original(**batch), exported(**batch)
        for name, values in expected.items():
            places = real if np.ndim(values) == 3 else slice(None)
            values, other = np.asarray(values)[places], np.asarray(found[name])[places]
            largest[name], error[name] = float(np.abs(values).max()), float(np.abs(values - other).max())
            if name == _LOGITS:
                same_best = float(np.mean(values.argmax(-1) == other.argmax(-1)))
    return Comparison(largest, error, same_best)


def sequences_per_second(functions: list[Function], batch: Mapping[str, np.ndarray]) -> list[float]:
    """Returns the speed of each function: its fastest call of 15. The functions take turns."""
    seconds = [[] for _ in functions]
    for _ in range(_WARM_UP + _TIMED):
        for function, times in zip(functions, seconds, strict=True):
            begin = time.perf_counter()
            for values in function(**batch).values():
                np.asarray(values)
            times.append(time.perf_counter() - begin)
    return [len(batch["input_ids"]) / min(times[_WARM_UP:]) for times in seconds]


def megabytes(folder: Path) -> float:
    """Returns the size of the files in a folder, in 1e6 bytes."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6
