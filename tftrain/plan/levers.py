"""The cheapest levers that make a run fit: one that is enough by itself, or two together.

A lever is a change of flags. What it leads to is planned from the changed flags, so that whoever adds them to a command
gets what was said.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tftrain.fields import ConfigError, changed
from tftrain.plan.cluster import Cluster
from tftrain.plan.config import PlanConfig, workload
from tftrain.plan.forecast import Forecast, forecast
from tftrain.plan.system import Constants
from tftrain.plan.workload import LEVERS, Workload, update_rule, zero_stages

OPS = {*LEVERS, "optimizer"}

Changes = dict[str, Any]


class Lever(NamedTuple):
    """Flags that were changed, by name, and what all flags are then, and amount to."""

    changes: Changes
    config: PlanConfig
    work: Workload

    @property
    def name(self) -> tuple[str, Any]:
        """The flag that makes the difference, with its value; others may only keep the global batch."""
        return next(iter(self.changes.items()))


class Remedy(NamedTuple):
    """Flags that make a run fit, and what it is then."""

    flags: str
    plan: Forecast


def cheapest(config: PlanConfig, cluster: Cluster, constants: Constants, most: int = 3) -> list[Remedy]:
    """Returns what makes a run fit, the fastest first; nodes and global batch stay.

    Args:
        config: of a run that does not fit.
        cluster, constants: where, and the software.
        most: remedies; each is a lever that is enough, or two of which neither is.
    """
    planned = _planned(levers(config, workload(config, cluster), cluster), cluster, constants)
    enough = {lever.name for lever, plan in planned if plan.fits}
    pairs = [
        second._replace(changes=first.changes | second.changes)
        for first, plan in planned
        if not plan.fits
        for second in levers(first.config, first.work, cluster)
        if second.name not in enough and first.name[0] < second.name[0]
    ]
    planned += _planned(pairs, cluster, constants)
    found = [Remedy(_text(lever.changes), plan) for lever, plan in planned if plan.fits]
    return sorted(found, key=lambda remedy: remedy.plan.seconds)[:most]


def _planned(candidates: Iterable[Lever], cluster: Cluster, constants: Constants) -> list[tuple[Lever, Forecast]]:
    return [(lever, forecast(lever.work, cluster, constants)) for lever in candidates]


def _text(changes: Changes) -> str:
    fused = all(changes.get(flag) == "fused" for flag in LEVERS.values())
    shown = ["--flagfile=configs/fused.flags"] if fused else []
    for flag, value in changes.items():
        # The file has the ops, and an optimizer.
        if not (fused and (flag in LEVERS.values() or value == "fused_lamb")):
            shown.append(f"--{flag}" if value is True else f"--{flag}={value}")
    return " ".join(shown)


def levers(config: PlanConfig, work: Workload, cluster: Cluster) -> Iterator[Lever]:
    """Yields each lever that is not pulled yet, one at a time, unless a run would refuse it.

    Args:
        config: the flags.
        work: what they amount to.
        cluster: where.
    """
    for changes in _changes(config, work, cluster.per_node):
        then = changed(config, changes)
        try:
            yield Lever(changes, then, workload(then, cluster))
        except ConfigError:
            continue


def _changes(config: PlanConfig, work: Workload, per_node: int) -> Iterator[Changes]:
    if OPS - work.fused:
        rule = update_rule(config.optimizer.optimizer)
        yield {**dict.fromkeys(LEVERS.values(), "fused"), "optimizer": f"fused_{rule}"}
    if work.precision == "fp32":
        yield {"precision": "bf16"}
    named = work.causal or config.plan.zero_stage is not None
    for stage in zero_stages(work.dp, work.pp):
        # Training here divides no weights among data parallel ranks.
        if stage > work.zero_stage and (named or stage < 3):
            yield {"zero_stage": stage} if named else {("split_opt_state", "split_grad_accum")[stage - 1]: True}
    if work.zero_stage and work.split_strategy != "even":
        yield {"state_split_strategy": "even"}
    if work.accumulation == "fp32" and work.precision != "fp32":
        yield {"grad_accum_dtype": work.precision}
    for mode in ("selective", "full"):
        if work.checkpointing == "none" or (work.checkpointing, mode) == ("selective", "full"):
            yield {"activation_checkpointing": mode}
    # With fewer samples at a time, or fewer data parallel ranks, more micro-batches make the same global batch.
    steps = round(work.micro_batches)
    for factor in _factors(work.micro_batch):
        yield {"micro_batch_size": work.micro_batch // factor, "grad_accum_steps": steps * factor}
    for factor in _factors(work.dp) if config.plan.data_parallel_size is None else ():
        if work.tp * factor <= per_node:
            yield {"tensor_parallel_size": work.tp * factor, "grad_accum_steps": steps * factor}
        # Training here divides no encoder into stages.
        if work.causal and work.zero_stage in zero_stages(work.dp, work.pp * factor):
            yield {"pipeline_parallel_size": work.pp * factor, "grad_accum_steps": steps * factor}


def _factors(number: int) -> list[int]:
    """Returns what divides a number, 1 left out."""
    return [factor for factor in range(2, number + 1) if number % factor == 0]
