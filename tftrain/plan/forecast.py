"""A forecast: memory by kind, time by kind and matrix products by shape of a workload on a cluster."""

from collections.abc import Iterator
from typing import NamedTuple

from tftrain.config.train import TrainConfig
from tftrain.host.units import GB
from tftrain.plan import inventory, memory, reported_flops, timing
from tftrain.plan.blocks import Product
from tftrain.plan.cluster import Cluster
from tftrain.plan.memory import Memory
from tftrain.plan.system import Constants
from tftrain.plan.timing import StepTime
from tftrain.plan.workload import Workload, from_config


class Forecast(NamedTuple):
    """A plan."""

    work: Workload
    cluster: Cluster
    constants: Constants
    memory: Memory  # the fullest rank's, with the fragmentation that the cluster's devices have space for
    time: StepTime  # an update's
    margin: float = 0.0  # share of a device's memory that must stay free

    @property
    def fits(self) -> bool:
        """Whether the fullest rank fits a device, with the margin."""
        return self.memory.fits(self.cluster, self.margin)

    @property
    def gb(self) -> float:
        """Peak memory of the fullest rank in GB."""
        return self.memory.total / GB

    @property
    def seconds(self) -> float:
        """Seconds of an update."""
        return self.time.total

    @property
    def samples_per_sec(self) -> float:
        """Samples a second of all ranks."""
        return self.work.global_batch / self.seconds

    @property
    def tflops_per_device(self) -> float:
        """TFLOPs of a device by the exact count, without recomputation."""
        return reported_flops.reported(self.work, "exact") / (self.seconds * self.work.ranks * 1e12)

    @property
    def mfu(self) -> float:
        """Share of the device's peak, or of the rate that the software's products reach if that is higher.

        Products can be faster than the peak where the peak is what NumPy reached on this machine, and not a data
        sheet's.
        """
        peak = self.cluster.peak(self.work.item) * max(1.0, self.constants.product_rate)
        return self.tflops_per_device * 1e12 / peak


def forecast(work: Workload, cluster: Cluster, constants: Constants, margin: float = 0.0) -> Forecast:
    """Plans a workload on a cluster, with the constants of the software; for `margin`, see `Forecast`."""
    needed = memory.estimate(work, constants).on(cluster)
    return Forecast(work, cluster, constants, needed, timing.step(work, cluster, constants), margin)


def of_run(config: TrainConfig, ranks: int, cluster: Cluster, constants: Constants) -> Forecast:
    """Plans a run of `tftrain.run` on `ranks` ranks; `config` is resolved, with the sizes that the data gives."""
    dp = config.parallel.data_parallel_size(ranks)
    return forecast(from_config(config, dp, cluster.multiprocessors > 0, cluster.per_node), cluster, constants)


def bytes_by_kind(sizes: Memory) -> dict[str, float]:
    """Returns planned bytes by the kinds that `tftrain.observe.memory` measures; they add up to the peak."""
    state = ("weights", "master_weights", "moments", "checkpoint_copy")
    passing = ("gradients", "accumulation", "communication")
    kinds = {"baseline": sizes.reserve, **{name: getattr(sizes, name) for name in (*state, *passing)}}
    kinds["communication"] += sizes.gathered
    return {**kinds, "activations": sizes.activations + sizes.vectors + sizes.temporaries + sizes.fragmentation}


class Shape(NamedTuple):
    """Products of one name and shape."""

    product: Product
    count: float  # products of an update: forward, backward, and recomputed forward
    seconds: float  # all these products


def products_by_shape(work: Workload, cluster: Cluster, constants: Constants) -> Iterator[Shape]:
    """Yields the products of a rank of the last pipeline stage, which has the logits, in the order of the model.

    Without a pipeline, their seconds add up to the products of `timing.step`.
    """
    block, _, head = inventory.parts(work)
    passes: dict[Product, tuple[float, float]] = {}  # forward, recomputed ones too; backward, of two products each
    for part, times in ((block, work.layers_of(work.pp - 1) * work.micro_batches), (head, work.micro_batches)):
        for product in part.products:
            recomputed = {"none": False, "selective": product.core, "full": True}[work.checkpointing]
            forward, backward = passes.get(product, (0.0, 0.0))
            passes[product] = forward + times * (1 + (part is block and recomputed)), backward + times
    for product, (forward, backward) in passes.items():
        seconds = forward * timing.product_seconds(product, work, cluster, constants, slice(0, 1))
        seconds += backward * timing.product_seconds(product, work, cluster, constants, slice(1, 3))
        yield Shape(product, forward + 2 * backward, seconds)
