"""Machines as data: what a device computes, moves and holds, and what connects devices and nodes.

Figures are data sheets' (NVIDIA V100, A100, H100 and H200 data sheets; Fujitsu A64FX data sheet); what of them software
reaches is a constant of `tftrain.plan.system`.
"""

import dataclasses
import re
from dataclasses import dataclass

from tftrain.fields import ConfigError, Problem


@dataclass(frozen=True)
class Cluster:
    """Equal nodes of equal devices.

    Attributes:
        name: of the cluster.
        memory_gb: of a device, less what driver or system keep, in the unit in which tools print it.
        unit: bytes of that unit.
        peak_fp32, peak_16bit: TFLOPs of matrix products.
        memory_gbs: 1e9 bytes/s that a device reads and writes.
        multiprocessors: which a wave of tiles fills; 0 on a CPU.
        per_node: devices.
        link_gbs: 1e9 bytes/s that a device sends to the others of its node.
        network_gbs: 1e9 bytes/s that a node sends to others.
        network_latency: seconds.
        aligned: bytes at whose multiples rows of matrices should begin.
        curve: pairs of a matrix product's size, the cube root of m n k, and its share of the peak; of a CPU.
    """

    name: str
    memory_gb: float
    unit: int
    peak_fp32: float
    peak_16bit: float
    memory_gbs: float
    multiprocessors: int
    per_node: int
    link_gbs: float
    network_gbs: float
    network_latency: float = 10e-6
    aligned: int = 16
    curve: tuple[tuple[float, float], ...] = ()

    def peak(self, item: int) -> float:
        """Returns operations a second for numbers of `item` bytes."""
        return 1e12 * (self.peak_fp32 if item == 4 else self.peak_16bit)


GIB = 2**30
A100 = Cluster("a100_80gb", 79.3, GIB, 156, 312, 2039, 108, 8, 300, 50)
CLUSTERS = {
    cluster.name: cluster
    for cluster in (
        A100,
        dataclasses.replace(A100, name="a100_80gb_8_links", network_gbs=100),
        dataclasses.replace(A100, name="a100_80gb_pcie", memory_gbs=1935, link_gbs=32),
        dataclasses.replace(A100, name="a100_40gb", memory_gb=39.4, memory_gbs=1555),
        Cluster("v100", 31.7, GIB, 15.7, 125, 900, 80, 8, 150, 25),
        Cluster("h100", 79.1, GIB, 494, 989, 3350, 132, 8, 450, 400),
        Cluster("h200", 139.8, GIB, 494, 989, 4800, 132, 8, 450, 400),
        Cluster("a64fx", 31.5, GIB, 6.144, 12.288, 1024, 0, 1, 0, 40.8, 2e-6, 64),
    )
}

# The cluster of a GPU by a part of the name that its driver gives it; the first part that occurs in a name counts.
BOARDS = (
    ("V100", "v100"),
    ("A100-SXM4-40GB", "a100_40gb"),
    ("A100-PCIE-40GB", "a100_40gb"),
    ("A100 80GB PCIe", "a100_80gb_pcie"),
    ("A100", "a100_80gb"),
    ("H100 80GB HBM3", "h100"),
    ("H200", "h200"),
)


def of_device(name: str) -> Cluster:
    """Returns the cluster of a GPU's name, such as "NVIDIA A100-SXM4-80GB".

    Raises:
        ConfigError: the planner does not know it.
    """
    for part, cluster in BOARDS:
        if re.search(rf"\b{part}\b", name):
            return CLUSTERS[cluster]
    expected = f"expected a GPU with one of {', '.join(part for part, _ in BOARDS)} in its name to plan its time"
    raise ConfigError([Problem("", name, expected)])
