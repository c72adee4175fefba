"""Sections of `TrainConfig` that partition the global batch, the layers and the state, and their arithmetic."""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tftrain.config import ramp
from tftrain.config.fields import ConfigError, Problem, flag, refused, superfluous

PIPELINE_SCHEDULES = ("1f1b", "gpipe", "interleaved", "zero_bubble")
# Gradients are summed in buckets, each as soon as all its gradients exist. Buckets are small enough that the first is
# sent while backward still computes the last, and large enough that the network runs at its full rate.
BUCKET_BYTES = 32 * 2**20


@dataclass(frozen=True)
class BatchConfig:
    """Batch sizes: --global_batch_size is --micro_batch_size x --grad_accum_steps x data parallel ranks; give two."""

    ON_RESUME = "named"

    micro_batch_size: int | None = flag(None, minimum=1, on_resume="free", common=True)
    """Samples of one forward pass on one rank; by default 8 if no batch size is given."""
    grad_accum_steps: int | None = flag(None, minimum=1, on_resume="local")
    """Micro-batches whose gradients one update adds; by default it follows from the other two sizes, or is 1."""
    global_batch_size: int | None = flag(None, "Samples of one update over all ranks.", minimum=1, common=True)
    grad_accum_dtype: str = flag("fp32", choices=("fp32", "fp16", "bf16"), on_resume="logged")
    """Format in which the gradients of micro-batches are added; fp16 scales the loss."""
    batch_rampup: str = flag("none")
    """Growth of the global batch, as START:INCREMENT:SAMPLES: from START by INCREMENT at evenly spaced points of the
    first SAMPLES samples. The learning rate schedule then counts samples. Other sizes are of the full batch."""
    fit_micro_batch: bool = flag(False, on_resume="local")
    """Lower --micro_batch_size, on any number of ranks, to the largest size that divides a rank's share of
    --global_batch_size. An elastic launcher sets this flag."""

    @property
    def ramp(self) -> ramp.Ramp:
        """The batch sizes of the run's updates; the configuration must be resolved."""
        return ramp.read(self.batch_rampup, self.global_batch_size)

    def resolve(self, data_parallel_size: int) -> "BatchConfig":
        """Returns the configuration with all three sizes filled in; grad_accum_steps is for the full batch.

        `data_parallel_size` ranks share a global batch. Raises a ConfigError if the sizes contradict each other or do
        not divide, or if a batch ramp can't lead to them.
        """
        try:
            sized, wrong = self._with_sizes(data_parallel_size), []
        except ConfigError as error:
            sized, wrong = dataclasses.replace(self, micro_batch_size=None), list(error.problems)
        wrong += ramp.problems(self.batch_rampup, sized.global_batch_size, sized.micro_batch_size, data_parallel_size)
        if wrong:
            raise ConfigError(wrong)
        return sized

    def _with_sizes(self, data_parallel_size: int) -> "BatchConfig":
        micro, accum, total = self.micro_batch_size, self.grad_accum_steps, self.global_batch_size
        ranks = data_parallel_size
        if self.fit_micro_batch:
            micro = self._fitted(ranks)
        if total is None:
            micro, accum = micro or 8, accum or 1
            total = micro * accum * ranks
            return dataclasses.replace(self, micro_batch_size=micro, grad_accum_steps=accum, global_batch_size=total)
        if micro is None:
            accum = accum or 1
            micro = total // (accum * ranks)
        elif accum is None:
            accum = total // (micro * ranks)
        if micro * accum * ranks != total:
            sizes = {"--micro_batch_size": self.micro_batch_size, "--grad_accum_steps": self.grad_accum_steps}
            stated = {name: size for name, size in sizes.items() if size}
            step = math.prod(stated.values()) * ranks
            product = " x ".join([*(f"{name}={size}" for name, size in stated.items()), f"{ranks} data parallel ranks"])
            below = total // step * step
            fitting = " or ".join(str(size) for size in (below, below + step) if size > 0)
            expected = f"expected a multiple of {product}, such as {fitting}"
            if None not in sizes.values():
                expected = f"expected {product}, which is {step}"
            raise ConfigError([Problem("global_batch_size", total, expected)])
        return dataclasses.replace(self, micro_batch_size=micro, grad_accum_steps=accum)

    def _fitted(self, ranks: int) -> int:
        """Returns the largest micro-batch, up to the given one, that divides every global batch on all ranks."""
        if self.grad_accum_steps or not self.micro_batch_size or not self.global_batch_size:
            expected = (
                "expected --global_batch_size and --micro_batch_size without --grad_accum_steps, which follows from "
                "the number of ranks; an elastic launcher sets this flag"
            )
            raise ConfigError([Problem("fit_micro_batch", True, expected)])
        unit, left = divmod(ramp.unit(self.batch_rampup, self.global_batch_size), ranks)
        if left:
            sizes = "it" if self.batch_rampup == "none" else f"it and all sizes of --batch_rampup={self.batch_rampup}"
            expected = f"expected {sizes} to be divisible by {ranks} data parallel ranks"
            raise ConfigError([Problem("global_batch_size", self.global_batch_size, expected)])
        return max(size for size in range(1, self.micro_batch_size + 1) if unit % size == 0)


