"""Seconds of an update, by kind.

A pass over a part takes the device's time for products, kernels and sums over ranks, or the host's time to launch them,
whichever is longer. Under a pipeline, the schedule's table says when each stage computes which micro-batch
(`tftrain.schedules`). Then gradients are summed over the data parallel ranks, and the optimizer updates the weights.
"""

from typing import NamedTuple

from tftrain.architecture.architecture import COMPARED_ROWS
from tftrain.architecture.flops import kernels_of_block
from tftrain.config.optimizer import ORTHOGONAL_ITERATIONS
from tftrain.plan import inventory, products
from tftrain.plan.blocks import Inventory, Product
from tftrain.plan.cluster import Cluster
from tftrain.plan.system import Constants
from tftrain.plan.traffic import PartSeconds, Rates, all_reduce, data_parallel_seconds, rates, transfer
from tftrain.plan.workload import Workload
from tftrain.schedules import cost, simulation

# Bytes moved for a weight with two moments, all fp32: the update reads gradient, moments and master weight, and writes
# moments and master weight.
FUSED_UPDATE_BYTES = 28
COMPILED_UPDATE_BYTES = 52  # XLA fuses the ops between two norms into a kernel
PLAIN_UPDATE_BYTES = 100  # a dozen plain ops
MOMENT_BYTES = 8  # bytes of these for each moment
# Products of flash attention: two forward; five backward, one of them again, for the four of whole matrices.
FLASH_PASSES = (1.0, 1.25, 1.25)


class Span(NamedTuple):
    """Seconds by kind: of the device, and of the host at the same time."""

    products: float = 0.0
    kernels: float = 0.0
    sums: float = 0.0
    host: float = 0.0

    @property
    def total(self) -> float:
        """Seconds of the pass."""
        return max(self.products + self.kernels + self.sums, self.host)


class Passes(NamedTuple):
    """Forward, backward, and the forward pass of the attention core alone."""

    forward: Span
    backward: Span
    core: Span


class StepTime(NamedTuple):
    """Seconds of an update; the fields add up to `total`."""

    products: float  # as the next two, of the slowest stage's micro-batches with recomputation
    kernels: float
    tensor_sums: float
    host: float  # the time that the device waits for launches and for the start of micro-batches
    recomputation: float  # host time of checkpointing
    transfers: float  # between stages, as far as the slowest stage waits for them
    bubble: float  # the other time in which the slowest stage waits for other stages
    # Over data parallel ranks, as far as backward does not hide them; with ZeRO's gathering of weights, and the work of
    # a CPU around them.
    gradient_sums: float
    update: float  # optimizer
    first_pass: float = 0.0  # that of compared samples, see `first_pass_seconds`

    @property
    def total(self) -> float:
        """Seconds of the update."""
        return sum(self)


def passes(part: Inventory, work: Workload, cluster: Cluster, constants: Constants) -> Passes:
    """Returns the seconds of one micro-batch's passes over a part."""
    core = Inventory([p for p in part.products if p.core], [k for k in part.kernels if k.core])
    return Passes(*(_span(each, index, work, cluster, constants) for each, index in ((part, 0), (part, 1), (core, 0))))


def product_seconds(
    product: Product, work: Workload, cluster: Cluster, constants: Constants, chosen: slice = slice(None)
) -> float:
    """Returns the seconds of the chosen passes of a product: 0 is forward, 1 and 2 are gradients of the operands.

    Flash attention that has a rate of its own skips the tiles that a causal mask hides.
    """
    if product.core and work.core != "softmax" and constants.attention_rate:
        shown = (0.5 if work.model.causal else 1.0) * product.flops * sum(FLASH_PASSES[chosen])
        return shown / (cluster.peak(work.item) * constants.attention_rate)
    reach = _reach(cluster, constants)
    return sum(products.seconds(reach, *sizes, product.batch, work.item) for sizes in product.passes[chosen])


def _reach(cluster: Cluster, constants: Constants) -> products.Reach:
    memory = rates(cluster, constants).memory
    return products.Reach(cluster, constants.product_rate, constants.misaligned, constants.misaligned_batch, memory)


