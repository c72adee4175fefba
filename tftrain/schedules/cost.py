"""Time and memory of a schedule for the planner, which asks for thousands of them.

The computations of a schedule repeat with a period of as many micro-batches as there are stages. So the time of many
micro-batches follows from the times of two small numbers of them: exactly for equal stages, and within 2 % for unequal
ones. Sends and receives are not simulated one by one: a tensor arrives the time `transfer` after it was made. That
gives the same times as `simulation` unless a transfer takes longer than a computation.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

from tftrain.schedules.orders import order
from tftrain.schedules.simulation import Durations
from tftrain.schedules.table import ActionKind, Peak, peak_activations

KINDS = (ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_INPUTS, ActionKind.BACKWARD_WEIGHTS)

# A computation: its stage, the place of its duration, and the number of the one that makes its input, or -1.
Computation = tuple[int, int, int]


class PipelineTime(NamedTuple):
    """The time of an update, and the part of it that is for transfers in the longest chain of actions."""

    total: float
    transfers: float


def step_time(schedule: str, stages: int, micro_batches: int, chunks: int, durations: Durations) -> PipelineTime:
    """Returns the time of an update by a schedule that can run these sizes; for these, see `orders.table`."""
    flat = [seconds for kind in KINDS for stage in durations.of(kind) for seconds in stage]
    small = _small(stages, micro_batches)
    times = [_time(_computations(schedule, stages, count, chunks), stages, flat, durations.transfer) for count in small]
    return PipelineTime(*(_extended(values, small, micro_batches) for values in zip(*times, strict=True)))


def peak(schedule: str, stage: int, stages: int, micro_batches: int, chunks: int) -> Peak:
    """Returns the most activations that a stage holds at a time; for the arguments, see `step_time`."""
    small = _small(stages, micro_batches)
    totals, of_chunks = zip(*(_peak(schedule, stage, stages, count, chunks) for count in small), strict=True)
    each_chunk = (_extended(values, small, micro_batches) for values in zip(*of_chunks, strict=True))
    return Peak(_extended(totals, small, micro_batches), tuple(each_chunk))


def _small(stages: int, micro_batches: int) -> list[int]:
    """Returns the numbers of micro-batches to simulate: the number itself, or two a period apart."""
    least = 2 * stages + micro_batches % stages
    return [micro_batches] if micro_batches <= least + stages else [least, least + stages]


def _extended(values: Sequence[float], counts: Sequence[int], micro_batches: int) -> float:
    """Returns the value for `micro_batches` on the line through the values for the last two counts."""
    if len(counts) == 1:
        return values[0]
    periods = (micro_batches - counts[1]) // (counts[1] - counts[0])
    return values[1] + periods * (values[1] - values[0])


@functools.lru_cache(maxsize=1 << 12)
def _peak(schedule: str, stage: int, stages: int, micro_batches: int, chunks: int) -> Peak:
    return peak_activations(order(schedule, stage, stages, micro_batches, chunks), chunks)


@functools.lru_cache(maxsize=256)
def _computations(schedule: str, stages: int, micro_batches: int, chunks: int) -> list[Computation]:
    """Returns the computations of all stages, each after the one that makes its input.

    A micro-batch passes all parts forward and then all parts backward. The slot of a computation is its place on this
    way, times the number of micro-batches, plus the micro-batch: its input is made `micro_batches` slots before.
    """
    orders = [order(schedule, stage, stages, micro_batches, chunks) for stage in range(stages)]
    forward, _, backward_inputs, backward_weights = KINDS
    parts = stages * chunks
    computed_by, waiting = [-1] * (2 * parts * micro_batches), [-1] * (2 * parts * micro_batches)
    places, ready, computations = [0] * stages, list(reversed(range(stages))), []
    while ready:
        stage = ready.pop()
        actions = orders[stage]
        for index in range(places[stage], len(actions)):
            kind, micro_batch, chunk, *_ = actions[index]
            duration, source = stage * chunks + chunk, -1
            if kind is backward_weights:
                duration += 3 * parts
            else:
                part = chunk * stages + stage
                if kind is forward:
                    way = part
                else:
                    way = 2 * parts - 1 - part
                    duration += 2 * parts if kind is backward_inputs else parts
                slot = way * micro_batches + micro_batch
                if way not in (0, parts):  # The last part has the output of its own forward pass.
                    source = computed_by[slot - micro_batches]
                    if source < 0:
                        waiting[slot - micro_batches] = stage
                        break
                computed_by[slot] = len(computations)
                if waiting[slot] >= 0:
                    ready.append(waiting[slot])
            computations.append((stage, duration, source))
            places[stage] = index + 1
    return computations


def _time(computations: list[Computation], stages: int, durations: list[float], transfer: float) -> PipelineTime:
    """Returns when the last computation ends."""
    free, ends = [0.0] * stages, []
    # Transfers in the chain of actions that ends last on a stage, or with a computation.
    last_hops, hops = [0] * stages, []
    for stage, duration, source in computations:
        start, count = free[stage], last_hops[stage]
        if source >= 0 and ends[source] + transfer > start:
            start, count = ends[source] + transfer, hops[source] + 1
        free[stage] = end = start + durations[duration]
        last_hops[stage] = count
        ends.append(end)
        hops.append(count)
    total = max(free)
    return PipelineTime(total, last_hops[free.index(total)] * transfer)
