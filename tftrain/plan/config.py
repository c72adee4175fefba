"""The flags of `python -m tftrain.plan`: those of a run, and what is to be planned."""

import dataclasses
from dataclasses import dataclass

from tftrain.config import TrainConfig
from tftrain.fields import Problem, field_problems, flag

FORMATS = ("text", "csv", "md")


@dataclass(frozen=True)
class PlanFlags:
    """What to plan, on which machine, and how to print it."""

    cluster: str = flag("a100_80gb", "The machine; --list names them all. this_machine needs --measure once.")
    nodes: int = flag(1, "Nodes of the cluster.", minimum=1)
    ranks_per_node: int = flag(1, "Ranks that share a node of this_machine, each with its part of it.", minimum=1)
    data_parallel_size: int | None = flag(
        None, "Ranks that share the global batch; by default what the devices leave.", minimum=1
    )
    zero_stage: int | None = flag(
        None,
        "What data parallel ranks divide: 1 optimizer state, 2 gradients too, 3 weights too; by default as "
        "split_opt_state and split_grad_accum say.",
        minimum=0,
        maximum=3,
    )
    causal: bool = flag(False, "A decoder that predicts every token, as Megatron-LM runs it, not a masked LM.")
    system: str | None = flag(
        None, "Software whose constants count; --list names them all. By default encoder, or megatron if causal."
    )
    search: bool = flag(False, "Rank all divisions among up to max_nodes nodes by seconds per iteration.")
    max_nodes: int | None = flag(None, "Nodes that --search may use; by default nodes.", minimum=1)
    top: int = flag(20, "Lines that --search prints.", minimum=1)
    table: str | None = flag(None, "A table of published rows to compare with, or all; --list names them.")
    rows_file: str | None = flag(None, "A CSV file in one of the formats of the published tables, to compare with.")
    format: str = flag("text", "Format of tables.", choices=FORMATS)
    list: bool = flag(False, "Print the clusters, systems and tables that there are.")
    measure: bool = flag(False, "Measure this machine and write machine_file, which --cluster=this_machine reads.")
    calibrate: bool = flag(False, "Fit the constants to the published rows, and print them with their errors.")

    def problems(self) -> "list[Problem]":
        """Returns every reason to refuse these flags by themselves."""
        found = field_problems(self)
        jobs = ("search", "table", "rows_file", "list", "measure", "calibrate")
        chosen = [name for name in jobs if getattr(self, name)]
        if len(chosen) > 1:
            found.append(Problem(chosen[1], getattr(self, chosen[1]), f"expected without --{chosen[0]}"))
        return found


@dataclass(frozen=True)
class PlanConfig(TrainConfig):
    """All flags: those of `tftrain.run`, and the planner's own."""

    plan: PlanFlags = PlanFlags()

    @property
    def train(self) -> TrainConfig:
        """The configuration of the run that is planned."""
        return TrainConfig(**{field.name: getattr(self, field.name) for field in dataclasses.fields(TrainConfig)})
