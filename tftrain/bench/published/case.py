"""A published row made ready to run here, and whether it can."""

import shlex
from typing import NamedTuple

from tftrain import flags
from tftrain.bench.config import BenchConfig
from tftrain.bench.published import mapping
from tftrain.bench.published.local_machine import LocalMachine
from tftrain.bench.published.rows import Published
from tftrain.bench.published.scale import Scale, scaled
from tftrain.config import TrainConfig
from tftrain.fields import ConfigError
from tftrain.plan import memory
from tftrain.plan.workload import Workload, from_config


class Case(NamedTuple):
    """A row as it runs here.

    Attributes:
        published: the row.
        work: it, scaled.
        flags: of tftrain.run, but for how long it runs and where it writes.
        note: what of the row a run here is not.
    """

    published: Published
    work: Workload
    flags: list[str]
    note: str

    @property
    def sizes(self) -> str:
        """In words, what runs."""
        work = self.work
        model = f"{work.layers} x {work.hidden} with {work.heads} heads, {work.vocab} words"
        batch = f"{work.micro_batch} x {work.seq} tokens x {round(work.micro_batches)}"
        return f"{model}; {batch}; dp {work.dp} x tp {work.tp}"


def prepare(published: Published, size: Scale, ranks: int, config: BenchConfig) -> Case:
    """Returns a row as it runs at a scale on at most so many ranks, with the program's cpu_threads and extra_flags."""
    work = scaled(published.row.workload, size, ranks)
    threads = [f"--cpu_threads={config.cpu_threads}"] if config.cpu_threads else []
    given = [*mapping.run_flags(work, published), *threads, *shlex.split(config.extra_flags)]
    return Case(published, work, given, mapping.note(published, work))


def resolved(case: Case) -> TrainConfig:
    """Returns the configuration that a case's flags make on its ranks.

    Raises:
        ConfigError: a run would refuse them.
    """
    given = ["tftrain.run", *case.flags, "--output_dir=unused"]
    return flags.parse(TrainConfig, given).resolve(case.work.ranks)


def refusal(case: Case, machine: LocalMachine) -> str | None:
    """Returns why a case does not fit here by the planner's count of what its flags need; None if it does.

    Flags that a run refuses are left to the run, which says why.
    """
    try:
        config = resolved(case)
    except ConfigError:
        return None
    planned = from_config(config, case.work.dp, gpu=machine.gpu)
    least = memory.estimate(planned, machine.constants).minimum / 1e9
    if least <= machine.gb:
        return None
    return f"does not fit here: {least:.2f} of {machine.gb:.2f} GB a rank"
