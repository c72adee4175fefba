"""Seconds of what travels between ranks: sums, transfers between stages, gathered weights, and how much is hidden.

Without ZeRO-3, gradients are summed after backward, or segment by segment beside it. With ZeRO-3 (arXiv 1910.02054;
FSDP, arXiv 2304.11277) a block's weights are gathered while the block before it computes, in forward and again in
backward, and its gradients are reduced to their owners while the next one computes.
"""

import math
from typing import NamedTuple

from tftrain.plan import inventory
from tftrain.plan.cluster import Cluster
from tftrain.plan.system import Constants
from tftrain.plan.workload import Workload


class Rates(NamedTuple):
    """Rates in bytes/s that a system reaches on a cluster."""

    memory: float  # a device's
    link: float  # collectives in a node, for each device
    network: float  # collectives between nodes, for each node


class PartSeconds(NamedTuple):
    """Seconds of one micro-batch's actions in a part of a model."""

    forward: float
    inputs: float  # backward for inputs, with recomputation
    weights: float  # backward for weights

    @property
    def backward(self) -> float:
        """Seconds of backward."""
        return self.inputs + self.weights


def rates(cluster: Cluster, constants: Constants) -> Rates:
    """Returns the rates that a system reaches on a cluster."""
    shares = (constants.memory_rate, constants.link_rate, constants.network_rate)
    of_sheet = (cluster.memory_gbs, cluster.link_gbs, cluster.network_gbs)
    return Rates(*(share * rate * 1e9 for share, rate in zip(shares, of_sheet, strict=True)))


def all_reduce(size: float, ranks: int, stride: int, cluster: Cluster, speed: Rates) -> float:
    """Returns the seconds of a ring all-reduce of `size` bytes over a group, while all groups of the cluster run one.

    Thakur et al., 2005; Patarasu and Yuan, 2009. In the node each rank sends 2 (r - 1) / r of the bytes over its link.
    Between k nodes, each node sends 2 (k - 1) / k of the bytes of each of its groups over the network they share.

    Args:
        ranks: of a group.
        stride: distance of neighbours in the group: 1 for tensor parallel ranks, tp for data parallel ranks.
    """
    if ranks == 1:
        return 0.0
    inside = max(1, min(ranks, cluster.per_node // stride))
    nodes = math.ceil(ranks / inside)
    seconds = 0.0
    if inside > 1:
        seconds += 2 * (inside - 1) / inside * size / speed.link
    if nodes > 1:
        groups = max(1, cluster.per_node // inside)
        seconds += 2 * (nodes - 1) / nodes * size * groups / speed.network + 2 * (nodes - 1) * cluster.network_latency
    return seconds


def transfer(size: float, cluster: Cluster) -> float:
    """Returns the seconds to send `size` bytes from every rank to the next stage; a node's ranks share its network.

    Stages on one node are planned over the network too, see docs/planner.md.
    """
    return cluster.per_node * size / (cluster.network_gbs * 1e9) + cluster.network_latency


def data_parallel_seconds(
    work: Workload, parts: tuple[PartSeconds, PartSeconds, PartSeconds], cluster: Cluster, constants: Constants
) -> float:
    """Returns the seconds by which sums over data parallel ranks, and gathered weights, make an update longer.

    `parts` has the seconds of block, embedding and head, as `tftrain.plan.timing.part_durations` returns them.
    """
    if not work.gradient_sums:
        return 0.0
    if work.gathers_blocks:
        return _block_by_block(work, parts, cluster, constants)
    weights, speed = inventory.weights(work), rates(cluster, constants)
    size = weights * inventory.wire_bytes(work)
    one = all_reduce(size, work.dp, work.tp, cluster, speed)
    gathered = all_reduce(weights * work.item, work.dp, work.tp, cluster, speed) / 2
    each = one / (2 if work.sums_to_owners else 1) + constants.sum_ms * 1e-3
    total = work.gradient_sums * each + (gathered if work.zero_stage else 0.0)
    if work.backward_segments == 1:
        return total
    # The sums of all segments but the last are hidden by the backward passes of the others.
    block, embedding, head = parts
    backward = work.model.layers * block.backward + embedding.backward + head.backward
    return total - (1 - 1 / work.backward_segments) * min(one / 2 if work.zero_stage else one, backward)


def _block_by_block(
    work: Workload, parts: tuple[PartSeconds, PartSeconds, PartSeconds], cluster: Cluster, constants: Constants
) -> float:
    """Returns the seconds that compute waits for ZeRO-3's gathers and reductions, with blocks gathered ahead.

    Nothing hides those of the embedding, which both ends need, and of the first block, and on a CPU, whose cores also
    send, nothing at all. FSDP's ZeRO-2 gathers weights once an update.
    """
    speed, block = rates(cluster, constants), parts[0] if cluster.multiprocessors else PartSeconds(0.0, 0.0, 0.0)
    of_block, layers = inventory.parts(work).block.weights, work.layers_of(0)
    of_ends = inventory.weights(work) - layers * of_block

    def half(weights: float, item: int) -> float:
        return all_reduce(weights * item, work.owners, work.tp, cluster, speed) / 2 + constants.wait_us * 1e-6

    gather, reduce = half(of_block, work.item), half(of_block, inventory.wire_bytes(work))
    hidden, exposed = layers - 1, gather if work.prefetch == 0 else 0.0
    forward = half(of_ends, work.item) + gather + hidden * max(exposed, gather - block.forward)
    again = gather if work.zero_stage == 3 else 0.0
    in_backward = max(0.0, again - exposed + reduce - block.backward) + exposed
    backward = half(of_ends, inventory.wire_bytes(work)) + reduce + hidden * in_backward
    rounds = work.micro_batches if work.zero_stage == 3 else 1.0
    # Ranks that hold the same shards sum them once an update.
    size = inventory.weights(work) * inventory.wire_bytes(work) / work.owners
    between = all_reduce(size, work.dp // work.owners, work.tp * work.owners, cluster, speed)
    return rounds * forward + work.micro_batches * (backward + constants.sum_ms * 1e-3) + between
