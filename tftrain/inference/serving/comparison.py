"""An exported model beside the model that it was made of: largest differences, equal predictions, size and speed."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tftrain.inference.trained_model import Sample, padded

Function = Callable[..., Mapping[str, np.ndarray]]

# Differences are larger in long sequences; speed is measured on short ones, which take less time.
_SEQUENCES, _LENGTH, _TIMED_LENGTH = 8, 512, 128
_WARM_UP, _TIMED = 2, 15
# Their best class is compared too.
_LOGITS = "logits"


class Comparison(NamedTuple):
    """What was measured.

    Attributes:
        largest: of each output, the largest magnitude in the original.
        error: of each output, the largest difference.
        same_best: share of the places with the same most probable token; None without logits.
    """

    largest: dict[str, float]
    error: dict[str, float]
    same_best: float | None


def of_text(text: str, encode: Callable[[Sequence[str]], Sequence[Sample]], longest: float) -> list[np.ndarray]:
    """Returns up to 8 sequences of the tokens of a text, one after the other, at most 512 tokens each.

    Args:
        text: to read from its beginning.
        encode: turns texts into samples.
        longest: most tokens that the model reads.
    """
    length, words, found = int(min(longest, _LENGTH)), text.split(), []
    while words and len(found) < _SEQUENCES:
        # A token has at least one character, and hardly ever more than three words fit into one.
        (sample,) = encode([" ".join(words[: 3 * length])])
        found.append(sample.ids[:length])
        words = words[max(1, round(len(words[: 3 * length]) * length / (len(sample.ids) + sample.cut))) :]
    return found


def random(tokens: int, longest: float) -> list[np.ndarray]:
    """Returns 8 sequences of random tokens, for a model without a tokenizer, at most 512 tokens each."""
    length = int(min(longest, _LENGTH))
    return list(np.random.default_rng(1).integers(0, tokens, (_SEQUENCES, length), np.int32))


def batch_of(sequences: Sequence[np.ndarray], inputs: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns the named inputs for sequences of which each is shorter than the one before it, int32 [n, S].

    The last row has a quarter of its tokens, so that padding is compared too.
    """
    shares = np.linspace(1, 0.25, len(sequences))
    ids, lengths = padded(
        [each[: max(1, int(share * len(each)))] for each, share in zip(sequences, shares, strict=True)]
    )
    mask = (np.arange(ids.shape[1]) < lengths[:, np.newaxis]).astype(np.int32)
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
    """Returns the speed of each function on up to 128 tokens: its fastest call of 15. The functions take turns."""
    batch = {name: values[:, :_TIMED_LENGTH] for name, values in batch.items()}
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
