"""This machine as the host of benchmark runs, and a published workload scaled down to it, its levers with their effect.

One factor holds for a whole table: it multiplies layers, width and the tokens of a batch. Heads keep their size. A
dimension shrinks only as far as the table's smallest row allows: to one layer a part of the pipeline, a head for each
tensor parallel rank, one sample. So rows that differ in a dimension still differ. If there cannot be fewer samples,
they become shorter. The vocabulary shrinks with layers and width together, so that the embedding keeps its share of
the weights.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from tftrain.bench import host
from tftrain.bench.published.row import PublishedRow
from tftrain.config.fields import changed
from tftrain.config.parallel import divisors
from tftrain.config.train import TrainConfig
from tftrain.host import hardware
from tftrain.plan import memory, reported_flops
from tftrain.plan.system import Constants, systems
from tftrain.plan.workload import Workload, from_config

RANKS = 4  # without GPUs, as in table levers
RANKS_OF_STAGES = 16  # the same for tables with pipelines
RESERVED_SHARE = 0.1  # share of a host's memory for other programs
CORE_FLOPS, GPU_FLOPS = 20e9, 20e12  # cautious: a core with AVX2 in fp32, a V100 in fp16

SMALLEST = 1 / 64
MAX_SECONDS = 4.0  # the longest step that --scale=auto plans
MICRO_BATCHES = 2  # accumulated at most, unless --scale=full: more of them repeat the same work
MICRO_BATCHES_OF_STAGES = 4  # the same for each stage of a pipeline, whose bubble depends on their number
SHORTEST, FEWEST_WORDS = 64, 256


class LocalMachine(NamedTuple):
    """Resources for a run."""

    ranks: int
    gb: float  # memory of each rank in 1e9 bytes
    flops: float  # operations a second of all ranks
    constants: Constants  # the planner's for this project on such a device
    gpu: bool  # whether the device is a GPU


def inspect(ranks: int | None, stages: bool = False) -> LocalMachine:
    """Returns the resources of this machine.

    If `ranks` is None, there is one rank for each GPU. Without GPUs there are `RANKS`, or `RANKS_OF_STAGES` if some
    runs have pipeline `stages`.
    """
    free = hardware.gpu_memory_gb("free")
    if free:
        ranks = ranks or len(free)
        share = min(free) / max(1, -(-ranks // len(free)))
        return LocalMachine(ranks, share, GPU_FLOPS * len(free), systems()["encoder"], True)
    ranks = ranks or (RANKS_OF_STAGES if stages else RANKS)
    gb = (1 - RESERVED_SHARE) * host.available_memory_gb() / ranks
    return LocalMachine(ranks, gb, CORE_FLOPS * host.threads(0), systems()["tftrain_cpu"], False)


class Scale(NamedTuple):
    """Shares of the published sizes, `tokens` of a sample's length; a requested factor of 1 changes only the ranks.

    The heads of every scaled row are a multiple of `heads`, so that rows of equal width stay equal.
    """

    factor: float
    layers: float
    width: float
    micro_batch: float
    tokens: float
    heads: int  # every scaled row has a multiple of them, so that rows of equal width stay equal

    def __str__(self) -> str:
        parts = (f"{name} {_share(value)}" for name, value in zip(self._fields[1:-1], self[1:-1], strict=True))
        return f"{_share(self.factor)} ({', '.join(parts)})"


def _share(value: float) -> str:
    return f"1/{1 / value:.3g}" if value < 1 else "1"


def of_table(factor: float, works: Sequence[Workload], ranks: int) -> Scale:
    """Returns the scale of a table with these rows for a factor and a number of ranks."""
    layers = max(factor, max(division(work, ranks)[2] * work.chunks / work.model.layers for work in works))
    heads = math.lcm(*(division(work, ranks)[1] for work in works))
    width = max(factor, heads / min(work.model.attention_heads for work in works))
    micro_batch = max(factor, 1 / min(work.micro_batch for work in works))
    tokens = max(factor / micro_batch, SHORTEST / min(work.seq for work in works))
    return Scale(factor, layers, min(1.0, width), micro_batch, tokens, heads)


def choose(flag: str, rows: Sequence[PublishedRow], machine: LocalMachine) -> Scale:
    """Returns the scale that `--scale` asks for: full, a factor, or auto.

    auto is the largest power of 1/2 with which every row of the table fits and takes a few seconds.
    """
    works = [row.workload for row in rows]
    if flag != "auto":
        return of_table(1.0 if flag == "full" else float(flag), works, machine.ranks)
    factor, most = 1.0, MAX_SECONDS * machine.flops
    while factor > SMALLEST:
        scale = of_table(factor, works, machine.ranks)
        small = [scaled(row, scale, machine.ranks)[1] for row in rows]
        if all(work_fits(work, machine) and reported_flops.reported(work, "exact") < most for work in small):
            break
        factor /= 2
    return of_table(factor, works, machine.ranks)


def work_fits(work: Workload, machine: LocalMachine) -> bool:
    """Whether the fullest rank of a workload fits the memory of a rank."""
    return memory.estimate(work, machine.constants).minimum <= machine.gb * 1e9


def scaled(row: PublishedRow, scale: Scale, ranks: int) -> tuple[TrainConfig, Workload]:
    """Returns a published row at a scale, as this project runs it on at most `ranks` ranks.

    A pipeline keeps its schedule, with stages of equal numbers of layers.
    """
    work, model = row.workload, row.workload.model
    dp, tp, pp = division(work, ranks)
    chunks = work.chunks if pp > 1 else 1
    parts = pp * chunks
    heads = model.attention_heads
    if scale.factor < 1:
        heads = max(1, _nearest(model.attention_heads * scale.width / scale.heads)) * scale.heads
    hidden = heads * model.block.attention.head_size
    words = max(FEWEST_WORDS, _nearest(model.vocab * scale.layers * scale.width))
    seq = 8 * max(1, _nearest(work.seq * scale.tokens / 8))
    micro_batch = max(1, _nearest(work.micro_batch * scale.micro_batch))
    micro_batches = round(work.micro_batches)
    if scale.factor < 1:
        micro_batches = min(micro_batches, MICRO_BATCHES_OF_STAGES * pp if work.pp > 1 else MICRO_BATCHES)
    if chunks > 1:
        micro_batches = pp * max(1, micro_batches // pp)  # which the interleaved schedule needs
    flags = {
        "num_hidden_layers": parts * max(1, _nearest(model.layers * scale.layers / parts)),
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "intermediate_size": model.inner // model.width * hidden,
        "vocab_size": min(model.vocab, words),
        "max_seq_length": seq,
        "micro_batch_size": micro_batch,
        "grad_accum_steps": micro_batches,
        "global_batch_size": micro_batch * micro_batches * dp,
        "tensor_parallel_size": tp,
        "pipeline_parallel_size": pp,
        "pipeline_schedule": work.schedule if pp > 1 else "1f1b",
        "virtual_pipeline_size": chunks,
        "sequence_parallel": work.sequence_parallel and tp > 1,
        "state_split_strategy": _owners(work, dp),
    }
    config = changed(row.config, flags)
    return config, from_config(config, dp)._replace(zero_stage=work.zero_stage)


def division(work: Workload, ranks: int) -> tuple[int, int, int]:
    """Returns the numbers of data, tensor and pipeline parallel ranks for a workload on at most `ranks` ranks.

    Sizes above 1 in the workload stay above 1 if possible, first the tensor parallel ranks, then the stages. The ratios
    of the sizes' logarithms stay about the same.
    """
    sizes = work.dp, work.tp, work.pp
    if work.ranks <= ranks:
        return sizes
    aims = [math.log(size) / math.log(work.ranks) * math.log(ranks) for size in sizes]
    candidates = (
        (ranks // (tp * pp), tp, pp)
        for tp in divisors(ranks)
        for pp in divisors(ranks // tp)
        if all((here > 1) <= (size > 1) for here, size in zip((ranks // (tp * pp), tp, pp), sizes, strict=True))
    )

    def distance(here: tuple[int, int, int]) -> tuple[int, bool, bool, float]:
        dp, tp, pp = ((size > 1) > (own > 1) for own, size in zip(here, sizes, strict=True))  # which kinds are lost
        return dp + tp + pp, tp, pp, sum((math.log(own) - aim) ** 2 for own, aim in zip(here, aims, strict=True))

    return min(candidates, key=distance)


def _owners(work: Workload, dp: int) -> str:
    """Returns the split strategy; K keeps its relative place between 1 and all ranks on a logarithmic scale."""
    name, _, owners = work.split_strategy.partition(":")
    if not owners:
        return name
    share = math.log(int(owners)) / math.log(work.dp) if work.dp > 1 else 0.0
    return f"{name}:{_nearest(dp**share)}"


def _nearest(value: float) -> int:
    return math.floor(value + 0.5)
