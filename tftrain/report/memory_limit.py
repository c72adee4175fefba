"""Refuses sizes that the memory of this machine can't hold, before TensorFlow starts; the planner supplies the sizes.

TensorFlow itself would run out of memory after minutes, on a CPU often by a kill that gives no reason.
"""

from tftrain import devices
from tftrain.config import TrainConfig
from tftrain.fields import Problem
from tftrain.parallel.launcher import Launch
from tftrain.plan import forecast, memory
from tftrain.plan.system import of_trainer
from tftrain.plan.workload import from_config
from tftrain.units import GB

# The planner is wrong by up to 15%, so a run that it plans slightly too large may fit.
MARGIN = 1.2


def problems(config: TrainConfig, launch: Launch) -> list[Problem]:
    """Returns the reason why the run can't fit, if there is one.

    Args:
        config: resolved, with the sizes that the data gives.
        launch: the ranks, and how many of them share this host.
    """
    if not config.run.check_memory or config.run.mode != "train":
        return []
    gpu = devices.has_driver()
    if gpu:
        available, place = min(devices.gpu_memory_gb("total"), default=0.0), "the smallest GPU has"
    else:
        available, place = devices.host_memory_gb() / launch.local_size, "this machine has"
        place += f", for each of {launch.local_size} ranks," if launch.local_size > 1 else ""
    work = from_config(config, config.parallel.data_parallel_size(launch.size), gpu=gpu)
    planned = memory.estimate(work, of_trainer(gpu))
    needed = planned.minimum / GB
    if not available or needed <= MARGIN * available:
        return []
    kinds = sorted(forecast.bytes_by_kind(planned).items(), key=lambda kind: -kind[1])
    largest = ", ".join(f"{name.replace('_', ' ')} {_gb(size / GB)}" for name, size in kinds[:3])
    expected = (
        f"a rank needs {_gb(needed)} ({largest}), {place} {_gb(available)}; expected smaller sizes or more ranks that "
        "divide the state, or --check_memory=false to try all the same"
    )
    return [Problem("check_memory", "true", expected)]


def _gb(value: float) -> str:
    return f"{value:,.0f} GB" if value >= 10 else f"{value:.1f} GB"
