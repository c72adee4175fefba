"""Reads the results of two runs and compares them: logged rows, and tensors of a checkpoint.

It reads files as docs/checkpoint_format.md describes them, and uses none of the compared code.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

# Columns by kind: what must be the same, what rounding may change, and shares of right predictions, where
# rounding may change which token is the most probable.
EXACT = {
    "train": (
        "learning_rate",
        "loss_scale",
        "skipped_steps",
        "nan_steps",
        "global_batch_size",
        "consumed_samples",
        "consumed_tokens",
    ),
    "eval": ("eval_unigram_nats",),
}
ROUNDED = {"train": ("loss", "mlm_loss", "nsp_loss", "lm_loss", "grad_norm"), "eval": ("eval_mlm_loss", "eval_lm_loss")}
COUNTED = {
    "train": ("mlm_accuracy", "lm_accuracy"),
    "eval": ("eval_mlm_accuracy", "eval_nsp_accuracy", "eval_lm_accuracy"),
}
OF_FAMILY = re.compile("(eval_)?(mlm|nsp|lm)_")  # the other family has none of them

# How much further than a loss a tensor may be off: Adam divides small gradients by small roots. Between layouts, and
# between implementations, rounding has set losses 2e-7 and tensors 5e-6 apart after 20 steps.
TENSOR_FACTOR = 20
# The gradient of this bias is rounding and nothing else, since it cancels in the softmax; Adam makes steps of it.
ROUNDING_ALONE = re.compile(r"attention/key/bias")

VERDICTS = ("identical", "rounding", "DIFFERENT")

Rows = Mapping[tuple[str, int], Mapping[str, Any]]
Tensors = Mapping[str, np.ndarray]


def read_rows(folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """Returns the rows of metrics.jsonl that are compared, by kind and step."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kinds = (("train", "loss"), ("eval", "eval_mlm_loss"), ("eval", "eval_lm_loss"))
    return {(kind, row["step"]): row for row in rows for kind, field in kinds if field in row}


def read_tensors(folder: Path) -> dict[str, np.ndarray]:
    """Returns the whole tensors of a checkpoint by their global names, whatever layout has written it.

    Raises:
        ValueError: the shards do not hold each element once.
    """
    manifest = json.loads((folder / "manifest.json").read_text())
    shapes = {name: tensor["shape"] for name, tensor in manifest["tensors"].items()}
    blocks: dict[str, dict[tuple, np.ndarray]] = {name: {} for name in shapes}
    held = dict.fromkeys(shapes, 0)
    stored = {name: load_file(folder / name) for name in manifest["files"]}
    for tensor, file, piece, start, stop in _pieces(manifest):
        values, whole = stored[file][tensor].reshape(-1), shapes[tensor]
        offset, shape = piece.get("offset", [0] * len(whole)), piece.get("shape", whole)
        stop = math.prod(shape) if stop is None else stop
        key = (tuple(offset), tuple(shape))
        blocks[tensor].setdefault(key, np.zeros(math.prod(shape), values.dtype))[start:stop] = values
        held[tensor] += values.size
    tensors = {}
    for name, whole in shapes.items():
        if held[name] != math.prod(whole):
            raise ValueError(f"{folder}: {name} has {held[name]} elements, expected {math.prod(whole)}")
        tensors[name] = np.zeros(whole, next(iter(blocks[name].values())).dtype)
        for (offset, shape), values in blocks[name].items():
            slices = tuple(slice(first, first + size) for first, size in zip(offset, shape, strict=True))
            tensors[name][slices] = values.reshape(shape)
    return tensors


def _pieces(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any], int, int]]:
    """Yields the pieces in a manifest: tensor, file, block, start and stop."""
    names = sorted(manifest["files"])
    for tensor, entry in manifest["tensors"].items():
        for block in entry["blocks"]:
            for file, start, stop, *series in block["pieces"]:
                count, file_step, step = series or (1, 0, 0)
                for number in range(count):
                    yield tensor, names[file + number * file_step], block, start + number * step, stop + number * step


@dataclass
class Comparison:
    """What differs between two results.

    Attributes:
        loss: the largest relative difference of a loss or gradient norm.
        tensor: the largest relative difference of a tensor, without those of ROUNDING_ALONE.
        differing: tensors that are not the same bit for bit.
        tensors: all of them.
        rows_differ: whether any number of a row does.
        unequal: what must be the same and is not; one line each.
        notes: what rounding can explain, one line each, the first difference and the largest.
    """

    loss: float = 0.0
    tensor: float = 0.0
    differing: int = 0
    tensors: int = 0
    rows_differ: bool = False
    unequal: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def verdict(self, limit: float) -> str:
        """Returns identical, rounding, or DIFFERENT; `limit`: the largest relative difference of a loss by rounding."""
        if not (self.unequal or self.rows_differ or self.differing):
            return "identical"
        is_close = self.loss <= limit and self.tensor <= limit * TENSOR_FACTOR
        return "rounding" if limit and is_close and not self.unequal else "DIFFERENT"


def compare(base: tuple[Rows, Tensors], here: tuple[Rows, Tensors], after: int = 0) -> Comparison:
    """Compares the rows of steps later than `after`, and all tensors."""
    result = Comparison(tensors=len(base[1]))
    _compare_rows(*({key: row for key, row in rows.items() if key[1] > after} for rows in (base[0], here[0])), result)
    _compare_tensors(base[1], here[1], result)
    return result


def _compare_rows(base: Rows, here: Rows, result: Comparison) -> None:
    for kind, step in sorted(set(base) ^ set(here), key=lambda key: key[1]):
        result.unequal.append(f"step {step}: a row of {kind} is in one of the results alone")
    for kind, step in sorted(set(base) & set(here), key=lambda key: key[1]):
        for name in (*EXACT[kind], *ROUNDED[kind], *COUNTED[kind]):
            values = [row[kind, step].get(name, "missing") for row in (base, here)]
            if values[0] == values[1] and (values[0] != "missing" or OF_FAMILY.match(name)):
                continue
            result.rows_differ = True
            line = f"step {step}: {name} is {values[1]}, in the base {values[0]}"
            if name in EXACT[kind] or "missing" in values:
                result.unequal.append(line)
            elif not result.notes:
                result.notes.append(line)
            if name in ROUNDED[kind]:
                numbers = [math.nan if value in (None, "missing") else value for value in values]
                result.loss = max(result.loss, relative(*map(np.float64, numbers)))


def _compare_tensors(base: Tensors, here: Tensors, result: Comparison) -> None:
    for name in sorted(set(base) ^ set(here)):
        result.unequal.append(f"tensor {name} is in one of the checkpoints alone")
    largest = ""
    for name in sorted(set(base) & set(here)):
        one, other = base[name], here[name]
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            result.unequal.append(f"tensor {name}: {other.dtype}{other.shape}, in the base {one.dtype}{one.shape}")
        elif one.tobytes() != other.tobytes():
            result.differing += 1
            by = relative(one, other)
            if not ROUNDING_ALONE.search(name) and (by > result.tensor or not largest):
                result.tensor, largest = by, name
    if largest:
        result.notes.append(f"the largest difference of a tensor is that of {largest}, {result.tensor:.1e}")


def relative(one: np.ndarray, other: np.ndarray) -> float:
    """Returns the largest difference of an element over the largest element; infinity where one is no number."""
    one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
    scale = max(np.abs(one).max(), np.abs(other).max())
    difference = np.abs(one - other).max() / scale if scale else 0.0
    return float(difference) if np.isfinite(difference) else math.inf
