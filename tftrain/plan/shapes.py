"""The matrix products of an update by shape: how many there are, and what they take."""

from typing import NamedTuple

from tftrain.plan import inventory, timing
from tftrain.plan.blocks import Product
from tftrain.plan.cluster import Cluster
from tftrain.plan.system import Constants
from tftrain.plan.workload import Workload


class Shape(NamedTuple):
    """Products of one name and shape.

    Attributes:
        product: its name, and the sizes of its forward pass.
        count: of an update, forward, backward and again where activations are recomputed.
        seconds: of all of them.
    """

    product: Product
    count: float
    seconds: float


def by_shape(work: Workload, cluster: Cluster, constants: Constants) -> list[Shape]:
    """Returns the products of a rank of the last pipeline stage, which has the logits, in the order of the model.

    Where that stage is the slowest, as it is without a pipeline, they take what `timing.step` says of products.
    """
    block, _, head = inventory.parts(work)
    found: dict[Product, Shape] = {}
    for part, times in ((block, work.layers / work.pp * work.micro_batches), (head, work.micro_batches)):
        for product in part.products:
            again = part is block and (
                work.checkpointing == "full" or (work.checkpointing == "selective" and product.core)
            )
            seconds = timing.product_seconds(product, work, cluster, constants)
            if again:
                seconds += timing.product_seconds(product, work, cluster, constants, slice(0, 1))
            before = found.get(product, Shape(product, 0.0, 0.0))
            count = before.count + times * (len(product.passes) + again)
            found[product] = Shape(product, count, before.seconds + times * seconds)
    return list(found.values())
