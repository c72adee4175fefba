"""Seconds of collectives: rings in a node and between nodes (Thakur et al., 2005; Patarasu and Yuan, 2009)."""

import math

from tftrain.plan.cluster import Cluster


def all_reduce(
    size: float, ranks: int, stride: int, cluster: Cluster, link: float, network: float, latency: float = 0.0
) -> float:
    """Returns the seconds of a sum of `size` bytes over a group; all groups of the cluster are at it at once.

    In the node each rank sends 2 (r - 1) / r of the bytes over its link. Between k nodes, each node sends
    2 (k - 1) / k of the bytes of each of its groups over the network that they share.

    Args:
        size: bytes.
        ranks: of a group.
        stride: distance of neighbours in the group: 1 for tensor parallel ranks, tp for data parallel ones.
        cluster: the machine.
        link, network: bytes/s that collectives reach in the node for each device, and between nodes for each node.
        latency: seconds of each step of the ring.
    """
    if ranks == 1:
        return 0.0
    inside = max(1, min(ranks, cluster.per_node // stride))
    nodes = math.ceil(ranks / inside)
    found = 2 * (ranks - 1) * latency
    if inside > 1:
        found += 2 * (inside - 1) / inside * size / link
    if nodes > 1:
        groups = max(1, cluster.per_node // inside)
        found += 2 * (nodes - 1) / nodes * size * groups / network + 2 * (nodes - 1) * cluster.network_latency
    return found


def transfer(size: float, cluster: Cluster) -> float:
    """Returns the seconds of `size` bytes from every rank to one of the next stage; a node's ranks share its network.

    They do so between stages on one node too: see docs/planner.md.
    """
    return cluster.per_node * size / (cluster.network_gbs * 1e9) + cluster.network_latency
