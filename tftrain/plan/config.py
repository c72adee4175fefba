"""The flags of `python -m tftrain.plan` (a run's flags and the planner's own), and the workload they describe."""

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from tftrain.config import combinations, ramp
from tftrain.config.fields import ConfigError, Problem, changed, field_problems, flag, flag_values, joined
from tftrain.config.parallel import BatchConfig
from tftrain.config.train import TrainConfig
from tftrain.data.sizes import synthetic
from tftrain.plan.cluster import Cluster
from tftrain.plan.search import SCHEDULES, SearchSpace
from tftrain.plan.workload import PASSES, RANKS, Workload, from_config

# Flags that a run needs and a plan does not.
NOT_NEEDED = ("output_dir", "data_dir", "train_file")


@dataclass(frozen=True)
class PlanFlags:
    """The planner's own flags: the job, the machine, the format."""

    cluster: str = flag("a100_80gb", names="path", common=True)
    """Machine: a name that --list prints, or FILE.json. this_machine needs --measure once."""
    nodes: int = flag(1, "Nodes of the cluster.", minimum=1, common=True)
    ranks_per_node: int = flag(1, "Ranks that share --cluster=this_machine equally.", minimum=1)
    data_parallel_size: int | None = flag(None, minimum=1)
    """Ranks that share the global batch; by default all devices / (tensor x pipeline parallel size)."""
    zero_stage: int | None = flag(None, minimum=0, maximum=3)
    """ZeRO stage with --trainer=megatron: data parallel ranks partition the optimizer state (1), also gradients (2),
    also weights (3). By default, and for tftrain, as --split_opt_state, --split_grad_accum and --split_weights say."""
    examples_per_row: float = flag(1.0, minimum=1)
    """Mean number of examples in a packed row: examples / rows as tftrain.prepare prints them."""
    utilisation: float = flag(1.0, "Share of positions without padding, as tftrain.prepare says.", above=0, maximum=1)
    trainer: str = flag("tftrain", choices=("tftrain", "megatron"))
    """Software that runs the job. tftrain: its plans come with commands. megatron: decoders by Megatron-LM."""
    memory_margin: float = flag(0.06, minimum=0, below=1)
    """Share of a device's memory that must stay free for a plan to fit. Published runs use 70 to 75 of 80 GB."""
    system: str | None = flag(None)
    """Software whose constants are used: a name that --list prints. By default encoder, or megatron with
    --trainer=megatron; on an H100 encoder_h100 or megatron_h100; on a CPU megatron_cpu, or tftrain_cpu on
    this_machine."""
    search: bool = flag(False, "List the layouts on at most --max_nodes nodes, the fastest first.", common=True)
    max_nodes: int | None = flag(None, "Largest number of nodes for --search; by default --nodes.", minimum=1)
    top: int = flag(20, "Lines that --search prints.", minimum=1)
    table: str | None = flag(None, "Compare with the published rows of this table, or of all; --list prints the names.")
    rows_file: str | None = flag(None, "Compare with the rows of a CSV file like those of the tables.", names="path")
    html: str = flag("", names="path", common=True)
    """File of HTML to which the plan, or the plan of the fastest layout of --search, is also written as one page."""
    format: str = flag("text", "Format of tables.", choices=("text", "csv", "md"))
    list: bool = flag(False, "Print the names of clusters, systems and tables.", common=True)
    measure: bool = flag(False, "Measure this machine: write --machine_file for --cluster=this_machine.", common=True)
    calibrate: bool = flag(False, "Fit the constants to the published rows, and print them with their errors.")

    def problems(self) -> "list[Problem]":
        """Returns the problems of these flags by themselves."""
        problems = field_problems(self)
        jobs = ("search", "table", "rows_file", "list", "measure", "calibrate")
        chosen = [name for name in jobs if getattr(self, name)]
        if len(chosen) > 1:
            problems.append(Problem(chosen[1], getattr(self, chosen[1]), f"remove this flag, or --{chosen[0]}"))
        if self.zero_stage in range(4) and self.trainer == "tftrain":
            flags = "--split_opt_state, --split_grad_accum or --split_weights"
            expected = f"remove this flag, and use {flags}; or add --trainer=megatron"
            problems.append(Problem("zero_stage", self.zero_stage, expected))
        return problems


@dataclass(frozen=True)
class PlanConfig(TrainConfig):
    """All flags: those of `tftrain.run`, and the planner's own."""

    plan: PlanFlags = PlanFlags()

    @property
    def train(self) -> TrainConfig:
        """The configuration of the planned run."""
        return TrainConfig(**{field.name: getattr(self, field.name) for field in dataclasses.fields(TrainConfig)})

    def run_problems(self, ranks: int) -> "list[Problem]":
        """Returns why the trainer refuses the run on so many ranks, apart from flags that a plan does without."""
        return [problem for problem in self.train.problems(ranks) if problem.flag not in NOT_NEEDED]

    @property
    def max_nodes(self) -> int:
        """Largest number of nodes for a search."""
        return self.plan.max_nodes or self.plan.nodes


