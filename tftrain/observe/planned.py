"""The planned memory and the planned seconds of a run's step, for the log to show beside the measured."""

import math
from typing import NamedTuple

from tftrain.host import devices
from tftrain.observe.rows import PlannedRow
from tftrain.plan import forecast, machine, memory, timeline, timing
from tftrain.plan.cluster import Cluster
from tftrain.plan.system import of_trainer
from tftrain.plan.workload import Workload, from_config
from tftrain.state.run_state import Run

# Stands for a few cores that were not measured.
UNKNOWN = Cluster("unknown", 16, 0.1, 0.1, 20, multiprocessors=0, per_node=8, link_gbs=2, network_gbs=2)


class StepPlan(NamedTuple):
    """A plan of one update."""

    memory: dict[str, int]  # bytes of the fullest rank by the kinds of `tftrain.observe.memory`; they sum to the peak
    seconds: float | None  # None if the device is not known
    unknown: str  # why `seconds` is None, and what to do; "" if it is known, or was not requested


def plan_step(run: Run, samples: int) -> StepPlan:
    """Plans an update of a run of `samples` samples over all ranks."""
    work, gpu = workload_of(run, samples), devices.has_gpu()
    kinds = {kind: round(size) for kind, size in forecast.bytes_by_kind(memory.estimate(work, of_trainer(gpu))).items()}
    device, unknown = _device_of(run)
    seconds = timing.step(work, device, of_trainer(gpu, device.card)).total if device else None
    return StepPlan(kinds, seconds, unknown)


def timeline_of(run: Run, samples: int) -> tuple[list[timeline.Moment], float]:
    """Returns the planned memory over an update of `samples` samples, if there is no pipeline, and the planned peak.

    If the device is not known, the times are those of another device, as their proportions are about the same.
    """
    work, device = workload_of(run, samples), _device_of(run)[0] or UNKNOWN
    constants = of_trainer(devices.has_gpu(), device.card)
    return timeline.of_step(work, device, constants) if work.pp == 1 else [], memory.estimate(work, constants).total


def workload_of(run: Run, samples: int) -> Workload:
    """Returns what the planner plans for an update of a run with so many samples."""
    work = from_config(run.config, run.mesh.data.size, gpu=devices.has_gpu(), per_node=run.mesh.local_size)
    accumulates = samples > work.dp * work.micro_batch  # one micro-batch needs no accumulation
    return work._replace(
        global_batch=samples, sequences=run.task.sequences, accumulation=work.accumulation if accumulates else ""
    )


def _device_of(run: Run) -> tuple[Cluster | None, str]:
    gpu = devices.device_name() if devices.has_gpu() else None
    return machine.device_of(run.config.run.machine_file, run.mesh.local_size, gpu)


def time_lines(row: PlannedRow, unknown: str) -> str:
    """Returns the seconds of a step beside the planned seconds, if they are known, or `unknown`, which says why not."""
    seconds = "-" if math.isnan(row.measured_step_time_s) else f"{row.measured_step_time_s:.3f}"
    lines = [f"{'time of a step':32}{'s':>10}", f"  {f'step {row.step}':30}{seconds:>10}"]
    if row.planned_step_time_s is not None:
        lines[0] += f"{'planned':>10}"
        lines[1] += f"{row.planned_step_time_s:10.3f}"
    return "\n".join([*lines, f"  {unknown}"] if unknown else lines)
