"""Machines as data: rates and memory of a device, links between devices, network between nodes.

The figures come from data sheets (NVIDIA V100, A100, H100 and H200; Fujitsu A64FX). The share of them that software
reaches is a constant of `tftrain.plan.system`. What data sheets and drivers call GB of memory is GiB: the "80 GB" of an
A100 are 85.9e9 bytes, of which a program can use 79.3 GiB, 85.1e9 bytes.
"""

import dataclasses
import re
from dataclasses import dataclass
from typing import NamedTuple

from tftrain.config.fields import ConfigError, Problem
from tftrain.host.units import GB_PER_GIB

CARDS = ("h100",)  # with constants of their own in `tftrain.plan.system`


@dataclass(frozen=True)
class Cluster:
    """Equal nodes of equal devices."""

    name: str  # name of the cluster
    memory_gb: float  # memory of a device in 1e9 bytes, without the memory that the driver or the system reserves
    peak_fp32: float  # TFLOPs of matrix products
    peak_16bit: float  # likewise
    memory_gbs: float  # memory bandwidth of a device in 1e9 bytes/s, reads and writes together
    multiprocessors: int  # number of a GPU's multiprocessors; 0 on a CPU
    per_node: int  # devices of a node
    link_gbs: float  # 1e9 bytes/s that a device sends to the other devices of its node
    network_gbs: float  # 1e9 bytes/s that a node sends to other nodes
    network_latency: float = 10e-6  # seconds of a message between nodes
    aligned: int = 16  # the alignment in bytes that matrix rows need for the full rate
    # On a CPU, pairs of the size of a matrix product, the cube root of m n k, and its share of the peak.
    curve: tuple[tuple[float, float], ...] = ()
    card: str = ""  # the kind of card, if the shares that software reaches on it are not those of an A100: one of CARDS

    def peak(self, item: int) -> float:
        """Returns the peak operations a second for numbers of `item` bytes."""
        return 1e12 * (self.peak_fp32 if item == 4 else self.peak_16bit)


class Peaks(NamedTuple):
    """Dense TFLOPs of a GPU's matrix products by number format; None if the GPU lacks the format."""

    fp32: float  # TF32 from A100 on: TensorFlow multiplies fp32 matrices in it
    fp16: float
    bf16: float | None


# NVIDIA's data sheets of the V100, A100, H100 and H200 Tensor Core GPUs. Figures with sparsity (the second one of A100,
# the only one of H100 and H200) are halved.
V100, V100_PCIE, V100S = Peaks(15.7, 125.0, None), Peaks(14.0, 112.0, None), Peaks(16.4, 130.0, None)
A100_PEAKS = Peaks(156.0, 312.0, 312.0)
H100, H100_PCIE, NVL = Peaks(494.5, 989.5, 989.5), Peaks(378.0, 756.0, 756.0), Peaks(417.5, 835.5, 835.5)

A100 = Cluster("a100_80gb", 79.3 * GB_PER_GIB, A100_PEAKS.fp32, A100_PEAKS.fp16, 2039, 108, 8, 300, 50)
A100_40 = dataclasses.replace(A100, memory_gb=39.4 * GB_PER_GIB, memory_gbs=1555)
CLUSTERS = {
    cluster.name: cluster
    for cluster in (
        A100,
        dataclasses.replace(A100, name="a100_80gb_8_links", network_gbs=100),
        dataclasses.replace(A100, name="a100_80gb_1600gbit", network_gbs=200),
        dataclasses.replace(A100, name="a100_80gb_pcie", memory_gbs=1935, link_gbs=32),
        dataclasses.replace(A100_40, name="a100_40gb"),
        dataclasses.replace(A100_40, name="a100_40gb_1600gbit", network_gbs=200),
        Cluster("v100", 31.7 * GB_PER_GIB, V100.fp32, V100.fp16, 900, 80, 8, 150, 25),
        Cluster("h100", 79.1 * GB_PER_GIB, H100.fp32, H100.fp16, 3350, 132, 8, 450, 400, card="h100"),
        Cluster("h200", 139.8 * GB_PER_GIB, H100.fp32, H100.fp16, 4800, 132, 8, 450, 400, card="h100"),
        Cluster("a64fx", 31.5 * GB_PER_GIB, 6.144, 12.288, 1024, 0, 1, 0, 40.8, 2e-6, 64),
    )
}


class Board(NamedTuple):
    """A GPU by a part of the name that its driver reports."""

    part: str  # whole words of that name
    peaks: Peaks
    cluster: str | None  # the one with such GPUs; None if there is none


# The first board whose `part` occurs in the name is used, so a specific board stands before its family.
BOARDS = (
    Board("V100S-PCIE", V100S, None),
    Board("V100-PCIE", V100_PCIE, "v100"),
    Board("V100", V100, "v100"),
    Board("A100-SXM4-40GB", A100_PEAKS, "a100_40gb"),
    Board("A100-PCIE-40GB", A100_PEAKS, "a100_40gb"),
    Board("A100 80GB PCIe", A100_PEAKS, "a100_80gb_pcie"),
    Board("A100", A100_PEAKS, "a100_80gb"),
    Board("A100X", A100_PEAKS, None),
    Board("H100 80GB HBM3", H100, "h100"),
    Board("H100 PCIe", H100_PCIE, None),
    Board("H100 NVL", NVL, None),
    Board("H100", H100, None),
    Board("H200 NVL", NVL, "h200"),
    Board("H200", H100, "h200"),
    Board("GH200", H100, None),
)


def board_of_device(name: str) -> Board | None:
    """Returns the board of a GPU's name, such as "NVIDIA A100-SXM4-80GB"; None if it is unknown."""
    return next((board for board in BOARDS if re.search(rf"\b{board.part}\b", name)), None)


def peak_tflops(device_name: str, precision: str) -> float | None:
    """Returns the peak rate of a GPU's dense matrix products in fp32, fp16 or bf16, in 1e12 operations a second.

    Returns None if `BOARDS` has no device of this name, which the driver gives, or if the device does not have the
    format.
    """
    board = board_of_device(device_name)
    return getattr(board.peaks, precision) if board else None


def of_device(name: str) -> Cluster:
    """Returns the cluster of a GPU's name, with the peak rates of its board.

    Raises a ConfigError if no cluster has such GPUs.
    """
    board = board_of_device(name)
    if board is None or board.cluster is None:
        known = ", ".join(board.part for board in BOARDS if board.cluster)
        raise ConfigError([Problem("", name, f"expected a GPU with one of {known} in its name to plan its time")])
    return dataclasses.replace(CLUSTERS[board.cluster], peak_fp32=board.peaks.fp32, peak_16bit=board.peaks.fp16)
