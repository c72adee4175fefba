"""Bytes of the fullest rank, by kind.

State: 16-bit weights have fp32 masters, and every weight one or two fp32 moments. ZeRO (arXiv 1910.02054) partitions
masters and moments (stage 1), gradients (2) and weights (3) over the data parallel ranks; with stage 3, two blocks at a
time have their weights and gradients whole.

Activations: the tensors that the inventory of the parts saves for backward, times the micro-batches under way in a
pipeline stage. The schedule's table (`tftrain.schedules`) has their number.
"""

import functools
from typing import NamedTuple

from tftrain.architecture.architecture import COMPARED_ROWS
from tftrain.architecture.flops import kernels_of_block
from tftrain.host.units import GB, ITEM_BYTES
from tftrain.plan import inventory
from tftrain.plan.blocks import Inventory, SavedTensor
from tftrain.plan.cluster import Cluster
from tftrain.plan.system import Constants
from tftrain.plan.workload import Workload
from tftrain.schedules import cost
from tftrain.schedules.table import Peak

PLAIN_OPTIMIZER_BYTES = 8  # a weight: two fp32 temporaries, the update and its denominator
# A weight of the largest tensor, as whole tensors are updated one by one: gradient, moments, direction and next weight.
PLAIN_TENSOR_BYTES = 20
BUCKET = 2**26  # numbers that travel between ranks at a time
SCORES = 3 * 4 * COMPARED_ROWS**2  # bytes of scores and exponentials of a tile, see `tftrain.tasks.in_batch_loss`


class Memory(NamedTuple):
    """Bytes of the fullest rank; the fields but `tensors` add up to `total`."""

    weights: float
    master_weights: float
    moments: float
    checkpoint_copy: float  # copies of the master weights and moments that this rank writes
    gathered: float  # weights that ZeRO-3 has whole, and their gradients
    gradients: float
    accumulation: float
    activations: float  # tensors saved for backward, one by one in `tensors`
    vectors: float  # vectors of the compared samples of a global batch, and their gradients
    temporaries: float  # the optimizer's, and fp32 gradients, unless the update reads those of 16 bits as they are
    communication: float  # buffers of sums over ranks
    reserve: float  # memory in use before the model is built
    fragmentation: float  # free memory in pieces; the allocator releases a part of it before it fails
    # Pairs of a tensor's name and its bytes in all blocks and micro-batches under way.
    tensors: tuple[tuple[str, float], ...]

    @property
    def total(self) -> float:
        """The sum over all kinds."""
        return sum(self[:-1])

    @property
    def minimum(self) -> float:
        """The total without fragmentation."""
        return self.total - self.fragmentation

    def on(self, cluster: Cluster) -> "Memory":
        """Returns the memory with the fragmentation that a device has space for; its total is the peak."""
        free = max(0.0, cluster.memory_gb * GB - self.minimum)
        return self._replace(fragmentation=min(self.fragmentation, free))

    def fits(self, cluster: Cluster, margin: float = 0.0) -> bool:
        """Whether a device has that much memory, and a share of it, `margin`, left."""
        return self.minimum <= (1 - margin) * cluster.memory_gb * GB


def estimate(work: Workload, constants: Constants) -> Memory:
    """Returns the memory of the fullest rank. If stages are equal, only the first and the last are looked at."""
    stages = range(work.pp) if work.division else {0, work.pp - 1}
    return max((_stage(work, constants, stage) for stage in stages), key=lambda found: found.total)


