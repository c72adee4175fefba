"""A search over the divisions of a workload among devices, ranked by time."""

import bisect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tftrain.config.attention_core import takes_heads
from tftrain.config.parallel import divisors, schedule_problems
from tftrain.plan import memory, timing
from tftrain.plan.cluster import Cluster
from tftrain.plan.forecast import Forecast
from tftrain.plan.system import Constants
from tftrain.plan.workload import Workload, zero_stages

MAX_MICRO_BATCH = 64
FUSED_SOFTMAX_UNIT = 4  # Megatron's kernel needs a multiple of 4 of a rank's heads times the micro-batch
CHECKPOINTING = ("none", "selective", "full")
# Pairs of pipeline_schedule and virtual_pipeline_size. gpipe is as fast as 1f1b and needs more memory.
SCHEDULES = (("1f1b", 1), ("zero_bubble", 1), ("interleaved", 2))


class SearchSpace(NamedTuple):
    """The divisions that a search looks at."""

    work: Workload  # model, global batch, and the number format of accumulation; its own division is ignored
    cluster: Cluster
    max_nodes: int
    ramp: tuple[int, ...] = ()  # smaller global batches that must divide too, see `batch_rampup`
    fixed: Mapping[str, Any] = {}  # what every division has, by its name in a workload
    # Values of pipeline_schedule and virtual_pipeline_size to try under a pipeline; empty: those of the workload.
    schedules: tuple[tuple[str, int], ...] = ()
    sequence_parallel: tuple[bool, ...] | None = None  # values to try; None: true wherever ranks divide the sequence

    def allows(self, **values: Any) -> bool:
        """Whether each of these values of a division is free, or the fixed one."""
        return all(self.fixed.get(name, value) == value for name, value in values.items())


class SearchResult(NamedTuple):
    """The result of a search."""

    candidates: int  # number of divisions that meet the constraints
    fitting: int  # number of those that fit
    fastest: list[Forecast]  # those that fit, the fastest first


def search(
    space: SearchSpace,
    constants: Constants,
    top: int,
    margin: float = 0.0,
    accepts: Callable[[Workload], bool] = lambda work: True,
) -> SearchResult:
    """Returns the `top` divisions of a workload, ranked by seconds per update, equal ones by memory.

    The share `margin` of a device's memory must stay free. `accepts` says whether the trainer takes a division; only
    the fastest divisions are asked.
    """
    cluster, count, fitting = space.cluster, 0, []
    for candidate in candidates(space):
        count += 1
        needed = memory.estimate(candidate, constants)
        if needed.fits(cluster, margin):
            least = timing.step(candidate, cluster, constants, idles=False).total
            fitting.append((least, candidate, needed))
    fastest: list[Forecast] = []
    for least, candidate, needed in sorted(fitting, key=lambda each: (each[0], each[2].total, -each[1].zero_stage)):
        # The table of a schedule takes long: those that are too slow without any idle time need none.
        if len(fastest) >= top and least >= fastest[top - 1].seconds:
            break
        if not accepts(candidate):
            continue
        seconds = timing.step(candidate, cluster, constants)
        plan = Forecast(candidate, cluster, constants, needed.on(cluster), seconds, margin)
        bisect.insort(fastest, plan, key=lambda plan: (plan.seconds, plan.gb, -plan.work.zero_stage))
    return SearchResult(count, len(fitting), fastest[:top])


def least_memory(
    space: SearchSpace, constants: Constants, accepts: Callable[[Workload], bool]
) -> tuple[float, Workload] | None:
    """Returns the bytes and the division with the least memory; None if no division is accepted. See `search`."""
    every = [(memory.estimate(candidate, constants).minimum, candidate) for candidate in candidates(space)]
    return next((pair for pair in sorted(every, key=lambda pair: pair[0]) if accepts(pair[1])), None)


