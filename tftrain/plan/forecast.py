"""What a run will need and take: memory by kind and time by kind, of a workload on a cluster."""

from typing import NamedTuple

from tftrain.config import TrainConfig
from tftrain.plan import flops, memory, timing
from tftrain.plan.cluster import Cluster
from tftrain.plan.memory import Memory
from tftrain.plan.system import Constants
from tftrain.plan.timing import StepTime
from tftrain.plan.workload import Workload, from_config


class Forecast(NamedTuple):
    """A plan.

    Attributes:
        work, cluster, constants: what, where, and by which software.
        memory: of the fullest rank.
        time: of an update.
    """

    work: Workload
    cluster: Cluster
    constants: Constants
    memory: Memory
    time: StepTime

    @property
    def fits(self) -> bool:
        """Whether a device holds it."""
        return self.memory.fits(self.cluster)

    @property
    def gb(self) -> float:
        """Peak memory of the fullest rank, in the cluster's unit."""
        return self.memory.peak_gb(self.cluster)

    @property
    def seconds(self) -> float:
        """Of an update."""
        return self.time.total

    @property
    def samples_per_sec(self) -> float:
        """Of all ranks."""
        return self.work.global_batch / self.seconds

    @property
    def tflops_per_device(self) -> float:
        """By the exact count, recomputation left out."""
        return flops.reported(self.work, "exact") / (self.seconds * self.work.ranks * 1e12)

    @property
    def mfu(self) -> float:
        """Share of the device's peak, or of what the software's products reach where that is more.

        It is where the peak is not a data sheet's, but what NumPy reaches on this machine.
        """
        peak = self.cluster.peak(self.work.item) * max(1.0, self.constants.product_rate)
        return self.tflops_per_device * 1e12 / peak


def forecast(work: Workload, cluster: Cluster, constants: Constants) -> Forecast:
    """Plans a workload.

    Args:
        work: what.
        cluster: where.
        constants: what the software makes of it.
    """
    return Forecast(work, cluster, constants, memory.estimate(work, constants), timing.step(work, cluster, constants))


def of_run(config: TrainConfig, ranks: int, cluster: Cluster, constants: Constants) -> Forecast:
    """Plans a run of `tftrain.run`.

    Args:
        config: resolved, with the sizes that the data gives.
        ranks: all of them.
        cluster: where, such as `tftrain.plan.machine.read(path)`.
        constants: such as `tftrain.plan.system.systems()["tftrain_cpu"]`.
    """
    dp = ranks // config.parallel.tensor_parallel_size
    return forecast(from_config(config, dp, gpu=cluster.multiprocessors > 0), cluster, constants)


def bytes_by_kind(found: Memory) -> dict[str, float]:
    """Returns planned bytes by the kinds that `tftrain.report.memory` measures; they add up to the peak."""
    state = ("weights", "master_weights", "moments", "checkpoint_copy")
    passing = ("gradients", "accumulation", "communication")
    kinds = {"baseline": found.reserve, **{name: getattr(found, name) for name in (*state, *passing)}}
    return {**kinds, "activations": found.activations + found.temporaries + found.fragmentation}
