"""Where a rank's memory goes, by kind, beside what the configuration leads one to expect.

What the state takes is known from its variables, and what gradients and their sums take from the weights' shapes. The
peak is measured. What is left of it belongs to the activations and to temporaries, so the kinds add up to the peak.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tftrain.config import TrainConfig
from tftrain.optim.state import OptimizerState
from tftrain.parallel import collectives
from tftrain.parallel.mesh import Mesh
from tftrain.plan import parameters
from tftrain.train import devices
from tftrain.train.metrics import MemoryRow
from tftrain.train.precision import ITEM_BYTES
from tftrain.train.session import Run

STATE = ("weights", "master_weights", "moments")
PASSING = ("gradients", "accumulation", "communication")
# In this order, where not all of it can have been there at once.
GIVEN_UP = ("communication", "gradients", "accumulation", "baseline")
KINDS = ("baseline", *STATE, *PASSING, "activations")


class Measured(NamedTuple):
    """Bytes that this process holds: now, and at most so far."""

    now: int
    peak: int


def measure() -> Measured:
    """Returns what TensorFlow's allocator has handed out on a GPU, else the resident set of the whole process."""
    peak = round(devices.peak_memory_gb() * 1e9)
    if devices.has_gpu():
        return Measured(tf.config.experimental.get_memory_info("GPU:0")["current"], peak)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    now = pages * os.sysconf("SC_PAGE_SIZE")
    return Measured(now, max(now, peak))  # The system brings the peak up to date a little later.


def bytes_by_kind(held: Iterable[tuple[str, Iterable[tf.Variable] | int]]) -> dict[str, int]:
    """Adds up what is held for what.

    Args:
        held: pairs of a kind and its variables, or its bytes; a kind may occur several times. A variable that occurs
            several times counts for the first kind only.

    Returns:
        Bytes of every kind that occurs.
    """
    found: dict[str, int] = {}
    seen = set()
    for kind, what in held:
        found.setdefault(kind, 0)
        if isinstance(what, int):
            found[kind] += what
            continue
        for variable in what:
            if id(variable) not in seen:
                found[kind] += variable.dtype.size * variable.shape.num_elements()
            seen.add(id(variable))
    return found


def state_bytes(weights: Iterable[tf.Variable], state: OptimizerState) -> dict[str, int]:
    """Returns the bytes of this rank's state by kind, `STATE`; a weight that is its own master counts as a weight."""
    return bytes_by_kind([("weights", weights), ("master_weights", state.masters), ("moments", [*state.m, *state.v])])


def passing_bytes(config: TrainConfig, elements: int, data_ranks: int) -> dict[str, int]:
    """Returns the bytes of what comes and goes with every step, `PASSING`, by its formula.

    Args:
        config: resolved.
        elements: weights of this rank, n.
        data_ranks: that share the global batch.

    Returns:
        gradients: one of each weight in the compute dtype. accumulation: the sums over micro-batches, n in
        grad_accum_dtype, divided among the ranks by split_grad_accum; none with one micro-batch. communication: the
        sums over ranks, n in the wire's dtype; none on one rank.
    """
    batch, split = config.batch, data_ranks if config.parallel.split_grad_accum else 1
    micro_batches = batch.grad_accum_steps > 1
    wire = "fp16" if config.compute.hvd_fp16_compression else "fp32"
    return {
        "gradients": elements * ITEM_BYTES[config.compute.precision],
        "accumulation": elements * ITEM_BYTES[batch.grad_accum_dtype] // split if micro_batches else 0,
        "communication": elements * ITEM_BYTES[wire] if data_ranks > 1 else 0,
    }


def breakdown(baseline: int, peak: int, state: dict[str, int], passing: dict[str, int]) -> dict[str, int]:
    """Divides a peak among the kinds.

    Args:
        baseline: bytes held before the model was built: interpreter, TensorFlow and libraries.
        peak: most bytes held so far.
        state, passing: from `state_bytes` and `passing_bytes`.

    Returns:
        Bytes of each of `KINDS`, whose sum is `peak`: `activations` (and temporaries) are what is left. Where less than
        nothing would be, the passing kinds were not there at once, or lay in memory that was held and free before the
        model was built: the missing bytes are taken from them, and last from the baseline.
    """
    found = {"baseline": baseline, **{kind: state.get(kind, 0) for kind in STATE}, **passing}
    left = peak - sum(found.values())
    for kind in GIVEN_UP:
        given_up = min(max(-left, 0), found[kind])
        found[kind] -= given_up
        left += given_up
    return {kind: found.get(kind, left) for kind in KINDS}


