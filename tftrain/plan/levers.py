"""The levers that make a run fit at the least time: one lever, or two together.

A lever is a change of flags. Its plan is made from the changed flags, so that a command with these flags plans to the
same figures.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tftrain.config.fields import ConfigError, changed
from tftrain.config.model import FUSED_OPS
from tftrain.plan.cluster import Cluster
from tftrain.plan.commands import Changes, text
from tftrain.plan.config import PlanConfig, workload
from tftrain.plan.forecast import Forecast, forecast
from tftrain.plan.system import Constants
from tftrain.plan.workload import Workload, update_rule, zero_stages


class Lever(NamedTuple):
    """Changed flags by name, and the configuration and the workload with them."""

    changes: Changes
    config: PlanConfig
    work: Workload

    @property
    def name(self) -> tuple[str, Any]:
        """The first changed flag with its value; the others keep the global batch the same."""
        return next(iter(self.changes.items()))


class Suggestion(NamedTuple):
    """Flags that make a run fit, the plan with them, and the configuration."""

    flags: str
    plan: Forecast
    config: PlanConfig


def cheapest(config: PlanConfig, cluster: Cluster, constants: Constants, most: int = 3) -> list[Suggestion]:
    """Returns the levers that make a run fit, the fastest first, with the same nodes and global batch.

    At most `most` suggestions; each is one lever, or a pair if neither lever alone is enough.
    """
    margin = config.plan.memory_margin
    planned = _planned(levers(config, workload(config, cluster), cluster), cluster, constants, margin)
    enough = {lever.name for lever, plan in planned if plan.fits}
    pairs = [
        second._replace(changes=first.changes | second.changes)
        for first, plan in planned
        if not plan.fits
        for second in levers(first.config, first.work, cluster)
        if second.name not in enough and first.name[0] < second.name[0]
    ]
    planned += _planned(pairs, cluster, constants, margin)
    found = [Suggestion(_text(lever.changes), plan, lever.config) for lever, plan in planned if plan.fits]
    return sorted(found, key=lambda suggestion: suggestion.plan.seconds)[:most]


def _planned(
    candidates: Iterable[Lever], cluster: Cluster, constants: Constants, margin: float
) -> list[tuple[Lever, Forecast]]:
    return [(lever, forecast(lever.work, cluster, constants, margin)) for lever in candidates]


def _text(changes: Changes) -> str:
    fused = all(changes.get(flag) == "fused" for flag in FUSED_OPS.values())
    shown = ["--flagfile=configs/fused.flags"] if fused else []
    for flag, value in changes.items():
        # The flagfile sets the ops and an optimizer.
        if not (fused and (flag in FUSED_OPS.values() or value == "fused_lamb")):
            shown.append(text(flag, value))
    return " ".join(shown)


def levers(config: PlanConfig, work: Workload, cluster: Cluster) -> Iterator[Lever]:
    """Yields each lever that the flags do not use yet and that a run would accept; `work` is that of the flags."""
    for changes in _changes(config, work, cluster.per_node):
        new_config = changed(config, changes)
        try:
            yield Lever(changes, new_config, workload(new_config, cluster))
        except ConfigError:
            continue


def _changes(config: PlanConfig, work: Workload, per_node: int) -> Iterator[Changes]:
    ops = {op: flag for op, flag in FUSED_OPS.items() if flag not in config.model.without_fused_op}
    if {*ops, "optimizer"} - work.fused:
        rule = update_rule(config.optimizer.optimizer)
        yield {**dict.fromkeys(ops.values(), "fused"), "optimizer": f"fused_{rule}"}
    if work.precision == "fp32":
        yield {"precision": "bf16"}
    by_stage = work.trainer == "megatron"
    for stage in zero_stages(work.dp, work.pp, work.trainer):
        if stage > work.zero_stage:
            yield {"zero_stage": stage} if by_stage else {("split_opt_state", "split_grad_accum")[stage - 1]: True}
    if work.zero_stage and work.split_strategy != "even":
        yield {"state_split_strategy": "even"}
    if work.accumulation == "fp32" and work.precision != "fp32":
        yield {"grad_accum_dtype": work.precision}
    for mode in ("selective", "full"):
        if work.checkpointing == "none" or (work.checkpointing, mode) == ("selective", "full"):
            yield {"activation_checkpointing": mode}
    # A smaller micro-batch, or fewer data parallel ranks, need more micro-batches for the same global batch.
    steps = round(work.micro_batches)
    for factor in _factors(work.micro_batch):
        yield {"micro_batch_size": work.micro_batch // factor, "grad_accum_steps": steps * factor}
    for factor in _factors(work.dp) if config.plan.data_parallel_size is None else ():
        if work.tp * factor <= per_node:
            yield {"tensor_parallel_size": work.tp * factor, "grad_accum_steps": steps * factor}
        if work.zero_stage in zero_stages(work.dp, work.pp * factor, work.trainer):
            yield {"pipeline_parallel_size": work.pp * factor, "grad_accum_steps": steps * factor}


def _factors(number: int) -> list[int]:
    """Returns the divisors of a number without 1."""
    return [factor for factor in range(2, number + 1) if number % factor == 0]
