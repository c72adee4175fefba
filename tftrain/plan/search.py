"""All ways to divide a run among devices, the fastest first."""

from collections.abc import Iterator
from typing import NamedTuple

from tftrain.plan import memory, timing
from tftrain.plan.cluster import Cluster
from tftrain.plan.forecast import Forecast
from tftrain.plan.system import Constants
from tftrain.plan.workload import Workload

MOST_MICRO_BATCH = 64
FUSED_SOFTMAX_UNIT = 4  # Megatron's kernel takes the heads of a rank times the micro-batch in fours
CHECKPOINTING = ("none", "selective", "full")


class Found(NamedTuple):
    """What a search found.

    Attributes:
        candidates: divisions that meet the constraints.
        fitting: plans of those that fit, the fastest first.
    """

    candidates: int
    fitting: list[Forecast]


def search(work: Workload, cluster: Cluster, constants: Constants, max_nodes: int, ramp: tuple[int, ...] = ()) -> Found:
    """Ranks divisions of a workload by seconds per iteration.

    Args:
        work: the model and its global batch; its own division does not matter.
        cluster, constants: where, and the software.
        max_nodes: nodes at most.
        ramp: smaller global batches that must divide as well, see `batch_rampup`.
    """
    count, fitting = 0, []
    for candidate in candidates(work, cluster, max_nodes, ramp):
        count += 1
        held = memory.of(candidate, constants)
        if held.fits(cluster):
            fitting.append(Forecast(candidate, cluster, held, timing.step(candidate, cluster, constants)))
    return Found(count, sorted(fitting, key=lambda plan: plan.seconds))


def candidates(work: Workload, cluster: Cluster, max_nodes: int, ramp: tuple[int, ...] = ()) -> Iterator[Workload]:
    """Yields divisions that fill their nodes.

    Tensor parallel ranks share a node and divide heads, wide layer and vocabulary; pipeline stages have the same number
    of layers; every batch divides into micro-batches on all data parallel ranks; a decoder's fused softmax wants its
    heads in fours.
    """
    batches = (work.global_batch, *ramp)
    for tp in _divisors(cluster.per_node):
        if work.heads % tp or work.inner % tp:
            continue
        for pp in _divisors(work.layers):
            for dp in range(1, max_nodes * cluster.per_node // (tp * pp) + 1):
                whole = tp * pp * dp % cluster.per_node == 0
                if not whole or any(batch % dp for batch in batches):
                    continue
                yield from _micro_batches(work.replaced(dp=dp, tp=tp, pp=pp), [batch // dp for batch in batches])


def _micro_batches(work: Workload, shares: list[int]) -> Iterator[Workload]:
    for size in _divisors(min(shares)):
        fours = not work.causal or "softmax" not in work.fused or work.heads // work.tp * size % FUSED_SOFTMAX_UNIT == 0
        if size > MOST_MICRO_BATCH or not fours or any(share % size for share in shares):
            continue
        several = shares[0] > size
        accumulation = (work.accumulation or "fp32") if several and not work.causal else ""
        sized = work.replaced(micro_batch=size, accumulation=accumulation)
        for stage in (0, 1, 2) if work.dp > 1 else (0,):
            # Under a pipeline, gradients add up over its micro-batches and are whole until the last.
            if stage == 2 and work.pp > 1:
                continue
            for mode in CHECKPOINTING:
                yield sized.replaced(zero_stage=stage, checkpointing=mode)


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]
