"""Bytes of the fullest rank, by kind.

State: 16-bit weights have fp32 masters, and every weight one or two fp32 moments. ZeRO (arXiv 1910.02054) divides
masters and moments (stage 1), gradients (2) and weights (3) by the data parallel ranks. Activations: the tensors that
the inventory of the parts saves for backward, times the micro-batches under way in a pipeline stage. With one forward,
one backward, the first of p stages begins p micro-batches before its first backward (arXiv 2104.04473).
"""

import functools
from typing import NamedTuple

from tftrain.number_formats import ITEM_BYTES
from tftrain.plan import inventory
from tftrain.plan.blocks import Kept, Part, total
from tftrain.plan.cluster import Cluster
from tftrain.plan.system import Constants
from tftrain.plan.workload import Workload

PLAIN_OPTIMIZER_BYTES = 8  # a weight: two fp32 temporaries, the update and its denominator
BUCKET = 2**26  # numbers that travel between ranks at a time


class Memory(NamedTuple):
    """Bytes of the fullest rank; the fields but `tensors` add up to `total`.

    Attributes:
        weights, master_weights, moments, gradients, accumulation: the state.
        checkpoint_copy: of master weights and moments, those that this rank writes.
        activations: all that backward needs, by tensor in `tensors`.
        temporaries: gradients in fp32 on their way through the optimizer, and what it makes of them.
        communication: buffers of sums over ranks.
        reserve: what is held before the model is built.
        fragmentation: free, but in pieces; an allocator gives it back in part before it fails.
        tensors: pairs of a tensor's name and its bytes in all blocks and micro-batches under way.
    """

    weights: float
    master_weights: float
    moments: float
    checkpoint_copy: float
    gradients: float
    accumulation: float
    activations: float
    temporaries: float
    communication: float
    reserve: float
    fragmentation: float
    tensors: tuple[tuple[str, float], ...]

    @property
    def total(self) -> float:
        """All of it."""
        return total(self[:-1])

    @property
    def least(self) -> float:
        """What it can't do without."""
        return self.total - self.fragmentation

    def peak_gb(self, cluster: Cluster) -> float:
        """Returns the peak in the cluster's unit: where pieces would not fit any more, they are given back."""
        limit = cluster.memory_gb * cluster.unit
        return max(self.least, min(self.total, limit)) / cluster.unit

    def fits(self, cluster: Cluster) -> bool:
        """Whether a device holds it."""
        return self.least <= cluster.memory_gb * cluster.unit


def estimate(work: Workload, constants: Constants) -> Memory:
    """Returns the memory of the fullest rank: of the first pipeline stage, or of the last with its logits."""
    one = inventory.one_block(work)
    return max((_stage(work, one, constants, stage) for stage in {0, work.pp - 1}), key=lambda found: found.total)


def _stage(work: Workload, one: Workload, constants: Constants, stage: int) -> Memory:
    first, last = stage == 0, stage == work.pp - 1
    under_way = min(work.pp - stage, work.micro_batches)
    weights = inventory.weights(work, first, last)
    owned = weights / (work.dp if work.zero_stage else 1)
    if work.zero_stage and work.split_strategy != "even":
        owned = _fullest_owner(work, weights)
    tensors, activations = _activations(one, work.layers / work.pp, under_way, first, last)
    half = work.precision != "fp32"
    # Undivided state is written by all data parallel ranks, a share each.
    written = owned if work.zero_stage else weights / work.dp
    # Gradients that add up in a buffer of their own are divided there, and whole before.
    divided = work.dp if work.zero_stage >= 2 else 1
    plain_update = 0 if "optimizer" in work.fused else PLAIN_OPTIMIZER_BYTES * owned
    return Memory(
        weights=weights * work.item / (work.dp if work.zero_stage == 3 else 1),
        master_weights=4 * owned if half or work.zero_stage else 0.0,
        moments=4 * work.moments * owned,
        checkpoint_copy=(4 + 4 * work.moments) * written if work.checkpoint_copy else 0.0,
        gradients=weights * work.item / (1 if work.accumulation else divided),
        accumulation=weights * ITEM_BYTES[work.accumulation] / divided if work.accumulation else 0.0,
        activations=activations,
        temporaries=(4 * owned if half else 0.0) + plain_update + constants.state_slack * weights,
        communication=min(weights, BUCKET) * ITEM_BYTES[work.wire] if work.dp > 1 else 0.0,
        reserve=constants.reserve_gb * 1e9,
        fragmentation=constants.fragmentation * activations,
        tensors=tensors,
    )


@functools.lru_cache(maxsize=1 << 14)
def _activations(
    work: Workload, layers: float, under_way: float, first: bool, last: bool
) -> tuple[tuple[tuple[str, float], ...], float]:
    """Returns the tensors that a stage keeps, and their bytes: the same for all divisions that differ in the rest."""
    block, embedding, head = inventory.parts(work)
    tensors = _kept(work, block, layers, under_way)
    if first:
        tensors += [(f"embedding: {kept.name}", under_way * kept.size) for kept in embedding.kept]
    # A block is computed again when the head is done with its own.
    again = [(f"one block: {kept.name}", kept.size) for kept in _once(work, block)]
    ends = [(f"head: {kept.name}", kept.size) for kept in head.kept] if last else []
    tensors += max(again, ends, key=_bytes)
    # Backward ends with the embedding, when nothing of the blocks is left.
    tensors = max(tensors, [("embedding: summands of the table's gradient", embedding.summands)], key=_bytes)
    return tuple(tensors), _bytes(tensors)


def _bytes(tensors: list[tuple[str, float]]) -> float:
    return total(size for _, size in tensors)


def _kept(work: Workload, block: Part, layers: float, under_way: float) -> list[tuple[str, float]]:
    """Returns what a stage's blocks keep from forward to backward."""
    if work.checkpointing == "full":
        return [("inputs of blocks", layers * under_way * block.entry)]
    once = _once(work, block)
    return [(kept.name, layers * under_way * kept.size) for kept in block.kept if kept not in once]


def _once(work: Workload, block: Part) -> list[Kept]:
    """Returns what is there for one block at a time, computed again when its backward begins."""
    if work.checkpointing == "none":
        return []
    return [kept for kept in block.kept if work.checkpointing == "full" or kept.core]


def _fullest_owner(work: Workload, weights: float) -> float:
    """Returns the weights whose state the fullest rank owns where whole tensors have owners.

    naive: layer i on rank i modulo ranks, and the embedding, the first, on rank 0. greedy:K: K ranks own about equal
    parts, or one of them the largest tensor.
    """
    if work.split_strategy == "naive":
        others = -(-(work.layers + 1) // work.dp) - 1
        block, embedding, _ = inventory.parts(work)
        return embedding.weights + others * block.weights
    owners = int(work.split_strategy.partition(":")[2])
    return max(work.vocab * work.hidden / work.tp, weights / owners)
