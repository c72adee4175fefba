"""The planned memory by kind and the planned seconds of a run's step, for the log to show beside the measured."""

from pathlib import Path
from typing import NamedTuple

from tftrain.config.fields import ConfigError
from tftrain.config.train import TrainConfig
from tftrain.host import devices
from tftrain.parallel.mesh import Mesh
from tftrain.plan import cluster, forecast, machine, memory, timing
from tftrain.plan.cluster import Cluster
from tftrain.plan.system import of_trainer
from tftrain.plan.workload import Workload, from_config
from tftrain.report.rows import PlannedRow


class StepPlan(NamedTuple):
    """A plan of one update.

    Attributes:
        memory: bytes of the fullest rank by the kinds of `tftrain.report.memory`, which add up to the peak.
        seconds: of the update; None if the device is not known.
        unknown: why `seconds` is None, and what to do; "" if it is known, or was not requested.
    """

    memory: dict[str, int]
    seconds: float | None
    unknown: str = ""

    def row(self, step: int, seconds: float, products: float | None = None) -> PlannedRow:
        """Returns the plan as a row, with the measured seconds of the step, and of its products alone if known."""
        kinds = {f"planned_{kind}_bytes": size for kind, size in self.memory.items()}
        peak = sum(self.memory.values())
        return PlannedRow(
            step,
            planned_peak_bytes=peak,
            planned_step_time_s=self.seconds,
            measured_step_time_s=seconds,
            products_time_s=products,
            share_of_products=products / seconds if products and seconds > 0 else None,
            **kinds,
        )


def of_run(config: TrainConfig, mesh: Mesh, samples: int) -> StepPlan:
    """Plans an update of a run.

    Args:
        config: resolved, with the sizes that the data gives.
        mesh: the ranks.
        samples: of the update, over all ranks.
    """
    gpu = devices.has_gpu()
    constants = of_trainer(gpu)
    work = workload(config, mesh, samples)
    kinds = forecast.bytes_by_kind(memory.estimate(work, constants))
    found = {kind: round(size) for kind, size in kinds.items()}
    machine_file = config.run.machine_file
    if not gpu and machine_file == type(config.run).machine_file and not Path(machine_file).exists():
        return StepPlan(found, None)
    try:
        device_cluster = device(machine_file, mesh, gpu)
    except ConfigError as error:
        return StepPlan(found, None, str(error))
    return StepPlan(found, timing.step(work, device_cluster, constants).total)


def workload(config: TrainConfig, mesh: Mesh, samples: int) -> Workload:
    """Returns what the planner plans for an update of a run, see `of_run`."""
    return at_batch(from_config(config, mesh.data.size, gpu=devices.has_gpu()), samples)


def at_batch(work: Workload, samples: int) -> Workload:
    """Returns a workload with another batch size, as in a batch ramp; one micro-batch needs no accumulation."""
    return work.replaced(
        global_batch=samples, accumulation=work.accumulation if samples > work.dp * work.micro_batch else ""
    )


def device(machine_file: str, mesh: Mesh, gpu: bool) -> Cluster:
    """Returns the cluster on which this run runs.

    Raises:
        ConfigError: the planner does not know the GPU, or the machine was not measured.
    """
    if gpu:
        return cluster.of_device(devices.device_name())
    return machine.shared(machine.read(Path(machine_file)), mesh.local_size)


def time_lines(row: PlannedRow, unknown: str) -> str:
    """Returns the seconds of a step beside the planned seconds, if they are known, or `unknown`, which says why not.

    If the products were measured, a line has their seconds and their share of the step.
    """
    lines = [f"{'time of a step':32}{'s':>10}", f"  {f'step {row.step}':30}{row.measured_step_time_s:10.3f}"]
    if row.planned_step_time_s is not None:
        lines[0] += f"{'planned':>10}"
        lines[1] += f"{row.planned_step_time_s:10.3f}"
    if row.products_time_s is not None:
        share = f", {row.share_of_products:.1%} of the step" if row.share_of_products else ""
        lines.append(f"  {'its matrix products alone':30}{row.products_time_s:10.3f}{share}")
    return "\n".join([*lines, f"  {unknown}"] if unknown else lines)
