"""The memory of a rank by kind.

The bytes of the state are those of its variables. The bytes of gradients and their sums come from the planner's
formulas. The peak is measured. The rest of the peak is activations and temporaries, so the kinds add up to the peak.
"""

import ctypes
import itertools
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import psutil
import tensorflow as tf

from tftrain.host import devices
from tftrain.observe import rows
from tftrain.optim.state import OptimizerState
from tftrain.parallel import collectives
from tftrain.state.run_state import Run

STATE = ("weights", "master_weights", "moments")
TRANSIENT = ("gradients", "accumulation", "communication")
# Kinds that are reduced, in this order, if the kinds add up to more than the peak.
REDUCED_FIRST = ("communication", "gradients", "accumulation", "baseline")
KINDS = ("baseline", *STATE, "checkpoint_copy", *TRANSIENT, "activations")


class Measured(NamedTuple):
    """Bytes that this process holds: now, and at most so far."""

    now: int
    peak: int


def measure() -> Measured:
    """Returns what TensorFlow's allocator has handed out on a GPU, else the resident set of the whole process."""
    peak = round(devices.peak_memory_gb() * 1e9)
    if devices.has_gpu():
        return Measured(tf.config.experimental.get_memory_info("GPU:0")["current"], peak)
    now = psutil.Process().memory_info().rss
    return Measured(now, max(now, peak))  # The system brings the peak up to date a little later.


def allocated() -> int:
    """Returns the bytes that TensorFlow's allocator has handed out now.

    A CPU's allocator keeps what tensors free, so that the resident set of the process stays at its peak. On a CPU,
    TensorFlow counts only where oneDNN multiplies, which needs AVX-512. Elsewhere tensors are in the heap of the C
    library, and this is what is in use of it; or the resident set, where that library is older than glibc 2.33.
    """
    try:
        return tf.config.experimental.get_memory_info("GPU:0" if devices.has_gpu() else "CPU:0")["current"]
    except ValueError:
        heap = getattr(ctypes.CDLL(None), "mallinfo2", None)
        if heap is None:
            return measure().now
        heap.restype = _Heap
        sizes = heap().sizes
        return sizes[7] + sizes[4]


def outside_allocator() -> int:
    """Returns the bytes that this process holds now beside those of `allocated`."""
    return measure().now - allocated()


class _Heap(ctypes.Structure):
    """What glibc's `mallinfo2` returns: number 7 is the bytes in use in arenas, 4 those in mappings of their own."""

    _fields_ = (("sizes", 10 * ctypes.c_size_t),)


def state_bytes(weights: Iterable[tf.Variable], state: OptimizerState) -> dict[str, int]:
    """Returns the bytes of this rank's state by kind, `STATE`; a weight that is its own master counts as a weight."""
    sizes, seen = {}, set()
    slots = (slot for slot in itertools.chain(*state.slots.values()) if slot is not None)
    for kind, held in zip(STATE, (weights, state.masters, slots), strict=True):
        new = {id(variable): variable for variable in held if id(variable) not in seen}
        sizes[kind] = sum(variable.dtype.size * variable.shape.num_elements() for variable in new.values())
        seen |= new.keys()
    return sizes


def breakdown(baseline: int, peak: int, lasting: Mapping[str, int], transient: Mapping[str, int]) -> dict[str, int]:
    """Returns bytes of each of `KINDS`, whose sum is `peak`; `activations` (and temporaries) are the rest.

    If the rest is negative, the transient kinds did not exist at the same time, or used memory that was free before the
    model was built. Then the transient kinds are reduced until the sum is `peak`, and the baseline last.

    Args:
        baseline: bytes held before the model was built: interpreter, TensorFlow and libraries.
        peak: most bytes held so far.
        lasting: bytes of `STATE`, and of its copy for checkpoints.
        transient: bytes of `TRANSIENT`, which every step allocates and frees.
    """
    sizes = {"baseline": baseline, **dict.fromkeys((*STATE, "checkpoint_copy"), 0), **lasting, **transient}
    left = peak - sum(sizes.values())
    for kind in REDUCED_FIRST:
        excess = min(max(-left, 0), sizes[kind])
        sizes[kind] -= excess
        left += excess
    return {kind: sizes.get(kind, left) for kind in KINDS}


