"""The levers that make a run fit at the least time: one lever, or two together.

A lever is a change of flags. Its plan is made from the changed flags, so that a command with these flags has the same
plan.
"""

import contextlib
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from tftrain.config.fields import ConfigError, changed
from tftrain.config.model import FUSED_OPS
from tftrain.config.parallel import divisors
from tftrain.plan.cluster import Cluster
from tftrain.plan.commands import FOR_SOME, Changes, differing, freed, layout_of, of_changes, text
from tftrain.plan.config import PlanConfig, search_space, workload
from tftrain.plan.forecast import Forecast, forecast
from tftrain.plan.search import search
from tftrain.plan.workload import Workload, update_rule, zero_stages


class Lever(NamedTuple):
    """Changed flags by name, the configuration with them, and its plan."""

    changes: Changes
    config: PlanConfig
    plan: Forecast

    @property
    def name(self) -> tuple[str, Any]:
        """The first changed flag with its value; the others keep the global batch the same."""
        return next(iter(self.changes.items()))

    @property
    def flags(self) -> str:
        """The changed flags as they are given to a command."""
        return " ".join(text(flag, value) for flag, value in self.changes.items())


def cheapest(config: PlanConfig, plan: Forecast, most: int = 3, whole: PlanConfig | None = None) -> list[Lever]:
    """Returns at most `most` levers that make a run fit with the same nodes and global batch, the fastest first.

    They are single levers, pairs of levers of which neither is enough alone, and the fastest layout of a search. Among
    equally fast ones, the one with the least memory is returned. `plan` is the plan of `config`. If `config` is one
    phase of a run, `whole` is the run with all phases, which takes the levers.
    """
    work, whole = plan.work, whole or config
    tried = list(levers(config, plan))
    enough = {lever.name for lever in tried if lever.plan.fits}
    for first in [lever for lever in tried if not lever.plan.fits]:
        others = levers(first.config, first.plan, enough, after=first.name[0])
        tried += [second._replace(changes=first.changes | second.changes) for second in others]
    tried += _fastest_layout(config, plan, whole)
    fitting = [lever._replace(config=of_changes(lever.changes, whole)) for lever in tried if lever.plan.fits]
    fitting.sort(key=lambda lever: (lever.plan.seconds, lever.plan.gb, len(lever.changes)))
    taken = [lever for lever in fitting if not whole.data.phases or not lever.config.run_problems(work.ranks)]
    return list({lever.plan.seconds: lever for lever in reversed(taken)}.values())[::-1][:most]


def _fastest_layout(config: PlanConfig, plan: Forecast, whole: PlanConfig) -> list[Lever]:
    """Returns the fastest layout that fits on the same ranks as a lever; none if a search of the flags is refused."""
    work, free = plan.work, {*FOR_SOME}
    batch = {"global_batch_size": work.global_batch, "zero_stage": None, "max_nodes": None}

    def lever_of(layout: Workload) -> Lever | None:
        changes = differing(layout_of(layout, config.parallel), config)
        if config.batch.global_batch_size and config.batch.grad_accum_steps is None:
            changes.pop("grad_accum_steps", None)  # It follows from the global batch.
        return _lever(changes, config, plan)

    def accepts(layout: Workload) -> bool:
        return bool(lever := lever_of(layout)) and not of_changes(lever.changes, whole).run_problems(work.ranks)

    try:
        space = search_space(changed(freed(config, free), batch), plan.cluster, type(work), work.ranks, free)
    except ConfigError:
        return []
    return [lever_of(each.work) for each in search(space, plan.constants, 1, plan.margin, accepts).fastest]


def levers(
    config: PlanConfig, plan: Forecast, without: Collection[tuple[str, Any]] = (), after: str = ""
) -> Iterator[Lever]:
    """Yields each lever that the flags, whose plan is given, do not use yet and that a run would accept.

    Leaves out the levers whose name is in `without`, and those whose flag is not after `after` in the alphabet.
    """
    for changes in _changes(config, plan.work, plan.cluster):
        name = next(iter(changes.items()))
        if name not in without and name[0] > after and (lever := _lever(changes, config, plan)):
            yield lever


def _lever(changes: Changes, config: PlanConfig, plan: Forecast) -> Lever | None:
    """Returns the lever of some changes; None if the run would be refused."""
    new_config = changed(config, changes)
    with contextlib.suppress(ConfigError):
        work = workload(new_config, plan.cluster, type(plan.work))
        return Lever(changes, new_config, forecast(work, plan.cluster, plan.constants, plan.margin))
    return None


def _changes(config: PlanConfig, work: Workload, cluster: Cluster) -> Iterator[Changes]:
    ops = {op: flag for op, flag in FUSED_OPS.items() if flag not in config.model.without_fused_op}
    if {*ops, "optimizer"} - work.fused:
        rule = update_rule(config.optimizer.optimizer)
        yield {**dict.fromkeys(ops.values(), "fused"), "optimizer": f"fused_{rule}"}
    if work.precision == "fp32":
        yield {"precision": "bf16"}
    for core in ("softmax", "flash", "cudnn") if work.runs_here else ():
        # cuDNN needs a GPU, and mixes the examples of a packed row.
        if core != work.core and (core != "cudnn" or (cluster.multiprocessors and config.plan.examples_per_row == 1)):
            yield {"attn_impl": core}
    for stage in zero_stages(work.dp, work.pp):
        changes = differing(work._replace(zero_stage=stage).stage_flags(config.parallel), config)
        if stage > work.zero_stage and changes:
            yield changes
    shards = work.zero_stage == 3 and not work.split_devices
    if work.runs_here and shards and 1 < cluster.per_node // work.tp < work.dp:
        yield {"split_group": "host"}
    if work.zero_stage and work.split_strategy != "even":
        yield {"state_split_strategy": "even"}
    if work.accumulation == "fp32" and work.precision != "fp32":
        yield {"grad_accum_dtype": work.precision}
    for mode in ("selective", "full"):
        if work.checkpointing == "none" or (work.checkpointing, mode) == ("selective", "full"):
            yield {"activation_checkpointing": mode}
    # A smaller micro-batch, or fewer data parallel ranks, need more micro-batches for the same global batch.
    steps = round(work.micro_batches)
    for factor in divisors(work.micro_batch)[1:]:
        yield {"micro_batch_size": work.micro_batch // factor, "grad_accum_steps": steps * factor}
    for factor in divisors(work.dp)[1:] if config.plan.data_parallel_size is None else ():
        if work.tp * factor <= cluster.per_node:
            yield {"tensor_parallel_size": work.tp * factor, "grad_accum_steps": steps * factor}
        if work.zero_stage in zero_stages(work.dp, work.pp * factor):
            yield {"pipeline_parallel_size": work.pp * factor, "grad_accum_steps": steps * factor}