def _stage(work: Workload, constants: Constants, stage: int) -> Memory:
    first, last = stage == 0, stage == work.pp - 1
    under_way = Peak(work.chunks, (1,) * work.chunks)  # micro-batches whose activations it holds, of each of its chunks
    if work.pp > 1:
        under_way = cost.peak(work.schedule, stage, work.pp, round(work.micro_batches), work.chunks)
    weights = inventory.weights(work, stage)
    with_state = weights - inventory.copied_weights(work, stage)
    owned = with_state / work.owners
    if work.zero_stage and work.split_strategy != "even":
        owned = _fullest_owner(work, with_state)
    elif work.zero_stage and work.orthogonal:  # Muon's matrices have one owner each, the largest first.
        kernels = [rows * columns / work.tp for rows, columns in kernels_of_block(work.model)]
        matrices = work.layers_of(stage) * sum(kernels)
        owned = (with_state - matrices) / work.owners + max(*kernels, matrices / work.owners)
    tensors, activations = _activations(work, work.layers_of(stage) / work.chunks, under_way, first, last)
    held = held_by_stages(work, stage) if work.pp > 1 else _lost_pieces(work, constants)
    tensors, activations = (*tensors, *held), activations + _bytes(held)
    # Gradients that are shards in fp32 count as widened ones, if there are any.
    shares, widened = work.sharded_masters, work.widens_gradients
    # Every data parallel rank writes a share of whole state.
    written = owned if work.zero_stage else with_state / work.dp
    divided = work.owners if work.zero_stage >= 2 else 1  # ZeRO-2 partitions the accumulation buffer.
    gradients = 0.0 if shares and widened else weights * work.item / (1 if work.whole_gradients else divided)
    accumulation = weights * ITEM_BYTES[work.accumulation] / divided if work.accumulation else 0.0
    largest = work.model.word.size / work.tp if first and not work.zero_stage else 0.0
    plain_update = max(PLAIN_OPTIMIZER_BYTES * owned, PLAIN_TENSOR_BYTES * largest)
    plain_update = 0.0 if "optimizer" in work.fused else plain_update
    return Memory(
        weights=0.0 if shares else weights * work.item / (work.owners if work.zero_stage == 3 else 1),
        master_weights=4 * owned if work.precision != "fp32" or work.zero_stage else 0.0,
        moments=4 * work.moments * owned,
        checkpoint_copy=(4 + 4 * work.moments) * written * work.checkpoint_copies,
        gathered=gathered(work, weights) if work.zero_stage == 3 or shares else 0.0,
        gradients=gradients,
        accumulation=accumulation,
        activations=activations,
        vectors=_vectors(work, activations + gradients + accumulation) if last else 0.0,
        temporaries=(4 * owned if widened else 0.0) + plain_update + constants.state_slack * weights,
        communication=_buffers(work, weights, owned),
        reserve=(constants.reserve_gb + constants.transport_gb * (work.ranks > 1 and not work.zero_stage)) * GB,
        fragmentation=constants.fragmentation * activations,
        tensors=tensors,
    )


def _vectors(work: Workload, of_micro_batch: float) -> float:
    """Returns the bytes of compared vectors beside the most that the micro-batches need at a time.

    The second pass holds the gradients of this rank's vectors. Between the passes there is nothing of a micro-batch,
    but the vectors of all ranks, those of this rank with their gradients, of which the last half is there twice as
    chunks become one tensor, and a chunk of scores. A CPU's heap has a micro-batch's memory in pieces too small for it.
    """
    own = work.vector_bytes
    if not own:
        return 0.0
    scores = min(SCORES, 3 * 4 * work.global_batch**2 / work.dp)
    between = (work.dp * own if work.dp > 1 else 0.0) + 2.5 * own + scores
    if not (work.has_two_passes and work.gpu):  # The activations are there.
        return between
    return max(own, between - of_micro_batch)


@functools.singledispatch
def gathered(work: Workload, weights: float) -> float:
    """Returns the bytes of weights that are whole on each rank though ZeRO partitions them, and of their gradients.

    They are the weights of the part that computes and of those that are gathered ahead, and the gradients of this part
    and of the one before.
    """
    one_block = inventory.parts(work).block.weights
    computing = max(one_block, weights - work.layers_of(0) * one_block)
    return work.item * (min(weights, work.prefetch * one_block + computing) + min(weights, one_block + computing))


def _lost_pieces(work: Workload, constants: Constants) -> list[tuple[str, float]]:
    """Returns the free memory in pieces that the inputs of recomputed blocks keep apart, too small for what follows."""
    inputs = work.model.layers * inventory.parts(work).block.entry if work.checkpointing == "full" else 0.0
    lost = constants.lost_pieces * inputs
    return [("free memory between the inputs of blocks", lost)] if lost else []


