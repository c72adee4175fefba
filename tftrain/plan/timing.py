"""Seconds of an update, by kind.

A pass over a part takes as long as the device needs for its products, kernels and sums over ranks, or as long as the
host needs to launch them, whichever is longer. An update of m micro-batches takes the slowest pipeline stage m - 1
times and every stage once (one forward, one backward: Narayanan et al., arXiv 2104.04473); then gradients are summed
over the data parallel ranks, and weights updated.
"""

import functools
from typing import NamedTuple

from tftrain.number_formats import ITEM_BYTES
from tftrain.plan import collectives, inventory, products
from tftrain.plan.blocks import Part, Product
from tftrain.plan.cluster import Cluster
from tftrain.plan.system import Constants
from tftrain.plan.workload import Workload

# Bytes moved for a weight with two moments: gradient, moments and master weight are read, moments and master weight
# written, all fp32.
FUSED_UPDATE_BYTES = 28
COMPILED_UPDATE_BYTES = 52  # XLA makes a kernel of what is between two norms
PLAIN_UPDATE_BYTES = 100  # a dozen plain ops
MOMENT_BYTES = 8  # of these, for each moment


class Span(NamedTuple):
    """Seconds by kind: the device's, and the host's beside it."""

    products: float = 0.0
    kernels: float = 0.0
    sums: float = 0.0
    host: float = 0.0

    @property
    def total(self) -> float:
        """What they take together."""
        return max(self.products + self.kernels + self.sums, self.host)


class Passes(NamedTuple):
    """Forward, backward, and the forward pass of the attention core alone."""

    forward: Span
    backward: Span
    core: Span


class Rates(NamedTuple):
    """What a system reaches of a cluster: bytes/s of a device's memory, its links and a node's network."""

    memory: float
    link: float
    network: float


class StepTime(NamedTuple):
    """Seconds of an update; the fields add up to `total`.

    Attributes:
        products, kernels, tensor_sums: of the slowest stage's micro-batches, recomputation included.
        host: what the device waits for launches and for the start of micro-batches.
        recomputation: host time of checkpointing.
        transfers: between stages.
        bubble: of the pipeline.
        gradient_sums: over data parallel ranks, with the weights that ZeRO gathers, and what a CPU does around it.
        update: optimizer.
    """

    products: float
    kernels: float
    tensor_sums: float
    host: float
    recomputation: float
    transfers: float
    bubble: float
    gradient_sums: float
    update: float

    @property
    def total(self) -> float:
        """All of it."""
        return sum(self)


def rates(cluster: Cluster, constants: Constants) -> Rates:
    """Returns the rates of bytes."""
    return Rates(
        constants.memory_rate * cluster.memory_gbs * 1e9,
        constants.link_rate * cluster.link_gbs * 1e9,
        constants.network_rate * cluster.network_gbs * 1e9,
    )


def passes(part: Part, work: Workload, cluster: Cluster, constants: Constants) -> Passes:
    """Returns the seconds of one micro-batch's passes over a part."""
    core = Part([p for p in part.products if p.core], [k for k in part.kernels if k.core])
    spans = [
        _span(part, index, work, cluster, constants, chosen)
        for part, index, chosen in ((part, 0, slice(0, 1)), (part, 1, slice(1, 3)), (core, 0, slice(0, 1)))
    ]
    return Passes(*spans)


def product_seconds(
    product: Product, work: Workload, cluster: Cluster, constants: Constants, chosen: slice = slice(None)
) -> float:
    """Returns the seconds of some of a product's passes: forward, and the gradients of its operands."""
    bandwidth = rates(cluster, constants).memory
    reach = (cluster, constants.product_rate, constants.misaligned, constants.misaligned_batch, bandwidth)
    return sum(products.seconds(*reach, *sizes, product.batch, work.item) for sizes in product.passes[chosen])


def _span(part: Part, index: int, work: Workload, cluster: Cluster, constants: Constants, chosen: slice) -> Span:
    speed = rates(cluster, constants)
    computed = sum(product_seconds(product, work, cluster, constants, chosen) for product in part.products)
    moved = sum(kernel[1 + index] for kernel in part.kernels) / speed.memory
    sums = part.sums[index]
    wait = constants.wait_us * 1e-6 * (work.tp - 1) * len(sums)
    summed = sum(collectives.all_reduce(size, work.tp, 1, cluster, speed.link, speed.network) for size in sums)
    launches = sum(kernel.launches[index] for kernel in part.kernels)
    return Span(computed, moved, summed + wait, launches * constants.launch_us * 1e-6 + wait)


