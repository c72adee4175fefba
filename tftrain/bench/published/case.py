"""A published row scaled to this machine: its flags of `tftrain.run`, what they cannot express, and whether it fits."""

from typing import NamedTuple

from tftrain.bench.config import BenchConfig, run_config
from tftrain.bench.published.row import PublishedRow
from tftrain.bench.published.scale import LocalMachine, Scale, scaled
from tftrain.config.fields import ConfigError
from tftrain.config.train import TrainConfig
from tftrain.plan import memory
from tftrain.plan.commands import given_flags
from tftrain.plan.workload import Workload, from_config


class Case(NamedTuple):
    """A row as it runs on this machine."""

    published: PublishedRow
    work: Workload  # the row's, scaled
    flags: list[str]  # those of tftrain.run, without those for its length and its output
    note: str  # what differs

    @property
    def sizes(self) -> str:
        """The sizes of the run in words."""
        work, model = self.work, self.work.model
        sizes = f"{model.layers} x {model.width} with {model.attention_heads} heads, {model.vocab} words"
        batch = f"{work.micro_batch} x {work.seq} tokens x {round(work.micro_batches)}"
        return f"{sizes}; {batch}; {_ranks(work)}"


def prepare(published: PublishedRow, size: Scale, ranks: int, config: BenchConfig) -> Case:
    """Returns a row as it runs at a scale on at most `ranks` ranks, with the program's cpu_threads and extra_flags."""
    scaled_config, work = scaled(published, size, ranks)
    given = ["--synthetic_data", *given_flags(scaled_config), *config.run_flags()]
    return Case(published, work, given, _note(published, work))


def resolved(case: Case) -> TrainConfig:
    """Returns the resolved configuration of a case's flags on its ranks.

    Raises a ConfigError if the flags are wrong.
    """
    return run_config([*case.flags, "--output_dir=unused"], case.work.ranks)


def refusal(case: Case, machine: LocalMachine) -> str | None:
    """Returns the reason why a case does not fit this machine by its plan; None if it fits.

    Wrong flags are not among the reasons, because the run itself reports them.
    """
    try:
        config = resolved(case)
    except ConfigError:
        return None
    needed = memory.estimate(from_config(config, case.work.dp, machine.gpu), machine.constants).minimum / 1e9
    return f"does not fit here: {needed:.2f} of {machine.gb:.2f} GB a rank" if needed > machine.gb else None


def _note(published: PublishedRow, work: Workload) -> str:
    """Returns the differences between row and scaled workload, the assumptions, and the source's own note."""
    whole, levers, notes = published.workload, published.levers, []
    if not whole.model.causal:
        notes.append("resource variables are on in every row: TensorFlow 2 has no others")
        if "tokenizer_type" in levers:
            notes.append("tokenizer_type is a flag of tftrain.prepare: a run's token ids are random and need none")
        if whole.compiled and (whole.grappler != "none" or "suppress_grappler" in levers):
            notes.append("Grappler's settings reach graph mode only, and XLA compiles this row")
        if work.split_strategy != whole.split_strategy:
            notes.append(f"{work.split_strategy} of {work.dp} ranks for {whole.split_strategy} of {whole.dp}")
    elif whole.ranks != work.ranks:
        times = f"{whole.ranks / work.ranks:.4g} times as many ranks there"
        notes.append(f"{_ranks(work)} for {_ranks(whole)}: {times}")
    if whole.dp > 1 and work.dp == 1:
        notes.append("no data parallel ranks are left here, so nothing is split over them")
    if published.checkpointing_unstated:
        notes.append(f"checkpointing is not stated: {whole.checkpointing} assumed")
    if published.table == "gpt_launch_blocking":
        notes.append("CUDA_LAUNCH_BLOCKING is the environment's, not a flag: rows that differ in it alone are the same")
    notes += [f"{what} not stated: assumed" for what in published.assumed]
    return "; ".join([*notes, *([f"source: {published.note}"] if published.note else [])])


def _ranks(work: Workload) -> str:
    return f"dp {work.dp} x tp {work.tp} x pp {work.pp}"