def candidates(space: SearchSpace) -> Iterator[Workload]:
    """Yields the layouts that fill their nodes.

    Tensor parallel ranks share a node and partition attention heads, feed-forward layer and vocabulary. Pipeline stages
    have equal numbers of layers and of model chunks. Every batch divides into micro-batches on all data parallel ranks,
    and the pipeline's schedule can run them. A decoder's fused softmax needs a multiple of four heads. greedy:K needs
    at least K data parallel ranks.
    """
    work, cluster, max_nodes = space[:3]
    batches, model = (work.global_batch, *space.ramp), work.model
    owners = int(work.split_strategy.partition(":")[2] or 1)
    for tp in divisors(cluster.per_node):
        if model.block.attention.key_value_heads % tp or model.inner % tp or not space.allows(tp=tp):
            continue
        for pp in divisors(model.layers // work.chunks) if model.layers % work.chunks == 0 else ():
            for dp in range(owners, max_nodes * cluster.per_node // (tp * pp) + 1):
                whole = tp * pp * dp % cluster.per_node == 0
                allowed = space.allows(pp=pp, dp=dp, ranks=tp * pp * dp)
                if not whole or any(batch % dp for batch in batches) or not allowed:
                    continue
                divided = work._replace(dp=dp, tp=tp, pp=pp, division=())
                for scheduled in _schedules(divided, space.schedules):
                    yield from _micro_batches(scheduled, [batch // dp for batch in batches], space)


def _schedules(work: Workload, schedules: Sequence[tuple[str, int]]) -> Iterator[Workload]:
    """Yields the workload with each schedule to try that its stages and layers allow."""
    for schedule, chunks in (work.pp > 1 and schedules) or ((work.schedule, work.chunks),):
        if work.model.layers % (work.pp * chunks) == 0:
            # XLA compiles no step whose halves of backward have sums over tensor parallel ranks.
            deferred = schedule == "zero_bubble" and work.tp > 1 and work.pp > 1
            yield work._replace(schedule=schedule, chunks=chunks, compiled=work.compiled and not deferred)


def _micro_batches(work: Workload, shares: list[int], space: SearchSpace) -> Iterator[Workload]:
    stages = [stage for stage in zero_stages(work.dp, work.pp) if space.allows(zero_stage=stage)]
    flash = work.runs_here and "core" not in space.fixed and takes_heads("flash", work.model.block.attention.head_size)
    # Pairs of a core, and whether it is tried beside that of the workload.
    cores, sequences = [(work.core, False), *([("flash", True)] if flash else [])], _sequences(work, space)
    modes = [mode for mode in CHECKPOINTING if space.allows(checkpointing=mode)]
    if work.pp > 1 and work.schedule == "zero_bubble" and "full" in modes:
        modes.remove("full")  # The trainer computes backward in halves.
    for size in divisors(math.gcd(*shares), MAX_MICRO_BATCH):
        heads = work.model.attention_heads // work.tp * size
        aligned = not work.model.causal or "softmax" not in work.fused or heads % FUSED_SOFTMAX_UNIT == 0
        if any(schedule_problems(work.schedule, work.pp, share // size, work.chunks) for share in shares):
            continue
        if not aligned or not space.allows(micro_batch=size, micro_batches=shares[0] // size):
            continue
        sized = work._replace(micro_batch=size, accumulation=work.accumulation if shares[0] > size else "")
        for stage, mode, (core, is_added), sequence in itertools.product(stages, modes, cores, sequences):
            if not is_added or mode != "selective":  # Flash has nothing to compute again.
                yield sized._replace(zero_stage=stage, checkpointing=mode, core=core, sequence_parallel=sequence)


def _sequences(work: Workload, space: SearchSpace) -> tuple[bool, ...]:
    """Returns whether ranks divide the residual stream, which saves memory, and may take time to gather; or both."""
    possible = work.tp > 1 and work.seq % work.tp == 0
    if space.sequence_parallel is None:
        return (possible if work.runs_here else work.sequence_parallel,)
    return tuple(value for value in space.sequence_parallel if possible or not value)
