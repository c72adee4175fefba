"""A search over the divisions of a workload among devices, ranked by time."""

import bisect
import itertools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

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


class Constraints(NamedTuple):
    """The fixed sizes of a division; None is free."""

    ranks: int | None = None
    dp: int | None = None
    tp: int | None = None
    pp: int | None = None
    micro_batch: int | None = None
    micro_batches: int | None = None
    zero_stage: int | None = None
    checkpointing: str | None = None
    core: str | None = None  # value of attn_impl
    # Values of pipeline_schedule and virtual_pipeline_size to try under a pipeline; empty: those of the workload.
    schedules: tuple[tuple[str, int], ...] = ()
    sequence_parallel: tuple[bool, ...] | None = None  # values to try; None: true wherever ranks divide the sequence

    def allows(self, **sizes) -> bool:
        """Whether each of these sizes equals its constraint or is free."""
        return all(getattr(self, name) in (None, value) for name, value in sizes.items())


FREE = Constraints()


class SearchSpace(NamedTuple):
    """The divisions that a search looks at."""

    work: Workload  # model, global batch, and the number format of accumulation; its own division is ignored
    cluster: Cluster
    max_nodes: int
    ramp: tuple[int, ...] = ()  # smaller global batches that must divide too, see `batch_rampup`
    constraints: Constraints = FREE  # sizes that every division has


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
    """Ranks the divisions of a workload by seconds per iteration, equal ones by memory, and returns the `top` of them.

    A share of a device's memory, `margin`, must stay free. `accepts` says whether the trainer takes a division; it is
    asked of the fastest ones.
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

    Tensor parallel ranks share a node and partition attention heads, feed-forward layer and vocabulary.
    Pipeline stages have equal numbers of layers, and of model chunks. Every batch divides into micro-batches on
    all data parallel ranks, which the pipeline's schedule can run. A decoder's fused softmax needs a multiple of four
    heads. greedy:K needs at least K data parallel ranks.
    """
    work, cluster, max_nodes, ramp, constraints = space
    batches, model = (work.global_batch, *ramp), work.model
    owners = int(work.split_strategy.partition(":")[2] or 1)
    for tp in divisors(cluster.per_node):
        if model.block.attention.key_value_heads % tp or model.inner % tp or not constraints.allows(tp=tp):
            continue
        for pp in divisors(model.layers // work.chunks) if model.layers % work.chunks == 0 else ():
            for dp in range(owners, max_nodes * cluster.per_node // (tp * pp) + 1):
                whole = tp * pp * dp % cluster.per_node == 0
                allowed = constraints.allows(pp=pp, dp=dp, ranks=tp * pp * dp)
                if not whole or any(batch % dp for batch in batches) or not allowed:
                    continue
                divided = work._replace(dp=dp, tp=tp, pp=pp, division=())
                for scheduled in _schedules(divided, constraints):
                    yield from _micro_batches(scheduled, [batch // dp for batch in batches], constraints)


def _schedules(work: Workload, constraints: Constraints) -> Iterator[Workload]:
    """Yields the workload with each schedule to try that its stages and layers allow."""
    for schedule, chunks in (work.pp > 1 and constraints.schedules) or ((work.schedule, work.chunks),):
        if work.model.layers % (work.pp * chunks) == 0:
            # XLA compiles no step whose halves of backward have sums over tensor parallel ranks.
            deferred = schedule == "zero_bubble" and work.tp > 1 and work.pp > 1
            yield work._replace(schedule=schedule, chunks=chunks, compiled=work.compiled and not deferred)


def _micro_batches(work: Workload, shares: list[int], constraints: Constraints) -> Iterator[Workload]:
    stages = [stage for stage in zero_stages(work.dp, work.pp) if constraints.allows(zero_stage=stage)]
    cores, sequences = _cores(work, constraints), _sequences(work, constraints)
    modes = [mode for mode in CHECKPOINTING if constraints.allows(checkpointing=mode)]
    if work.pp > 1 and work.schedule == "zero_bubble" and "full" in modes:
        modes.remove("full")  # The trainer computes backward in halves.
    for size in divisors(math.gcd(*shares), MAX_MICRO_BATCH):
        heads = work.model.attention_heads // work.tp * size
        aligned = not work.model.causal or "softmax" not in work.fused or heads % FUSED_SOFTMAX_UNIT == 0
        if any(schedule_problems(work.schedule, work.pp, share // size, work.chunks) for share in shares):
            continue
        if not aligned or not constraints.allows(micro_batch=size, micro_batches=shares[0] // size):
            continue
        sized = work._replace(micro_batch=size, accumulation=work.accumulation if shares[0] > size else "")
        for stage, mode, core, sequence in itertools.product(stages, modes, cores, sequences):
            if core == "flash" and mode == "selective":
                continue  # There is nothing of the core to compute again.
            fused = work.fused | {"flash"} if core == "flash" else work.fused
            yield sized._replace(zero_stage=stage, checkpointing=mode, fused=fused, sequence_parallel=sequence)


def _cores(work: Workload, constraints: Constraints) -> tuple[str, ...]:
    """Returns the attention cores to try; "" is that of the workload."""
    flash = not constraints.core and takes_heads("flash", work.model.block.attention.head_size)
    return ("", "flash") if flash and work.runs_here else ("",)


def _sequences(work: Workload, constraints: Constraints) -> tuple[bool, ...]:
    """Returns whether ranks divide the residual stream, which saves memory, and may take time to gather; or both."""
    possible = work.tp > 1 and work.seq % work.tp == 0
    if constraints.sequence_parallel is None:
        return (possible if work.runs_here else work.sequence_parallel,)
    return tuple(value for value in constraints.sequence_parallel if possible or not value)
