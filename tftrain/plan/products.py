"""Seconds of a matrix product by its shape: tiles, waves, alignment, and the memory's bound.

A GPU cuts the result into tiles, one for each multiprocessor at a time. Tiles at the edge take the time of whole tiles
(tile quantization), and the last wave of tiles that of a whole wave (wave quantization): NVIDIA, "Matrix multiplication
background user's guide". Tensor cores need operands whose rows begin at multiples of 16 bytes, vector units whole
vectors; with less alignment they are slower.
"""

import functools
import itertools
import math
from typing import NamedTuple

from tftrain.plan.cluster import Cluster

# (rows, columns, rate relative to the largest tile): smaller tiles read operands more often for the same work.
TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.94), (128, 64, 0.76), (64, 128, 0.76), (64, 64, 0.56))
SPLITS = (1, 2, 4, 8)  # the inner dimension is split where tiles alone do not fill the device
LEAST_INNER = 32  # a tile's main loop advances by so many elements


class Reach(NamedTuple):
    """What products reach on a cluster."""

    cluster: Cluster
    rate: float  # share of the peak that full waves of the largest tiles reach
    misaligned: float  # factor on the rate for each halving of the rows' alignment, for a single product
    misaligned_batch: float  # the same for many products in one launch
    bandwidth: float  # bytes/s that kernels reach


@functools.lru_cache(maxsize=1 << 16)
def seconds(reach: Reach, m: int, n: int, k: int, batch: int, item: int) -> float:
    """Returns the seconds of `batch` products [m, k] x [k, n] of numbers of `item` bytes."""
    cluster, rate, misaligned, misaligned_batch, bandwidth = reach
    traffic = batch * item * (m * k + k * n + m * n) / bandwidth
    lost = (misaligned if batch == 1 else misaligned_batch) ** missing_alignment(cluster.aligned, item, n, k)
    peak = cluster.peak(item) * rate * lost
    if not cluster.multiprocessors:
        return max(2.0 * m * n * k * batch / (peak * share_of_peak(cluster.curve, (m * n * k) ** (1 / 3))), traffic)
    per_unit = peak / cluster.multiprocessors
    best = math.inf
    for rows, columns, relative in TILES:
        tiles = batch * math.ceil(m / rows) * math.ceil(n / columns)
        for split in SPLITS:
            inner = math.ceil(k / split / LEAST_INNER) * LEAST_INNER
            if split > 1 and inner < 4 * LEAST_INNER:
                break
            waves = math.ceil(tiles * split / cluster.multiprocessors)
            extra = 0.0 if split == 1 else 2 * split * batch * 4 * m * n / bandwidth
            best = min(best, waves * 2.0 * rows * columns * inner / (per_unit * relative) + extra)
    return max(best, traffic)


def missing_alignment(aligned: int, item: int, *sizes: int) -> int:
    """Returns how many times `aligned` must be halved until it divides the lengths of all rows (in bytes)."""
    worst = min(math.gcd(size * item, aligned) for size in sizes)
    return int(math.log2(aligned // worst))


def share_of_peak(curve: tuple[tuple[float, float], ...], size: float) -> float:
    """Returns a CPU's share of its peak at a product's size: between measured sizes by the size's logarithm."""
    if not curve:
        return 1.0
    if size <= curve[0][0]:
        return curve[0][1]
    for (low, share), (high, next_share) in itertools.pairwise(curve):
        if size <= high:
            return share + (next_share - share) * math.log(size / low) / math.log(high / low)
    return curve[-1][1]