@dataclass(frozen=True)
class ParallelConfig:
    """How layers, optimizer state and gradients are partitioned over the ranks."""

    ON_RESUME = "free"

    tensor_parallel_size: int = flag(1, minimum=1, common=True)
    """Ranks over which every layer is partitioned. The ranks of a tensor parallel group process the same samples."""
    sequence_parallel: bool = flag(False)
    """Partition norms, dropouts and residuals over the tensor parallel ranks, by tokens (arXiv 2205.05198)."""
    pipeline_parallel_size: int = flag(1, "Pipeline stages, each with some of the layers.", minimum=1, common=True)
    pipeline_schedule: str = flag("1f1b", choices=PIPELINE_SCHEDULES)
    """Order of forwards and backwards in a pipeline. 1f1b: in turn. gpipe: all forwards first. interleaved: in turn,
    with several model chunks on each stage. zero_bubble: backward for inputs before backward for weights (ZB-H1, arXiv
    2401.10241)."""
    virtual_pipeline_size: int = flag(1, "Model chunks on each stage, with --pipeline_schedule=interleaved.", minimum=1)
    pipeline_split: str = flag("layers")
    """Layers of each pipeline stage. layers: equal numbers. flops: the most expensive stage is as cheap as possible. Or
    a list such as 3,4,4,1; with several model chunks, chunk c of stage s is number c * stages + s of the list."""
    group_transport: str = flag("auto", choices=("auto", "horovod", "tensorflow"))
    """Transport between tensor parallel ranks and pipeline stages; Horovod always sums gradients. tensorflow: without
    negotiation, but each rank listens at a port where every user of the run's hosts can run ops, and so can read and
    write your files: use it only on hosts that nobody else uses. auto: horovod."""
    backward_segments: int | None = flag(None, minimum=1)
    """Segments of the model whose gradients are summed over the ranks while the next segment is computed. By default
    one for every 32 MB, at most 8, if XLA compiles the step of several data parallel ranks; else 1."""
    split_opt_state: bool = flag(False, common=True)
    """Partition master weights and moments over the data parallel ranks (ZeRO-1, arXiv 1910.02054)."""
    split_grad_accum: bool = flag(False, "Also partition accumulated gradients (ZeRO-2); implies --split_opt_state.")
    split_weights: bool = flag(False)
    """Also partition the weights (ZeRO-3); implies --split_grad_accum. The weights of a block are gathered before it
    computes, in forward and in backward, and released afterwards."""
    prefetch_blocks: int = flag(1, minimum=0)
    """With --split_weights, blocks whose weights are gathered while the block before them computes."""
    split_group: str = flag("all", choices=("all", "host"))
    """With --split_weights, the data parallel ranks that partition state, gradients and weights. all: all of them.
    host: the ranks of each host; only sums of gradients travel between hosts."""
    state_split_strategy: str = flag("even")
    """Owners of the shards of the state. even: equal bytes of flat buckets. naive: whole tensors, layer i on rank i
    modulo ranks. greedy:K: whole tensors, the largest first on the emptiest of K ranks."""

    @property
    def splits_state(self) -> bool:
        """Whether master weights and moments are partitioned over ranks."""
        return self.zero_stage > 0

    @property
    def zero_stage(self) -> int:
        """What is partitioned over ranks: nothing (0), the state (1), gradients too (2), weights too (3)."""
        return 3 if self.split_weights else 2 if self.split_grad_accum else int(self.split_opt_state)

    @property
    def has_deferred_collectives(self) -> bool:
        """Whether backward is in halves, and each has sums over tensor parallel ranks in it."""
        stages = self.pipeline_parallel_size > 1
        return stages and self.pipeline_schedule == "zero_bubble" and self.tensor_parallel_size > 1

    def data_parallel_size(self, ranks: int) -> int:
        """Returns the number of data parallel ranks among `ranks` ranks."""
        return ranks // (self.tensor_parallel_size * self.pipeline_parallel_size)

    def problems(self, ranks: int, widths: Mapping[str, int]) -> Iterator[Problem]:
        """Yields why `ranks` ranks can't partition the work in this way, and its layers, whose widths are by flag."""
        size, stages = self.tensor_parallel_size, self.pipeline_parallel_size
        if size > 0 and ranks % size:
            expected = f"expected a divisor of the {ranks} ranks, such as {_nearest_divisors(ranks, size)}"
            yield Problem("tensor_parallel_size", size, expected)
        elif size > 0 and stages > 0 and ranks % (size * stages):
            nearest = _nearest_divisors(ranks // size, stages)
            shared = f"{ranks // size}, which is {ranks} ranks / --tensor_parallel_size={size}"
            yield Problem("pipeline_parallel_size", stages, f"expected a divisor of {shared}, such as {nearest}")
        in_stages = {
            "split_grad_accum": "summing the gradients of each micro-batch over the data parallel ranks would make "
            "every stage wait in each micro-batch",
            "split_weights": "every stage would gather its weights again for each micro-batch",
        }
        for name, why in in_stages.items():
            if stages > 1 and getattr(self, name):
                expected = f"expected --split_opt_state instead with --pipeline_parallel_size > 1: {why}"
                yield Problem(name, True, expected)
        if not self.split_weights:
            expected = "remove this flag, or add --split_weights"
            yield from superfluous(self, ("prefetch_blocks", "split_group"), expected)
        if self.group_transport == "tensorflow" and size == stages == 1:
            expected = "remove this flag, or add --tensor_parallel_size or --pipeline_parallel_size"
            yield Problem("group_transport", "tensorflow", expected)
        for name, width in widths.items():
            if size > 0 and width % size:
                yield Problem("tensor_parallel_size", size, f"expected a divisor of --{name}={width}")
        if wrong := self._wrong_strategy(self.data_parallel_size(ranks) if size > 0 and stages > 0 else None):
            yield refused(self, "state_split_strategy", wrong)

    def _wrong_strategy(self, data_ranks: int | None) -> str:
        """Returns what is expected instead of `state_split_strategy`, if it is wrong; None: the ranks are not known."""
        kind, _, owners = self.state_split_strategy.partition(":")
        if not re.fullmatch(r"even|naive|greedy:[1-9]\d*", self.state_split_strategy):
            return "expected even, naive, or greedy:K with K ranks, such as greedy:4"
        if kind != "even" and not self.splits_state:
            return "remove this flag, or add --split_opt_state or --split_grad_accum"
        if kind != "even" and self.split_group != "all":
            return f"expected even with --split_group={self.split_group}"
        if owners and data_ranks is not None and int(owners) > max(data_ranks, 1):
            return f"expected at most the {max(data_ranks, 1)} data parallel ranks"
        return ""


def divisors(number: int, most: int | None = None) -> list[int]:
    """Returns the divisors of a number up to `most`, ascending."""
    return [each for each in range(1, min(number, most or number) + 1) if number % each == 0]


def _nearest_divisors(number: int, size: int) -> str:
    """Returns the divisors of a number around a size that is none."""
    every = divisors(number)
    below, above = [each for each in every if each < size], [each for each in every if each > size]
    return " or ".join(map(str, below[-1:] + above[:1]))


def schedule_problems(schedule: str, stages: int, micro_batches: int, chunks: int) -> list[Problem]:
    """Returns why a pipeline schedule can't run these sizes; the micro-batches are those of a data parallel rank."""
    if schedule not in PIPELINE_SCHEDULES:
        return [Problem("pipeline_schedule", schedule, f"expected one of {', '.join(PIPELINE_SCHEDULES)}")]
    sizes = {"pipeline_parallel_size": (stages, ""), "virtual_pipeline_size": (chunks, "")}
    sizes[""] = micro_batches, " micro-batch"
    if problems := [Problem(name, size, f"expected at least 1{of}") for name, (size, of) in sizes.items() if size < 1]:
        return problems
    if chunks > 1 and schedule != "interleaved":
        expected = f"expected 1 with --pipeline_schedule={schedule}, or --pipeline_schedule=interleaved"
        return [Problem("virtual_pipeline_size", chunks, expected)]
    if schedule == "interleaved" and chunks > 1 and stages > 1 and micro_batches % stages:
        below = micro_batches // stages * stages
        nearest = " or ".join(str(size) for size in (below, below + stages) if size)
        expected = (
            f"expected the number of micro-batches to be a multiple of --pipeline_parallel_size={stages}, such as "
            f"{nearest}, not {micro_batches}"
        )
        return [Problem("pipeline_schedule", schedule, expected)]
    return []