def report(run: Run, step: int, baseline: int, copy_bytes: int, planned: Mapping[str, int]) -> rows.MemoryRow:
    """Returns the memory of the rank with the highest peak, the same on all; every rank must call it.

    Args:
        run: its ranks, model and optimizer.
        step: updates so far.
        baseline: bytes that this process held before the model was built.
        copy_bytes: host memory for a copy of the state for checkpoints.
        planned: bytes of each of `KINDS`, of which those in `TRANSIENT` count.
    """
    lasting = state_bytes(_weights(run), run.optimizer.state)
    if not devices.has_gpu():  # A device's memory holds no copy.
        lasting["checkpoint_copy"] = copy_bytes
    kinds = breakdown(baseline, measure().peak, lasting, {kind: planned[kind] for kind in TRANSIENT})
    mine = tf.constant([[kinds[kind] for kind in KINDS]], tf.float64)
    every = collectives.all_gather_rows(run.mesh.world, mine, "memory_by_kind").numpy()
    rank = int(np.argmax(every.sum(axis=1)))
    return rows.MemoryRow(step, rank, rows.bytes_of("memory", dict(zip(KINDS, map(int, every[rank]), strict=True))))


def table(row: rows.MemoryRow, planned: rows.PlannedRow, ranks: int) -> str:
    """Returns the fullest rank's memory by kind beside the plan, in GB of 1e9 bytes."""
    lines = [f"{f'memory of rank {row.memory_rank}, the fullest of {ranks}':32}{'GB':>10}{'planned':>10}"]
    for kind in (*KINDS, "peak"):
        words = {"activations": "activations, temporaries"}.get(kind, kind.replace("_", " "))
        measured, expected = row.kinds[f"memory_{kind}_bytes"], planned.kinds[f"planned_{kind}_bytes"]
        lines.append(f"  {words:30}{measured / 1e9:10.3f}{expected / 1e9:10.3f}")
    return "\n".join(lines)


def state_line(run: Run) -> str:
    """Returns a line with the bytes that the state takes on each rank; every rank must call it.

    If master weights and moments are sharded, a second line gives their bytes on each rank, and an even share of them.
    """
    model = run.task.model
    state = state_bytes(_weights(run), run.optimizer.state)
    world, data_ranks = run.mesh.world, run.mesh.split.size
    lines = [f"state bytes per rank: {_range(collectives.gather_numbers(world, sum(state.values()), 'state_bytes'))}"]
    if run.optimizer.state.split:
        mine = collectives.gather_numbers(world, state["master_weights"] + state["moments"], "split_state_bytes")
        elements = sum(variable.shape.num_elements() for variable in model.named_variables().values())
        even = collectives.gather_numbers(world, 3 * 4 * elements / data_ranks, "even_state_bytes")
        more = f"at most {100 * (np.max(mine / even) - 1):+.1f}% from its total / {data_ranks} ranks"
        lines.append(f"sharded state bytes per rank: {_range(mine)}, {more}")
    return "\n".join(lines)


def _weights(run: Run) -> list[tf.Variable]:
    """Returns the variables of the model that have their values from step to step."""
    return [] if run.shards_weights else list(run.task.model.held_variables().values())


def _range(every: np.ndarray) -> str:
    """Returns the value if it is equal on all ranks, else the smallest and the largest with their ranks."""
    every = every.astype(int)
    if (every == every[0]).all():
        return str(every[0])
    return f"{every.min()} (rank {every.argmin()}) to {every.max()} (rank {every.argmax()})"