@functools.singledispatch
def held_by_stages(work: Workload, stage: int) -> list[tuple[str, float]]:
    """Returns what this trainer's pipeline stages hold beside the activations that the schedule counts.

    Backward of a part frees nothing before its end, where it has the part's gradients too. Runs needed six tenths of a
    micro-batch's activations for this, recomputed ones as well. Backward in halves keeps the gradients of all products'
    outputs until the second half.
    """
    block, layers = inventory.parts(work).block, work.layers_of(stage)
    whole = _bytes(saved_by_blocks(work._replace(checkpointing="none"), block, layers, 1))
    if work.sequence_parallel:  # The inputs of both halves of a block and the gradients of both sums, gathered.
        whole += layers * 4 * work.rows * work.seq * work.model.width * work.item
    tensors = [("activations of a part until its backward ends", 0.6 * whole)]
    if work.schedule == "zero_bubble":
        outputs = sum(each.m * each.n * each.batch for each in block.products if not each.core) * work.item
        waiting = 1 + min(stage, round(work.micro_batches))
        tensors.append(("gradients of products before backward for weights", waiting * layers * outputs))
    return tensors


@inventory.by_block
def _activations(
    work: Workload, layers: float, under_way: Peak, first: bool, last: bool
) -> tuple[tuple[tuple[str, float], ...], float]:
    """Returns the tensors that a stage with `layers` blocks in each chunk saves, and their bytes."""
    block, embedding, head = inventory.parts(work)
    tensors = saved_by_blocks(work, block, layers, under_way.total)
    if first:
        tensors += [(f"embedding: {saved.name}", under_way.of_chunks[0] * saved.size) for saved in embedding.saved]
    # A block is recomputed after the head has freed its tensors.
    again = [(f"one block: {saved.name}", saved.size) for saved in _once(work, block)]
    ends = [(f"head: {saved.name}", saved.size) for saved in head.saved] if last else []
    tensors += max(again, ends, key=_bytes)
    # Backward ends with the embedding, after the blocks have freed theirs.
    tensors = max(tensors, [("embedding: summands of the table's gradient", embedding.summands)], key=_bytes)
    return tuple(tensors), _bytes(tensors)


def _bytes(tensors: list[tuple[str, float]]) -> float:
    return sum((size for _, size in tensors), 0.0)


def saved_by_blocks(work: Workload, block: Inventory, layers: float, under_way: float) -> list[tuple[str, float]]:
    """Returns the tensors that a stage's blocks save from forward to backward, with their bytes."""
    if work.checkpointing == "full":
        return [("inputs of blocks", layers * under_way * block.entry)]
    once = _once(work, block)
    return [(saved.name, layers * under_way * saved.size) for saved in block.saved if saved not in once]


def _once(work: Workload, block: Inventory) -> list[SavedTensor]:
    """Returns the tensors that exist for one block at a time: those recomputed at the start of its backward."""
    if work.checkpointing == "none":
        return []
    return [saved for saved in block.saved if work.checkpointing == "full" or saved.core]


def _buffers(work: Workload, weights: float, owned: float) -> float:
    """Returns the bytes of the buffers of sums over data parallel ranks.

    An owner of whole tensors receives equal parts from all ranks, as with `even`, and then the sums
    that it owns, in fp32.
    """
    if work.dp == 1:
        return 0.0
    received = 4 * min(owned, BUCKET) if work.owns_tensors else 0.0
    return min(weights, BUCKET) * inventory.wire_bytes(work) + received


def _fullest_owner(work: Workload, weights: float) -> float:
    """Returns the weights whose state the fullest rank owns under a strategy that assigns whole tensors.

    naive: layer i is on rank i modulo ranks, and the embedding, the first layer, on rank 0. greedy:K: K ranks own about
    equal shares, unless the largest tensor is larger than a share; then its owner is the fullest.
    """
    if work.split_strategy == "naive":
        others = -(-(work.model.layers + 1) // work.dp) - 1
        block, embedding, _ = inventory.parts(work)
        return embedding.weights + others * block.weights
    return max(work.model.word.size / work.tp, weights / int(work.split_strategy.partition(":")[2]))