def workload(config: PlanConfig, cluster: Cluster, software: type[Workload] = Workload) -> Workload:
    """Returns the workload that the flags describe, as `software` runs it.

    Raises a ConfigError if the flags contradict each other, or if the product of the division's sizes is not the number
    of devices.
    """
    plan, train, devices = config.plan, config.train, config.plan.nodes * cluster.per_node
    tp, pp = train.parallel.tensor_parallel_size, train.parallel.pipeline_parallel_size
    have = f"--nodes={plan.nodes} * {cluster.per_node} devices = {devices}"
    problems = _refusals(config, cluster, devices)
    if tp < 1 or pp < 1:
        raise ConfigError(problems)
    if devices % (tp * pp):
        expected = f"expected --tensor_parallel_size={tp} * --pipeline_parallel_size={pp} to divide {have}"
        flag_name, size = ("tensor_parallel_size", tp) if devices % tp else ("pipeline_parallel_size", pp)
        raise ConfigError([Problem(flag_name, size, expected)])
    dp = plan.data_parallel_size or devices // (tp * pp)
    if dp * tp * pp != devices:
        expected = f"expected {dp} * --tensor_parallel_size={tp} * --pipeline_parallel_size={pp} to be {have}"
        problems.append(Problem("data_parallel_size", dp, expected))
    if problems:
        raise ConfigError(problems)
    train = dataclasses.replace(train, batch=train.batch.resolve(dp))
    return software.adapted(from_config(train, dp, cluster.multiprocessors > 0, cluster.per_node), plan.zero_stage)


def of_phases(config: PlanConfig, cluster: Cluster) -> list[PlanConfig]:
    """Returns the configuration of each phase of the planned run, with the phase's own updates as max_steps.

    Raises a ConfigError if the flags of a phase contradict each other.
    """
    if not config.data.phases:
        return [config]
    devices = config.plan.nodes * cluster.per_node
    if problems := config.problems_of_phases(lambda own: own.run_problems(devices)):
        raise ConfigError(problems)

    def sized(own: PlanConfig) -> PlanConfig:
        dp = own.plan.data_parallel_size or own.parallel.data_parallel_size(devices)
        length = synthetic(own.data, own.model.vocab_size).max_seq_length
        sizes = {"max_seq_length": length, "fit_micro_batch": False}  # The micro-batch is fitted now.
        return changed(dataclasses.replace(own, batch=own.batch.resolve(dp)), sizes)

    whole = config.change_phases(sized)
    steps = map(len, whole.timeline.steps(config.run.max_steps))
    rates = dict.fromkeys(("warmup_steps", "decay_steps"))  # Those of the run may exceed the updates of a phase.
    planned = [changed(own, {"max_steps": n} | rates) for own, n in zip(whole.phases, steps, strict=True)]
    return [own for own in planned if own.run.max_steps]


def _refusals(config: PlanConfig, cluster: Cluster, ranks: int) -> list[Problem]:
    """Returns why the trainer refuses the run on so many ranks of a cluster, and other software the model."""
    problems = config.run_problems(ranks)
    if not cluster.multiprocessors:
        name = f"the cluster {cluster.name}"
        problems = joined(problems, combinations.check_host(config.model, config.compute, config.run.mode, name))
    if config.plan.trainer != "tftrain" and not config.model.is_causal:
        expected = "expected tftrain, or a decoder, such as --model_family=gpt"
        problems.append(Problem("trainer", config.plan.trainer, expected))
    return problems


def search_space(
    config: PlanConfig,
    cluster: Cluster,
    software: type[Workload] = Workload,
    ranks: int | None = None,
    named: Collection[str] = (),
) -> SearchSpace:
    """Returns the divisions that have the sizes which the flags fix.

    Args:
        software: what runs the job.
        ranks: the ranks of every division; if given, this trainer has more choices: pipeline schedules and sequence
            parallelism.
        named: flags whose values are fixed although they are the default.

    Raises:
        ConfigError: flags are wrong for every division, or the global batch is missing.
    """
    batch, parallel = config.batch, config.parallel
    # The search chooses the batch sizes. The parallel sizes in the flags always divide this number of ranks.
    divided = config.max_nodes * cluster.per_node * parallel.tensor_parallel_size * parallel.pipeline_parallel_size
    # As many micro-batches as stages, which every schedule can run.
    any_batch = BatchConfig(grad_accum_steps=max(1, parallel.pipeline_parallel_size))
    problems = _refusals(dataclasses.replace(config, batch=any_batch), cluster, divided) + field_problems(batch)
    if batch.global_batch_size is None:
        problems.append(Problem("global_batch_size", None, "expected the samples of an update"))
    problems = problems or ramp.problems(batch.batch_rampup, batch.global_batch_size, None, 1)
    if problems:
        raise ConfigError(problems)
    sizes = tuple(stage.batch_size for stage in batch.ramp.stages()[:-1])
    # Several micro-batches, so that the workload has the number format of accumulation.
    several = dataclasses.replace(batch, micro_batch_size=1, grad_accum_steps=2)
    train = dataclasses.replace(config.train, batch=several)
    work = from_config(train, 1, gpu=cluster.multiprocessors > 0, per_node=cluster.per_node)
    tries = ranks and software.runs_here
    schedules = SCHEDULES if tries and {"pipeline_schedule", "virtual_pipeline_size"}.isdisjoint(named) else ()
    is_named = "sequence_parallel" in named
    sequence_parallel = (parallel.sequence_parallel,) if is_named else (False, True) if tries else None
    choices = _fixed(config, ranks, named), schedules, sequence_parallel
    return SearchSpace(software.adapted(work, None), cluster, config.max_nodes, sizes, *choices)


def _fixed(config: PlanConfig, ranks: int | None, named: Collection[str]) -> dict[str, Any]:
    """Returns what the flags fix of a division; see `search_space`."""
    plan, values, free = config.plan, flag_values(config), flag_values(PlanConfig())
    sizes = {"tp": RANKS["tp"], "pp": RANKS["pp"], **PASSES}
    fixed = {name: values[flag] for name, flag in sizes.items() if values[flag] != free[flag] or flag in named}
    split = config.parallel.zero_stage or (0 if "split_opt_state" in named else None)
    others = {"ranks": ranks, "dp": plan.data_parallel_size}
    others["zero_stage"] = split if plan.zero_stage is None else plan.zero_stage
    return fixed | {name: value for name, value in others.items() if value is not None}
