"""Fits the constants of the software systems to the published rows, and estimates the errors of held-out rows.

The fit is Gauss-Newton on the logarithms of constants and figures. Residuals above 3 % enter linearly instead of
squared (Huber), so that a faulty row does not bend the rest. The rows of a system weigh as much as the root of their
number, so that the sweep does not dominate. A weak prior pulls every constant to its starting value. Systems on one
device share the constants of the device. A held-out error is that of a table under constants fitted to the others.
"""

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import numpy as np

from tftrain.bench.published.row import PublishedRow
from tftrain.host.units import GB
from tftrain.plan import memory, timing
from tftrain.plan.cluster import CARDS, CLUSTERS
from tftrain.plan.system import Constants

DEVICE = ("product_rate", "misaligned", "misaligned_batch", "memory_rate", "link_rate")
# Constants that another card multiplies: software reaches another share of its data sheet than of an A100's.
CARD = ("product_rate", "attention_rate", "memory_rate", "link_rate")
MEMORY = ("reserve_gb", "fragmentation", "state_slack")
# The constants that a system's rows determine; the others come from another system, see SHARES_WITH, or are defaults.
FITTED = {
    "megatron": ("network_rate", "launch_us", "wait_us", "step_ms"),
    # A tuned machine: its kernels and sums are fused or hidden behind products, so that memory_rate is above 1.
    "megatron_selene": ("product_rate", "memory_rate", "link_rate"),
    "megatron_deepspeed": ("network_rate", "transfer", *MEMORY),
    "megatron_deepspeed_tuned": ("transfer",),
    "foundry": ("product_rate", "attention_rate", "memory_rate", "link_rate", "network_rate", "step_ms"),
    "encoder": ("network_rate", "wait_us", "sum_ms", *MEMORY),
    "megatron_cpu": ("product_rate", "misaligned", "network_rate", "wait_us", "gradient_ns", *MEMORY),
}
# Systems of an A100 that the constants of other cards are derived for.
ON_CARDS = ("megatron", "encoder", "foundry")
SYSTEMS = (*FITTED, *(f"{system}_{card}" for card in CARDS for system in ON_CARDS))
SHARES_WITH = {"megatron_deepspeed_tuned": "megatron_deepspeed"}
SHARES_TIME_WITH = {"megatron_deepspeed": "megatron"}
# Starting values that differ from the defaults. Horovod negotiates every collective in cycles of milliseconds, and a
# micro-batch of TensorFlow begins in Python. A CPU reaches a smaller share of its peak and takes time around an update.
STARTS = {
    ("encoder", "wait_us"): 300.0,
    ("encoder", "sum_ms"): 30.0,
    ("megatron_cpu", "product_rate"): 0.25,
    ("megatron_cpu", "misaligned_batch"): 0.9,
    ("megatron_cpu", "gradient_ns"): 30.0,
    # No row of the sweep states memory: a context and the buffers of NCCL.
    ("megatron", "reserve_gb"): 2.0,
    ("megatron", "state_slack"): 0.0,
    ("megatron_selene", "reserve_gb"): 2.0,
    ("megatron_selene", "state_slack"): 0.0,
    ("foundry", "attention_rate"): 0.4,
    # FlashAttention-2 reaches 35% of an H100's peak (arXiv 2407.08608) and 50 to 73% of an A100's (arXiv 2307.08691).
    ("h100", "attention_rate"): 0.6,
    ("foundry", "network_rate"): 0.7,
    ("foundry", "launch_us"): 8.0,
    ("foundry", "reserve_gb"): 2.0,
    ("foundry", "fragmentation"): 0.0,
    ("foundry", "state_slack"): 0.0,
    # A micro-batch of the sweep adds the same time with two stages as with four: its transfers are hidden.
    ("megatron", "transfer"): 0.0,
}
NOT_COMPARABLE = {
    "local_fused": "model, batch and device are not stated",
    "gpt_zero_stage": "the source's columns look swapped, and its branches differed",
}
LINEAR_ABOVE = 0.03
PRIOR_WEIGHT = 0.005
AT_MOST_ONE = ("misaligned", "misaligned_batch", "product_rate", "network_rate")  # by what they mean
ROUNDS = 10
STEP = 1e-3

FOLDS = 5
SEED = 1

Key = tuple[str, str]  # the owner of a constant (a device or a system), and the name of the constant
Compare = Callable[[PublishedRow, Constants], float]  # compares a figure: `log_seconds` or `log_memory`


