"""A published measurement: a workload, the cluster and the software system it ran on, and the figures it got."""

from typing import NamedTuple

from tftrain.plan import flops
from tftrain.plan.workload import Workload


class Reference(NamedTuple):
    """What was measured; None where nothing is stated.

    Attributes:
        gb: peak memory of the fullest device looked at.
        out_of_memory: it did not fit.
        samples_per_sec_per_gpu, sec_per_iteration, tflops_per_gpu: as published.
    """

    gb: float | None = None
    out_of_memory: bool = False
    samples_per_sec_per_gpu: float | None = None
    sec_per_iteration: float | None = None
    tflops_per_gpu: float | None = None

    @property
    def ran(self) -> bool:
        """Whether there is a figure of a run."""
        figures = (self.gb, self.samples_per_sec_per_gpu, self.sec_per_iteration, self.tflops_per_gpu)
        return not self.out_of_memory and any(figure is not None for figure in figures)


class Row(NamedTuple):
    """One row.

    Attributes:
        name, table: `table/NN`, and its table.
        workload: what was run.
        nodes: hosts.
        cluster, system: names in `tftrain.plan.cluster` and `tftrain.plan.system`.
        reference: what it got.
        formula: of the published TFLOPs: exact, old or corrected, see `tftrain.plan.flops`.
        speed: the figure of `Reference` by which the table states speed.
        counted: share of the samples that the published speed counts.
        checkpointing_unstated: the source does not say whether activations were checkpointed.
        relative: model, batch and device are assumed, since the source does not say: only changes against the table's
            first row mean something.
        remark: what is planned otherwise than the row states; "" for nothing.
    """

    name: str
    table: str
    workload: Workload
    nodes: int
    cluster: str
    system: str
    reference: Reference
    formula: str
    speed: str
    counted: float = 1.0
    checkpointing_unstated: bool = False
    relative: bool = False
    remark: str = ""

    @property
    def reference_seconds(self) -> float | None:
        """Seconds of an iteration that the published figures amount to; None where there are none."""
        found, work = self.reference, self.workload
        if found.sec_per_iteration:
            return found.sec_per_iteration
        if found.samples_per_sec_per_gpu:
            return work.global_batch * self.counted / (found.samples_per_sec_per_gpu * work.ranks)
        if found.tflops_per_gpu:
            return flops.reported(work, self.formula) / (found.tflops_per_gpu * 1e12 * work.ranks)
        return None