def expected_bytes(config: TrainConfig, data_ranks: int) -> dict[str, int | None]:
    """Returns what a configuration leads one to expect of each kind, in bytes; None where nobody knows.

    Args:
        config: resolved, with the sizes that the data gives.
        data_ranks: that share the global batch and perhaps the state.
    """
    if config.parallel.tensor_parallel_size > 1:
        return dict.fromkeys(KINDS)
    count = parameters.count(config.model, config.model.vocab_size).total
    precision, split = config.compute.precision, config.parallel.splits_state and data_ranks > 1
    share = -(-count // data_ranks) if split else count
    state = {
        "weights": count * ITEM_BYTES[precision],
        "master_weights": 4 * share if split or precision != "fp32" else 0,
        "moments": 8 * share,
    }
    if split and config.parallel.state_split_strategy != "even":
        state |= {"master_weights": None, "moments": None}
    return {**dict.fromkeys(KINDS), **state, **passing_bytes(config, count, data_ranks)}


def report(run: Run, step: int, baseline: int) -> tuple[MemoryRow, str]:
    """Returns the memory of the rank with the highest peak, as a row and as a table; every rank must call it.

    Args:
        run: its configuration, ranks, model and optimizer.
        step: updates so far.
        baseline: bytes that this process held before the model was built.
    """
    weights, mesh = list(run.model.named_variables().values()), run.mesh
    elements = sum(variable.shape.num_elements() for variable in weights)
    state, passing = state_bytes(weights, run.optimizer.state), passing_bytes(run.config, elements, mesh.data.size)
    row = fullest(mesh, step, breakdown(baseline, measure().peak, state, passing))
    return row, table(row, expected_bytes(run.config, mesh.data.size), mesh.size)


def fullest(mesh: Mesh, step: int, kinds: dict[str, int]) -> MemoryRow:
    """Returns the memory of the rank with the highest peak, the same on all; every rank must call it.

    Args:
        mesh: the ranks.
        step: updates so far.
        kinds: this rank's bytes, from `breakdown`.
    """
    mine = tf.constant([[kinds[kind] for kind in KINDS]], tf.float64)
    every = collectives.all_gather_rows(mesh.world, mine, "memory_by_kind").numpy()
    rank = int(np.argmax(every.sum(axis=1)))
    values = {f"memory_{kind}_bytes": int(value) for kind, value in zip(KINDS, every[rank], strict=True)}
    return MemoryRow(step, memory_rank=rank, memory_peak_bytes=sum(values.values()), **values)


def table(row: MemoryRow, expected: dict[str, int | None], ranks: int) -> str:
    """Returns the fullest rank's memory by kind beside what was expected, in GB of 1e9 bytes."""
    lines = [f"{f'memory of rank {row.memory_rank}, the fullest of {ranks}':32}{'GB':>10}{'expected':>10}"]
    for kind in (*KINDS, "peak"):
        foreseen = expected.get(kind)
        words = {"activations": "activations, temporaries"}.get(kind, kind.replace("_", " "))
        shown = "-" if foreseen is None else f"{foreseen / 1e9:.3f}"
        lines.append(f"  {words:30}{getattr(row, f'memory_{kind}_bytes') / 1e9:10.3f}{shown:>10}")
    return "\n".join(lines)


def state_line(run: Run) -> str:
    """Returns how many bytes the state takes on each rank; every rank must call it.

    A second line says it of master weights and moments, where they are split, beside an even share of all of them.
    """
    weights = list(run.model.named_variables().values())
    state, world, data_ranks = state_bytes(weights, run.optimizer.state), run.mesh.world, run.mesh.data.size
    lines = [f"state bytes per rank: {_range(collectives.gather_numbers(world, sum(state.values()), 'state_bytes'))}"]
    if run.optimizer.state.split:
        mine = collectives.gather_numbers(world, state["master_weights"] + state["moments"], "split_state_bytes")
        elements = sum(variable.shape.num_elements() for variable in weights)
        even = collectives.gather_numbers(world, 3 * 4 * elements / data_ranks, "even_state_bytes")
        more = 100 * (np.max(mine / even) - 1)
        lines.append(
            f"split state bytes per rank: {_range(mine)}, at most {more:+.1f}% from its total / {data_ranks} ranks"
        )
    return "\n".join(lines)


def _range(every: np.ndarray) -> str:
    """Returns the one value of all ranks, or the least and the most and whose they are."""
    every = every.astype(int)
    if (every == every[0]).all():
        return str(every[0])
    return f"{every.min()} (rank {every.argmin()}) to {every.max()} (rank {every.argmax()})"
