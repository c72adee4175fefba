"""Part right of tools/gpu_check.py: every call of the references twice, and one program with every op repeatedly."""

import collections
import itertools
import sys
from collections.abc import Callable

import gpu_flash_references
import gpu_handlers
import gpu_references
import gpu_replays
import jax
import jax.numpy as jnp
import numpy as np
from gpu_handlers import TYPES

COLUMNS = ["op", "dtype", "calls", "right", "largest_error_over_tolerance", "first_problem"]


def check(make_page: Callable, seed: int):
    """Checks every op and returns the page.

    Args:
        make_page: of columns, see `Page` of tools/gpu_check.py.
        seed: of the inputs.
    """
    page = make_page(COLUMNS)
    page.device = f"{gpu_handlers.device()}, seed {seed}"

    found, late = collections.defaultdict(list), 0
    for call in itertools.chain(gpu_references.calls(TYPES, seed), gpu_flash_references.calls(TYPES, seed)):
        if page.is_late:
            late += 1
            continue
        problems, ratio = run(call)
        problems = [f"{call.what}: {each}" for each in problems]
        found[call.op, np.dtype(call.outputs[0][1]).name].append((problems, ratio))
        for problem in problems:
            print(f"WRONG {problem}", file=sys.stderr)
        page.rows = [row(*key, results) for key, results in found.items()]
        page.write()

    def replays():
        wrong = gpu_replays.check(gpu_handlers.fused, seed)
        problem = "WRONG: see stderr" if wrong else ""
        return ["one program", "float32", gpu_replays.CALLS, gpu_replays.CALLS - wrong, "", problem]

    page.fill([("one program with every op, again and again", replays)])
    if late:
        print(f"left out for lack of time: {late} calls", file=sys.stderr)
    return page


def row(op: str, dtype: str, results: list[tuple[list[str], float]]) -> list:
    """Returns the row of an op from the results of `run`."""
    wrong = [problems[0] for problems, _ in results if problems]
    ratio = max(ratio for _, ratio in results)
    return [op, dtype, len(results), len(results) - len(wrong), f"{ratio:.2f}", f"WRONG: {wrong[0]}" if wrong else ""]


def run(call: gpu_references.Call) -> tuple[list[str], float]:
    """Runs a call twice; returns its problems, and its largest error as a share of what is allowed.

    Atomic additions are in any order, so results of calls with the attribute `atomic` may differ by rounding.
    """
    outputs = [(value.shape, dtype) for value, dtype, _ in call.outputs]
    run = jax.jit(gpu_handlers.fused(call.op, outputs, call.attributes))
    inputs = [jnp.asarray(array) for array in call.inputs]
    first, second = (list(map(np.asarray, run(*inputs))) for _ in range(2))
    problems, worst = [], 0.0
    for i, (value, _, (relative, absolute)) in enumerate(call.outputs):
        finite, actual = np.isfinite(value), first[i].astype(np.float64)
        with np.errstate(invalid="ignore"):
            error = np.where(finite, np.abs(actual - value), np.where(actual == value, 0, np.inf))
        ratio = error / np.where(finite, absolute + relative * np.abs(value), 1)
        worst = max(worst, np.max(ratio, initial=0))
        if not np.all(ratio <= 1):
            at = np.unravel_index(np.argmax(ratio), error.shape)
            problems.append(f"output {i} at {at} is {first[i][at]}, expected {value[at]}")
        if first[i].tobytes() != second[i].tobytes() and not call.attributes.get("atomic"):
            problems.append(f"output {i} differs between two runs")
    if any(a.tobytes() != np.asarray(b).tobytes() for a, b in zip(call.inputs, inputs, strict=True)):
        problems.append("an input was overwritten")
    return problems, worst
