"""This machine as the host of benchmark runs: number of ranks, memory of each rank, and a cautious compute rate."""

from typing import NamedTuple

from tftrain.bench import host
from tftrain.host import devices
from tftrain.plan.system import Constants, systems

RANKS = 4  # without GPUs, as in table levers
RANKS_OF_STAGES = 16  # the same for tables with pipelines
RESERVED_SHARE = 0.1  # of a host's memory, for other programs
UNKNOWN_GB = 4.0
CORE_FLOPS, GPU_FLOPS = 20e9, 20e12  # cautious: a core with AVX2 in fp32, a V100 in fp16


class LocalMachine(NamedTuple):
    """Resources for the ranks of a run.

    Attributes:
        ranks: number of ranks.
        gb: memory of each rank in 1e9 bytes.
        flops: operations a second of all ranks together.
        constants: the planner's for this project on such a device.
        gpu: whether ranks have GPUs.
    """

    ranks: int
    gb: float
    flops: float
    constants: Constants
    gpu: bool


def inspect(ranks: int | None, stages: bool = False) -> LocalMachine:
    """Returns the resources of this machine.

    With `ranks` None, there is one rank for each GPU; without GPUs `RANKS`, or `RANKS_OF_STAGES` if some runs have
    pipeline `stages`.
    """
    free = devices.gpu_memory_gb("free")
    if free:
        ranks = ranks or len(free)
        each = min(free) / max(1, -(-ranks // len(free)))
        return LocalMachine(ranks, each, GPU_FLOPS * len(free), systems()["encoder"], True)
    ranks = ranks or (RANKS_OF_STAGES if stages else RANKS)
    gb = (1 - RESERVED_SHARE) * (host.available_memory_gb() or UNKNOWN_GB) / ranks
    return LocalMachine(ranks, gb, CORE_FLOPS * host.threads(0), systems()["tftrain_cpu"], False)