class Fit(NamedTuple):
    """Logarithms of constants, each row's logarithm of planned / published, and its derivatives by the constants."""

    keys: tuple[Key, ...]
    values: np.ndarray
    errors: np.ndarray
    slopes: np.ndarray


def owner(system: str, name: str) -> Key:
    """Returns the key of a system's value of a constant; ("", name) if it is the default."""
    if name in FITTED[system]:
        return system, name
    if name in DEVICE and system != "megatron_cpu":
        return "a100", name
    other = SHARES_WITH.get(system) or (None if name in MEMORY else SHARES_TIME_WITH.get(system))
    return owner(other, name) if other else ("", name)


def owners(system: str, name: str) -> list[Key]:
    """Returns the keys of a constant: that on an A100, and the factor of the system's card, if it has another one."""
    of_card = [(card, name) for card in CARDS if system.endswith(f"_{card}") and name in CARD]
    return [owner(_on_a100(system), name), *of_card]


def _on_a100(system: str) -> str:
    return next((system.removesuffix(f"_{card}") for card in CARDS if system.endswith(f"_{card}")), system)


def constants(system: str, values: dict[Key, float]) -> Constants:
    """Returns the constants of a system; `values` has the logarithms of fitted ones, the others are starting values."""
    on_a100, fields = _on_a100(system), {}
    for name in Constants.__dataclass_fields__:
        first, *factors = owners(system, name)
        fields[name] = math.exp(values[first]) if first in values else _start_of((on_a100, name))
        for factor in factors:
            fields[name] *= math.exp(values.get(factor, math.log(_start_of(factor))))
    return Constants(**fields)


def comparable(rows: Sequence[PublishedRow]) -> list[PublishedRow]:
    """Returns the rows that the calibration may use."""
    return [row for row in rows if row.table not in NOT_COMPARABLE and row.reference.ran]


def log_seconds(row: PublishedRow, chosen: Constants) -> float:
    """Returns log(planned seconds / published seconds)."""
    return math.log(timing.step(row.workload, CLUSTERS[row.cluster], chosen).total / row.reference_seconds)


def log_memory(row: PublishedRow, chosen: Constants) -> float:
    """Returns log(planned memory / published memory)."""
    return math.log(memory.estimate(row.workload, chosen).total / GB / row.reference.gb)


def fit(rows: Sequence[PublishedRow], error: Compare, names: Sequence[str]) -> Fit:
    """Fits the named constants, where they influence a figure, to the rows that have this figure.

    `error` compares the figure: it is `log_seconds` or `log_memory`.
    """
    all_keys = {key for system in {row.system for row in rows} for name in names for key in owners(system, name)}
    keys = tuple(sorted(key for key in all_keys if key[0]))
    start, ceiling = _start(keys), _ceiling(keys)
    values, errors = start, _errors(rows, error, keys, start)
    weights = row_weights(rows)
    for _ in range(ROUNDS):
        slopes = _slopes(rows, error, keys, values, errors)
        step, factor = _newton(errors, slopes, weights, values - start), 1.0
        before = _loss(errors, weights, values - start)
        while factor > 0.05:
            tried = np.minimum(values + factor * step, ceiling)
            new = _errors(rows, error, keys, tried)
            if _loss(new, weights, tried - start) < before:
                values, errors = tried, new
                break
            factor /= 2
        else:
            break
        if before - _loss(errors, weights, values - start) < 1e-5 * before:
            break
    return Fit(keys, values, errors, slopes)


def held_out_errors(
    rows: Sequence[PublishedRow], error: Compare, fitted: Fit, groups: Sequence[Hashable]
) -> np.ndarray:
    """Returns each row's error under constants fitted to the rows of other groups (tables or folds)."""
    start, ceiling, held_out = _start(fitted.keys), _ceiling(fitted.keys), np.array(fitted.errors)
    for group in dict.fromkeys(groups):
        left = np.array([of_row == group for of_row in groups])
        values, errors = fitted.values, fitted.errors
        weights = row_weights([row for row, out in zip(rows, left, strict=True) if not out])
        for _ in range(3):
            values = np.minimum(values + _newton(errors[~left], fitted.slopes[~left], weights, values - start), ceiling)
            errors = _errors(rows, error, fitted.keys, values)
        held_out[left] = errors[left]
    return held_out


def row_weights(rows: Sequence[PublishedRow]) -> np.ndarray:
    """Returns for each row 1 / sqrt(number of rows of its system)."""
    counts = Counter(row.system for row in rows)
    return np.array([counts[row.system] ** -0.5 for row in rows])


