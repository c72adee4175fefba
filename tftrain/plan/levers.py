"""The cheapest levers that make a run fit: each alone, and if none does, two together."""

from collections.abc import Iterator
from typing import NamedTuple

from tftrain.plan.cluster import Cluster
from tftrain.plan.forecast import Forecast, forecast
from tftrain.plan.system import Constants
from tftrain.plan.workload import Workload

OPS = ("ln", "softmax", "gelu", "dropout_add", "optimizer")


class Lever(NamedTuple):
    """Flags, and the workload that they lead to."""

    flags: str
    work: Workload


class Remedy(NamedTuple):
    """Flags that make a run fit, and what it is then."""

    flags: str
    plan: Forecast


def cheapest(work: Workload, cluster: Cluster, constants: Constants, most: int = 3) -> list[Remedy]:
    """Returns what makes a run fit, the fastest first.

    Args:
        work: does not fit.
        cluster, constants: where, and the software.
        most: remedies.
    """
    single = list(levers(work, cluster))
    found = _that_fit(single, cluster, constants)
    if not found:
        pairs = [
            Lever(f"{first.flags} {second.flags}", second.work)
            for first in single
            for second in levers(first.work, cluster)
            if _name(first.flags) < _name(second.flags)
        ]
        found = _that_fit(pairs, cluster, constants)
    return found[:most]


def _name(flags: str) -> str:
    return flags.partition("=")[0]


def _that_fit(candidates: list[Lever], cluster: Cluster, constants: Constants) -> list[Remedy]:
    plans = (Remedy(lever.flags, forecast(lever.work, cluster, constants)) for lever in candidates)
    return sorted((remedy for remedy in plans if remedy.plan.fits), key=lambda remedy: remedy.plan.seconds)


def levers(work: Workload, cluster: Cluster) -> Iterator[Lever]:
    """Yields each lever that is not pulled yet, one at a time; the global batch stays."""
    missing = sorted(set(OPS) - work.fused)
    if missing:
        yield Lever("--flagfile=configs/fused.flags", work.replaced(fused=frozenset(OPS)))
    if work.precision == "fp32":
        yield Lever("--precision=bf16", work.replaced(precision="bf16"))
    for stage, flag in ((1, "--split_opt_state"), (2, "--split_grad_accum"), (3, "--zero_stage=3")):
        if work.dp > 1 and work.zero_stage < stage:
            yield Lever(flag, work.replaced(zero_stage=stage))
    if work.zero_stage and work.split_strategy != "even":
        yield Lever("--state_split_strategy=even", work.replaced(split_strategy="even"))
    if work.accumulation == "fp32" and work.precision != "fp32":
        yield Lever(f"--grad_accum_dtype={work.precision}", work.replaced(accumulation=work.precision))
    for mode in ("selective", "full"):
        if work.checkpointing == "none" or (work.checkpointing, mode) == ("selective", "full"):
            yield Lever(f"--activation_checkpointing={mode}", work.replaced(checkpointing=mode))
    for size in _halves(work.micro_batch):
        accumulation = work.accumulation or ("" if work.causal else "fp32")
        yield Lever(f"--micro_batch_size={size}", work.replaced(micro_batch=size, accumulation=accumulation))
    yield from _divisions(work, cluster)


def _halves(size: int) -> Iterator[int]:
    while size % 2 == 0:
        size //= 2
        yield size


def _divisions(work: Workload, cluster: Cluster) -> Iterator[Lever]:
    for factor in (2, 4, 8):
        if work.dp % factor:
            return
        divided = work.replaced(dp=work.dp // factor)
        if work.tp * factor <= cluster.per_node and work.heads % (work.tp * factor) == 0:
            yield Lever(f"--tensor_parallel_size={work.tp * factor}", divided.replaced(tp=work.tp * factor))
        if work.layers % (work.pp * factor) == 0:
            yield Lever(f"--pipeline_parallel_size={work.pp * factor}", divided.replaced(pp=work.pp * factor))
