"""All ways to divide a run among devices, the fastest first."""

import math
from collections.abc import Iterator
from typing import NamedTuple

from tftrain.plan import memory, timing
from tftrain.plan.cluster import Cluster
from tftrain.plan.forecast import Forecast
from tftrain.plan.system import Constants
from tftrain.plan.workload import Workload, zero_stages

MAX_MICRO_BATCH = 64
FUSED_SOFTMAX_UNIT = 4  # Megatron's kernel takes the heads of a rank times the micro-batch in fours
CHECKPOINTING = ("none", "selective", "full")


class Given(NamedTuple):
    """What of a division is given; None is free."""

    dp: int | None = None
    tp: int | None = None
    pp: int | None = None
    micro_batch: int | None = None
    micro_batches: int | None = None
    zero_stage: int | None = None
    checkpointing: str | None = None

    def allows(self, **sizes) -> bool:
        """Whether these values are the given ones, where any are."""
        return all(getattr(self, name) in (None, value) for name, value in sizes.items())


FREE = Given()


class Found(NamedTuple):
    """What a search found.

    Attributes:
        candidates: divisions that meet the constraints.
        fitting: plans of those that fit, the fastest first.
    """

    candidates: int
    fitting: list[Forecast]


def search(
    work: Workload,
    cluster: Cluster,
    constants: Constants,
    max_nodes: int,
    ramp: tuple[int, ...] = (),
    given: Given = FREE,
    tensor_parallel: Workload | None = None,
) -> Found:
    """Ranks divisions of a workload by seconds per iteration.

    Args:
        work: the model and its global batch, with the number format in which several micro-batches add up; its own
            division does not matter.
        cluster, constants: where, and the software.
        max_nodes: nodes at most.
        ramp: smaller global batches that must divide as well, see `batch_rampup`.
        given: what all divisions have.
        tensor_parallel: the workload of divisions with tensor parallel ranks; None: `work`.
    """
    count, fitting = 0, []
    for candidate in candidates(work, cluster, max_nodes, ramp, given, tensor_parallel):
        count += 1
        held = memory.estimate(candidate, constants)
        if held.fits(cluster):
            seconds = timing.step(candidate, cluster, constants)
            fitting.append(Forecast(candidate, cluster, constants, held, seconds))
    return Found(count, sorted(fitting, key=lambda plan: plan.seconds))


def candidates(
    work: Workload,
    cluster: Cluster,
    max_nodes: int,
    ramp: tuple[int, ...] = (),
    given: Given = FREE,
    tensor_parallel: Workload | None = None,
) -> Iterator[Workload]:
    """Yields divisions that fill their nodes.

    Tensor parallel ranks share a node and divide heads, wide layer and vocabulary; pipeline stages have the same number
    of layers; every batch divides into micro-batches on all data parallel ranks; a decoder's fused softmax wants its
    heads in fours. Where whole tensors have K owners, there are as many data parallel ranks at least.

    Args:
        work, cluster, max_nodes, ramp, given, tensor_parallel: as for `search`.
    """
    batches = (work.global_batch, *ramp)
    owners = int(work.split_strategy.partition(":")[2] or 1)
    for tp in _divisors(cluster.per_node):
        if work.heads % tp or work.inner % tp or not given.allows(tp=tp):
            continue
        for pp in _divisors(work.layers):
            for dp in range(owners, max_nodes * cluster.per_node // (tp * pp) + 1):
                whole = tp * pp * dp % cluster.per_node == 0
                if not whole or any(batch % dp for batch in batches) or not given.allows(pp=pp, dp=dp):
                    continue
                divided = (work if tp == 1 else tensor_parallel or work).replaced(dp=dp, tp=tp, pp=pp)
                yield from _micro_batches(divided, [batch // dp for batch in batches], given)


def _micro_batches(work: Workload, shares: list[int], given: Given) -> Iterator[Workload]:
    stages = [stage for stage in zero_stages(work.dp, work.pp) if given.allows(zero_stage=stage)]
    modes = [mode for mode in CHECKPOINTING if given.allows(checkpointing=mode)]
    for size in _divisors(math.gcd(*shares), MAX_MICRO_BATCH):
        fours = not work.causal or "softmax" not in work.fused or work.heads // work.tp * size % FUSED_SOFTMAX_UNIT == 0
        if not fours or not given.allows(micro_batch=size, micro_batches=shares[0] // size):
            continue
        sized = work.replaced(micro_batch=size, accumulation=work.accumulation if shares[0] > size else "")
        for stage in stages:
            for mode in modes:
                yield sized.replaced(zero_stage=stage, checkpointing=mode)


def _divisors(number: int, most: int | None = None) -> list[int]:
    return [size for size in range(1, min(number, most or number) + 1) if number % size == 0]
