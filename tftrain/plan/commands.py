"""The command of `tftrain.launch` that a plan is of, and the flags of its layout."""

import dataclasses
import shlex
from collections.abc import Set
from typing import Any

from tftrain.config import length_choice, phases
from tftrain.config.fields import Config, changed, flag_name, sections
from tftrain.config.parallel import ParallelConfig
from tftrain.config.train import TrainConfig
from tftrain.plan.config import PlanConfig
from tftrain.plan.workload import LAYOUT, PASSES, RANKS, Workload

Changes = dict[str, Any]
# Flags that are for some layouts only, which a search does without; their defaults are for all.
FOR_SOME = (
    "pipeline_split", "group_transport", "gradient_transport", "prefetch_blocks", "split_group", "state_split_strategy",
)  # fmt: skip


def freed(config: Config, named: Set[str]) -> Config:
    """Returns a configuration without the flags of a layout, such as those of a checkpoint, that are not in `named`."""
    every = {field.name: field.default for section in sections(config) for field in dataclasses.fields(section)}
    every |= {"fit_micro_batch": False, **config.model.family.defaults}
    values = {name: every[name] for name in (*LAYOUT, *FOR_SOME, "fit_micro_batch") if name not in named}
    return changed(config, values | {"phases": phases.without(config.data.phases, "micro_batch_size")})


def layout_of(work: Workload, current: ParallelConfig) -> Changes:
    """Returns the flags of a division by name, each of `LAYOUT`; other software has other flags of its ZeRO stage."""
    ranks, passes = ({flag: getattr(work, name) for name, flag in flags.items()} for flags in (RANKS, PASSES))
    return {**ranks, **work.stage_flags(current), **passes, "grad_accum_steps": round(work.micro_batches)}


def changes_of(work: Workload, config: PlanConfig) -> Changes:
    """Returns the flags of a division, by name, that differ from those of a configuration."""
    return differing({**layout_of(work, config.parallel), "global_batch_size": work.global_batch}, config)


def differing(changes: Changes, config: PlanConfig) -> Changes:
    """Returns the changes whose value is not that of the configuration."""
    current = {name: value for section in sections(config) for name, value in vars(section).items()}
    return {name: value for name, value in changes.items() if value != current[name]}


def of_division(work: Workload, config: PlanConfig) -> TrainConfig | None:
    """Returns the configuration of a run with the division of a workload; None if the trainer refuses it."""
    divided = of_changes(changes_of(work, config), config)
    return None if divided.run_problems(work.ranks) else divided.train


def of_changes(changes: Changes, config: PlanConfig) -> PlanConfig:
    """Returns a configuration with other flags; a run in phases keeps the batch of each of them."""
    if config.data.phases:
        changes = changes | {"global_batch_size": config.batch.global_batch_size, "grad_accum_steps": None}
        changes["fit_micro_batch"] = True
    return changed(config, changes)


def command(config: TrainConfig, ranks: int) -> str:
    """Returns the command of a run: every flag that is not the default; the data and the folder have to be named."""
    shown = [f"python -m tftrain.launch -np {ranks}"]
    if not (config.data.sources or config.model.reads_examples):
        buckets = config.data.seq_length_buckets != length_choice.NONE
        config = changed(config, {"data_dir": "data"} if buckets else {"synthetic_data": True})
    if not config.run.output_dir:
        config = changed(config, {"output_dir": "runs/planned"})
    return " ".join([*shown, *map(shlex.quote, given_flags(config))])


def given_flags(config: TrainConfig) -> list[str]:
    """Returns every flag that is not the default, with its value."""
    shown = []
    for section in sections(config):
        for field in dataclasses.fields(section):
            value = getattr(section, field.name)
            if value != config.model.family.defaults.get(field.name, field.default):
                shown += [text(flag_name(field), each) for each in (value if isinstance(value, tuple) else (value,))]
    return shown


def text(name: str, value: Any) -> str:
    """Returns a flag with its value."""
    return f"--{name}" if value is True else f"--{name}={str(value).lower() if value is False else value}"
