"""Refuses sizes that the memory of this machine can't hold, before TensorFlow starts; the planner supplies the sizes.

TensorFlow itself would run out of memory after minutes, on a CPU often by a kill that gives no reason.
"""

import functools

from tftrain.config.fields import Problem
from tftrain.config.train import TrainConfig
from tftrain.host import hardware
from tftrain.host.units import GB
from tftrain.plan import forecast, memory
from tftrain.plan.system import of_trainer
from tftrain.plan.workload import Workload, from_config

# The planner is wrong by up to 15%, so a run that it plans slightly too large may fit.
MARGIN = 1.2
# What a forked rank holds of the reserve by itself: 0.10 GB in a step, and 0.24 GB at the end, measured as the private
# pages of 16 forked ranks of a tiny model. The rest is TensorFlow's pages, which forked ranks share.
FORKED_RESERVE_GB = 0.25


def problems(config: TrainConfig, ranks: int, local_ranks: int, forked: bool = False) -> list[Problem]:
    """Returns the reason why the run can't fit, if there is one; `config` is resolved, with sizes that the data gives.

    `forked`: the `local_ranks` of this host were forked from one process, whose pages they share.
    """
    if not config.limits.check_memory or config.run.mode != "train":
        return []
    gpu = hardware.has_driver()
    workload = functools.partial(from_config, gpu=gpu, per_node=local_ranks)
    return config.problems_of_phases(
        lambda phase: _problems(workload(phase, phase.parallel.data_parallel_size(ranks)), local_ranks, gpu, forked),
    )


def _problems(work: Workload, ranks: int, gpu: bool, forked: bool) -> list[Problem]:
    planned = memory.estimate(work, of_trainer(gpu))
    shared, beside, advice = 0.0, "", ""
    if gpu:
        available, holder = min(hardware.gpu_memory_gb("total"), default=0.0), "the smallest GPU has"
    else:
        pages = planned.reserve / GB - FORKED_RESERVE_GB
        available, holder = hardware.host_memory_gb() / ranks, "this machine has"
        holder += f", for each of {ranks} ranks," if ranks > 1 else ""
        if forked:
            planned, shared = planned._replace(reserve=FORKED_RESERVE_GB * GB), pages / ranks
            beside = f" beside {_gb(pages)} that forked ranks share"
        elif ranks > 1 and planned.minimum / GB - pages + pages / ranks <= MARGIN * available:
            advice = f"--fork_ranks, with which the ranks share {_gb(pages)}, "
    needed = planned.minimum / GB
    if not available or needed + shared <= MARGIN * available:
        return []
    kinds = sorted(forecast.bytes_by_kind(planned).items(), key=lambda kind: -kind[1])
    largest = ", ".join(f"{name.replace('_', ' ')} {_gb(size / GB)}" for name, size in kinds[:3])
    expected = (
        f"a rank needs {_gb(needed)} ({largest}){beside}, {holder} {_gb(available)}; expected {advice}smaller sizes or "
        "more ranks that share the state, or --check_memory=false to try all the same"
    )
    return [Problem("", "the run does not fit the memory", expected)]


def _gb(value: float) -> str:
    return f"{value:,.0f} GB" if value >= 10 else f"{value:.1f} GB"