def _start(keys: Sequence[Key]) -> np.ndarray:
    return np.array([math.log(_start_of(key)) for key in keys])


def _ceiling(keys: Sequence[Key]) -> np.ndarray:
    """Returns the largest logarithm of each value."""
    return np.array([0.0 if key[1] in AT_MOST_ONE and key[0] not in CARDS else math.inf for key in keys])


def _start_of(key: Key) -> float:
    return STARTS.get(key, 1.0 if key[0] in CARDS else getattr(Constants(), key[1]))


def _errors(rows: Sequence[PublishedRow], error: Compare, keys: Sequence[Key], values: np.ndarray) -> np.ndarray:
    by_key = dict(zip(keys, values, strict=True))
    chosen = {system: constants(system, by_key) for system in {row.system for row in rows}}
    return np.array([error(row, chosen[row.system]) for row in rows])


def _slopes(
    rows: Sequence[PublishedRow], error: Compare, keys: Sequence[Key], values: np.ndarray, errors: np.ndarray
) -> np.ndarray:
    """Returns d error / d value, [rows, keys]; 0 where the row's system does not have the constant."""
    slopes = np.zeros((len(rows), len(keys)))
    for column, key in enumerate(keys):
        moved = values.copy()
        moved[column] += STEP
        touched = [index for index, row in enumerate(rows) if key in owners(row.system, key[1])]
        new = _errors([rows[index] for index in touched], error, keys, moved)
        slopes[touched, column] = (new - errors[touched]) / STEP
    return slopes


def _loss(errors: np.ndarray, weights: np.ndarray, moved: np.ndarray) -> float:
    size = np.abs(errors)
    huber = np.where(size < LINEAR_ABOVE, size**2 / (2 * LINEAR_ABOVE), size - LINEAR_ABOVE / 2)
    return float((weights * huber).sum() + PRIOR_WEIGHT * (moved**2).sum())


def _newton(errors: np.ndarray, slopes: np.ndarray, weights: np.ndarray, moved: np.ndarray) -> np.ndarray:
    scale = weights / np.maximum(np.abs(errors), LINEAR_ABOVE)
    curve = (slopes * scale[:, None]).T @ slopes + 2 * PRIOR_WEIGHT * np.eye(slopes.shape[1])
    return np.clip(-np.linalg.solve(curve, (slopes * scale[:, None]).T @ errors + 2 * PRIOR_WEIGHT * moved), -0.7, 0.7)


class Errors(NamedTuple):
    """Mean absolute percentage errors of a table's rows."""

    figure: str  # memory or time
    table: str  # "all" for all
    rows: int
    fitted: float  # with constants fitted to all rows
    table_left_out: float  # with constants fitted without the table
    row_left_out: float  # with constants fitted to four fifths of all rows, chosen at random, without the row


def calibrate(rows: Sequence[PublishedRow]) -> tuple[dict[str, Constants], list[Errors]]:
    """Returns all constants fitted to published rows, by system, and the errors by figure and table."""
    values: dict[Key, float] = {}
    errors = []
    timed = [row for row in comparable(rows) if row.reference_seconds]
    sized = [row for row in comparable(rows) if row.reference.gb]
    in_time = [name for name in Constants.__dataclass_fields__ if name not in MEMORY]
    for figure, error, names, chosen in (("time", log_seconds, in_time, timed), ("memory", log_memory, MEMORY, sized)):
        fitted = fit(chosen, error, names)
        values.update(zip(fitted.keys, fitted.values, strict=True))
        tables = [row.table for row in chosen]
        folds = list(np.random.default_rng(SEED).integers(FOLDS, size=len(chosen)))
        left_out = [held_out_errors(chosen, error, fitted, groups) for groups in (tables, folds)]
        every = [np.abs(np.expm1(found)) * 100 for found in (fitted.errors, *left_out)]
        for table in [*dict.fromkeys(tables), "all"]:
            of_table = np.array([table in (name, "all") for name in tables])
            means = [float(found[of_table].mean()) for found in every]
            errors.append(Errors(figure, table, int(of_table.sum()), *means))
    return {system: constants(system, values) for system in SYSTEMS}, errors


def to_json(systems: dict[str, Constants]) -> str:
    """Returns the text of `constants.json`, without defaults; four digits exceed the accuracy of the rows."""
    defaults = dataclasses.asdict(Constants())
    shown = {
        system: {
            name: float(f"{value:.4g}") for name, value in dataclasses.asdict(fields).items() if value != defaults[name]
        }
        for system, fields in systems.items()
    }
    return json.dumps(shown, indent=1) + "\n"
