"""A published measurement: a workload, its cluster and software system, and the measured figures."""

from typing import NamedTuple

from tftrain.config.train import TrainConfig
from tftrain.plan import reported_flops
from tftrain.plan.workload import Workload


class Reference(NamedTuple):
    """The measured figures; None if not stated."""

    gb: float | None = None  # peak memory of the fullest measured device in GB of 1e9 bytes; the sources count GiB
    out_of_memory: bool = False  # whether the run did not fit
    samples_per_sec_per_gpu: float | None = None
    sec_per_iteration: float | None = None
    tflops_per_gpu: float | None = None

    @property
    def ran(self) -> bool:
        """Whether the run gave a figure."""
        figures = (self.gb, self.samples_per_sec_per_gpu, self.sec_per_iteration, self.tflops_per_gpu)
        return not self.out_of_memory and any(figure is not None for figure in figures)


class PublishedRow(NamedTuple):
    """One row."""

    name: str  # `table/NN`
    table: str
    config: TrainConfig  # the run, as flags of tftrain.run say it
    workload: Workload  # the same, as the software of the run has it
    cluster: str  # name in `tftrain.plan.cluster`
    system: str  # name in `tftrain.plan.system`
    reference: Reference  # the measured figures
    formula: str = "exact"  # formula of the published TFLOPs: exact, old or corrected, see `reported_flops`
    speed: str = "sec_per_iteration"  # the figure of `Reference` by which the table states speed
    counted: float = 1.0  # share of the samples that the published speed counts
    checkpointing_unstated: bool = False  # whether the source leaves checkpointing open
    # Whether the source leaves model, batch and device open: only changes against the table's first row are comparable.
    relative: bool = False
    remark: str = ""  # difference between the plan and the stated row; "" for none

    @property
    def reference_seconds(self) -> float | None:
        """Seconds of an iteration by the published figures; None if none is published."""
        reference, work = self.reference, self.workload
        if reference.sec_per_iteration:
            return reference.sec_per_iteration
        if reference.samples_per_sec_per_gpu:
            return work.global_batch * self.counted / (reference.samples_per_sec_per_gpu * work.ranks)
        if reference.tflops_per_gpu:
            return reported_flops.reported(work, self.formula) / (reference.tflops_per_gpu * 1e12 * work.ranks)
        return None