def _span(part: Inventory, index: int, work: Workload, cluster: Cluster, constants: Constants) -> Span:
    """Returns the seconds of the forward pass, 0, or of backward, 1."""
    speed, chosen = rates(cluster, constants), (slice(0, 1), slice(1, 3))[index]
    computed = sum(product_seconds(product, work, cluster, constants, chosen) for product in part.products)
    moved = sum(kernel[1 + index] for kernel in part.kernels if not kernel.share) / speed.memory
    for kernel in part.kernels:
        if kernel.share:
            moved += kernel[1 + index] / max(speed.memory, kernel.share * cluster.memory_gbs * 1e9)
    sums = part.sums[index]
    # Ranks on a CPU wait for the slowest one, the longer the more there is to compute between two sums.
    wait = (work.tp - 1) * (constants.wait_share * (computed + moved) or constants.wait_us * 1e-6 * len(sums))
    summed = sum(all_reduce(size, work.tp, 1, cluster, speed) for size in sums)
    launches = sum(kernel.launches[index] for kernel in part.kernels)
    return Span(computed, moved, summed + wait, launches * constants.launch_us * 1e-6 + wait)


# Seconds of products, kernels and sums in all passes over a part, and those that the device waits for the host.
_Seconds = tuple[float, ...]


@inventory.by_block
def _part_seconds(work: Workload, cluster: Cluster, constants: Constants) -> tuple[_Seconds, ...]:
    """Returns the seconds of block, embedding and head for one micro-batch, with recomputation."""
    parts = inventory.parts(work)
    block = passes(parts.block, work, cluster, constants)
    again = {"none": (), "selective": (block.core,), "full": (block.forward,)}[work.checkpointing]
    ends = [passes(part, work, cluster, constants)[:2] for part in (parts.embedding, parts.head)]
    every = ((block.forward, block.backward, *again), *ends)
    waits = [sum(span.total - sum(span[:3]) for span in spans) for spans in every]
    kinds = [[sum(span[kind] for span in spans) for kind in range(3)] for spans in every]
    return tuple((*three, wait) for three, wait in zip(kinds, waits, strict=True))


@inventory.by_block
def part_durations(work: Workload, cluster: Cluster, constants: Constants) -> tuple[PartSeconds, ...]:
    """Returns the seconds of one micro-batch's actions in block, embedding and head."""
    block = passes(inventory.parts(work).block, work, cluster, constants)
    launches = relaunch_seconds(work, constants)
    again = {"none": 0.0, "selective": block.core.total, "full": block.forward.total + launches}[work.checkpointing]
    durations = []
    for part, recomputed in zip(inventory.parts(work), (again, 0.0, 0.0), strict=True):
        forward, backward, _ = passes(part, work, cluster, constants)
        # Both operands of the products of the attention core are activations.
        products = [product for product in part.products if not product.core]
        weights = sum(product_seconds(product, work, cluster, constants, slice(2, 3)) for product in products)
        weights = min(weights, backward.total)
        durations.append(PartSeconds(forward.total, backward.total - weights + recomputed, weights))
    return tuple(durations)


def _pipeline_time(work: Workload, cluster: Cluster, constants: Constants) -> cost.PipelineTime:
    """Returns the seconds of the passes of all micro-batches, by the schedule's table."""
    block, embedding, head = part_durations(work, cluster, constants)
    kinds = []
    for kind in range(len(block)):
        parts = [layers * block[kind] for layers in work.layers_of_parts]
        parts[0] += embedding[kind]
        parts[-1] += head[kind]
        kinds.append(tuple(tuple(parts[stage :: work.pp]) for stage in range(work.pp)))
    one = transfer(work.rows * work.seq * work.model.width * work.item, cluster)
    durations = simulation.Durations(*kinds, constants.transfer * one)
    return cost.step_time(work.schedule, work.pp, round(work.micro_batches), work.chunks, durations)


def step(work: Workload, cluster: Cluster, constants: Constants, idles: bool = True) -> StepTime:
    """Returns the seconds of an update.

    Without `idles`, the idle time of pipeline stages is left out. The seconds are then a lower bound, which a search
    gets without the schedule's table.
    """
    block, embedding, head = _part_seconds(work, cluster, constants)
    speed, weights = rates(cluster, constants), inventory.weights(work)
    again = relaunch_seconds(work, constants) if work.checkpointing == "full" else 0.0
    layers, slowest = _slowest(work, block, embedding, head)
    micro_batches, bubble, transfers = work.micro_batches, 0.0, 0.0
    if idles and work.pp > 1:
        passed = _pipeline_time(work, cluster, constants)
        idle = passed.total - micro_batches * (layers * (sum(block) + again) + sum(slowest))
        bubble = max(0.0, idle - passed.transfers)
        transfers = idle - bubble
    *kinds, waits = (layers * inner + end for inner, end in zip(block, slowest, strict=True))
    return StepTime(
        *(micro_batches * seconds for seconds in kinds),
        micro_batches * (waits + constants.batch_ms * 1e-3),
        micro_batches * layers * again,
        transfers,
        bubble,
        data_parallel_seconds(work, part_durations(work, cluster, constants), cluster, constants)
        + weights * constants.gradient_ns * 1e-9,
        update_seconds(work, weights, speed) + orthogonal_seconds(work, cluster, constants) + constants.step_ms * 1e-3,
        first_pass_seconds(work, cluster, constants) if work.compares else 0.0,
    )