class _Taken(NamedTuple):
    """Seconds of all passes over a part: by kind, and what the device waits for the host."""

    products: float
    kernels: float
    sums: float
    waits: float

    def plus(self, other: "_Taken") -> "_Taken":
        return _Taken(*map(sum, zip(self, other, strict=True)))


@functools.lru_cache(maxsize=1 << 14)
def _taken(work: Workload, cluster: Cluster, constants: Constants) -> tuple[_Taken, ...]:
    """Returns what block, embedding and head take for one micro-batch, recomputation included."""
    found = inventory.parts(work)
    block = passes(found.block, work, cluster, constants)
    again = {"none": (), "selective": (block.core,), "full": (block.forward,)}[work.checkpointing]
    ends = [passes(part, work, cluster, constants)[:2] for part in (found.embedding, found.head)]
    return tuple(
        _Taken(*(sum(span[kind] for span in spans) for kind in range(3)), sum(s.total - sum(s[:3]) for s in spans))
        for spans in ((block.forward, block.backward, *again), *ends)
    )


def step(work: Workload, cluster: Cluster, constants: Constants) -> StepTime:
    """Returns the seconds of an update."""
    block, embedding, head = _taken(inventory.one_block(work), cluster, constants)
    speed, weights = rates(cluster, constants), inventory.weights(work, last=work.pp == 1)
    again = relaunch_seconds(work, constants) if work.checkpointing == "full" else 0.0
    layers, micro_batches = work.layers / work.pp, work.micro_batches
    stage = layers * (sum(block) + again)
    first, last = stage + sum(embedding), stage + sum(head)
    moved = work.micro_batch * work.seq * work.hidden * work.item
    one = collectives.transfer(moved, cluster) if work.pp > 1 else 0.0
    if work.pp == 1:
        slowest = embedding.plus(head)
        longest = every = stage + sum(slowest)
    else:
        slowest, longest = (head, last) if last >= first else (embedding, first)
        every = first + last + (work.pp - 2) * stage
    *kinds, waits = (layers * inner + end for inner, end in zip(block, slowest, strict=True))
    bubble = every - longest + (2 * (work.pp - 1) * one)
    return StepTime(
        *(micro_batches * seconds for seconds in kinds),
        micro_batches * (waits + constants.batch_ms * 1e-3),
        micro_batches * layers * again,
        micro_batches * 2 * one * constants.transfer,
        bubble,
        gradient_seconds(work, weights, cluster, speed) + weights * constants.gradient_ns * 1e-9,
        update_seconds(work, weights, speed) + constants.step_ms * 1e-3,
    )


def relaunch_seconds(work: Workload, constants: Constants) -> float:
    """Returns the host's seconds to launch a block's forward pass again, which nothing hides.

    The state of the random numbers is restored before a block is computed again, and the device waits for it.
    """
    launches = sum(kernel.launches[0] for kernel in inventory.parts(work).block.kernels)
    return launches * constants.launch_us * 1e-6


def gradient_seconds(work: Workload, weights: float, cluster: Cluster, speed: Rates) -> float:
    """Returns the seconds of gradients' sums over data parallel ranks, and of gathering weights that ZeRO divides."""
    size = weights * ITEM_BYTES[work.wire]
    each = collectives.all_reduce(size, work.dp, work.tp, cluster, speed.link, speed.network)
    gathered = collectives.all_reduce(weights * work.item, work.dp, work.tp, cluster, speed.link, speed.network) / 2
    if work.zero_stage == 3:  # weights come and go for forward and for backward
        return work.micro_batches * (each / 2 + 2 * gathered)
    if work.zero_stage == 2:  # every micro-batch is summed where it belongs
        return work.micro_batches * each / 2 + gathered
    if work.zero_stage:  # this project's owners get their part of the sum alone
        return (each / 2 if work.family == "tftrain" else each) + gathered
    return each


def update_seconds(work: Workload, weights: float, speed: Rates) -> float:
    """Returns the seconds of the optimizer's traffic."""
    owned = weights / (work.dp if work.zero_stage else 1)
    if "optimizer" in work.fused:
        moved = FUSED_UPDATE_BYTES
    else:
        moved = COMPILED_UPDATE_BYTES if work.compiled else PLAIN_UPDATE_BYTES
    return owned * (moved - (2 - work.moments) * MOMENT_BYTES) / speed.memory
