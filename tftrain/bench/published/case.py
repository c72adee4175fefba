"""A published row scaled to this machine, and whether it fits."""

from typing import NamedTuple

from tftrain.bench.config import BenchConfig
from tftrain.bench.published import mapping
from tftrain.bench.published.local_machine import LocalMachine
from tftrain.bench.published.rows import Published
from tftrain.bench.published.scale import Scale, scaled
from tftrain.config import flags
from tftrain.config.fields import ConfigError
from tftrain.config.train import TrainConfig
from tftrain.plan import memory
from tftrain.plan.workload import Workload, from_config


class Case(NamedTuple):
    """A row as it runs on this machine.

    Attributes:
        published: the row.
        work: its scaled workload.
        flags: of tftrain.run, without those for its length and its output.
        note: differences between the row and this run.
    """

    published: Published
    work: Workload
    flags: list[str]
    note: str

    @property
    def sizes(self) -> str:
        """The sizes of the run in words."""
        work = self.work
        sizes = work.model
        model = f"{sizes.layers} x {sizes.width} with {sizes.attention_heads} heads, {sizes.vocab} words"
        batch = f"{work.micro_batch} x {work.seq} tokens x {round(work.micro_batches)}"
        return f"{model}; {batch}; dp {work.dp} x tp {work.tp} x pp {work.pp}"


def prepare(published: Published, size: Scale, ranks: int, config: BenchConfig) -> Case:
    """Returns a row as it runs at a scale on at most `ranks` ranks, with the program's cpu_threads and extra_flags."""
    work = scaled(published.row.workload, size, ranks)
    given = [*mapping.run_flags(work, published), *config.run_flags()]
    return Case(published, work, given, mapping.note(published, work))


def resolved(case: Case) -> TrainConfig:
    """Returns the resolved configuration of a case's flags on its ranks.

    Raises:
        ConfigError: the flags are wrong.
    """
    given = ["tftrain.run", *case.flags, "--output_dir=unused"]
    return flags.parse(TrainConfig, given).resolve(case.work.ranks)


def refusal(case: Case, machine: LocalMachine) -> str | None:
    """Returns the reason why a case does not fit this machine by its plan; None if it fits.

    Wrong flags are no reason here: the run reports them.
    """
    try:
        config = resolved(case)
    except ConfigError:
        return None
    planned = from_config(config, case.work.dp, gpu=machine.gpu)
    needed = memory.estimate(planned, machine.constants).minimum / 1e9
    if needed <= machine.gb:
        return None
    return f"does not fit here: {needed:.2f} of {machine.gb:.2f} GB a rank"