def first_pass_seconds(work: Workload, cluster: Cluster, constants: Constants) -> float:
    """Returns the seconds of compared samples: a pass without gradients, if there are two, and the loss.

    Of the loss, a rank computes each score of its own anchors and of its own candidates, and a product with each. Every
    score is written and read about six times.
    """
    speed, own, every = rates(cluster, constants), work.global_batch / work.dp, work.global_batch
    scores, candidates = own * every * (work.sequences - 1), every * (work.sequences - 1)
    rows, columns, width = min(round(own), COMPARED_ROWS), min(candidates, COMPARED_ROWS), work.model.config.vector_size
    reach, shapes = _reach(cluster, constants), ((columns, width), (width, columns))
    product = sum(products.seconds(reach, rows, *shape, 1, 4) for shape in shapes)
    loss = 2 * work.scorings * (scores / (rows * columns) * product + 6 * 4 * scores / speed.memory)
    loss += all_reduce(work.dp * work.vector_bytes, work.dp, work.tp, cluster, speed) / 2
    if not work.has_two_passes:
        return loss
    block, embedding, head = part_durations(work, cluster, constants)
    layers = max(map(work.layers_of, range(work.pp)))
    one = layers * block.forward + max(embedding.forward, head.forward)
    one = one + min(embedding.forward, head.forward) * (work.pp == 1) + constants.batch_ms * 1e-3
    if work.gathers_blocks:  # A GPU computes meanwhile.
        size = inventory.weights(work) * work.item
        gathers = all_reduce(size, work.owners, work.tp, cluster, speed) / 2
        one = max(one, gathers) if cluster.multiprocessors else one + gathers
    return loss + (work.micro_batches + work.pp - 1) * one


def _slowest(work: Workload, block: _Seconds, embedding: _Seconds, head: _Seconds) -> tuple[float, _Seconds]:
    """Returns the layers of the slowest pipeline stage, and the seconds of what it has beside them."""
    if work.pp == 1:
        return work.model.layers, tuple(map(sum, zip(embedding, head, strict=True)))
    # An inner stage has neither end, but it may have more layers.
    inner = max(map(work.layers_of, range(1, work.pp - 1)), default=0.0)
    stages = (work.layers_of(0), embedding), (work.layers_of(work.pp - 1), head), (inner, (0.0,) * 4)
    return max(stages, key=lambda each: each[0] * sum(block) + sum(each[1]))


def relaunch_seconds(work: Workload, constants: Constants) -> float:
    """Returns the host's seconds to launch a block's forward pass again; no device time hides them.

    The random state is restored before a block is recomputed, and the device waits for that.
    """
    return sum(kernel.launches[0] for kernel in inventory.parts(work).block.kernels) * constants.launch_us * 1e-6


def orthogonal_seconds(work: Workload, cluster: Cluster, constants: Constants) -> float:
    """Returns the seconds of Muon's iterations: three products each, of a matrix and its shorter side.

    Each rank of a sharded state has its share of the matrices; tensor parallel ranks gather theirs and all do the same.
    """
    if not work.orthogonal:
        return 0.0
    speed = rates(cluster, constants)
    reach = _reach(cluster, constants)
    item, one_block = 2 if cluster.multiprocessors else 4, 0.0
    for shape in kernels_of_block(work.model):
        short, long = sorted(shape)
        sizes = (short, short, long), (short, short, short), (short, long, short)
        one_block += ORTHOGONAL_ITERATIONS * sum(products.seconds(reach, *each, 1, item) for each in sizes)
        one_block += all_reduce(4 * short * long, work.tp, 1, cluster, speed) / 2
    return one_block * work.layers_of(0) / work.owners


def update_seconds(work: Workload, weights: float, speed: Rates) -> float:
    """Returns the seconds of the optimizer's memory traffic."""
    owned = weights / work.owners
    plain = COMPILED_UPDATE_BYTES if work.compiled else PLAIN_UPDATE_BYTES
    moved = FUSED_UPDATE_BYTES if "optimizer" in work.fused else plain
    return owned * (moved - (2 - work.moments) * MOMENT_BYTES) / speed.memory
