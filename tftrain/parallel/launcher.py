"""Reads this process's rank from the launcher's environment, before TensorFlow or Horovod is imported."""

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from tftrain.host.environment import host_name

# tftrain.launch and horovodrun over Gloo; Open MPI; Intel MPI and MPICH; Slurm's srun, whose step variables exist only
# inside it. srun may set PMI_RANK too, but not the local rank beside it. Cray's PALS; MVAPICH.
_SLURM = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE")
_LAUNCHERS = (
    ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    _SLURM,
)
# Set for ranks that `tftrain.launch --fork_ranks` forks.
FORKED = "TFTRAIN_FORKED"
# Numbers of ranks that other launchers set, which start no ranks of tftrain.
_OTHERS = ("WORLD_SIZE", "PMIX_SIZE", "FLUX_JOB_SIZE", "JSM_NAMESPACE_SIZE", "PMI_SIZE")


class Launch(NamedTuple):
    """This process among all processes launched together, and among those on this host."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    is_forked: bool = False
    """Whether the ranks of this host were forked from one process, whose memory pages they share."""

    def host(self, environ: Mapping[str, str] = os.environ) -> str:
        """Returns the name of this process's host; "" if all processes share one."""
        return host_name(environ) if self.local_size < self.size else ""


def launch_from_environment(environ: Mapping[str, str] = os.environ) -> Launch:
    """Returns this process's place; one process alone if no launcher's variables are set."""
    names = _launcher(environ)
    if names is None:
        return Launch()
    rank, size, local_rank, local_size = names
    if names is _SLURM:
        on_host = tasks_of_hosts(environ.get(local_size, "1"))[int(environ.get("SLURM_NODEID", 0))]
    else:
        on_host = int(environ.get(local_size, 1))
    return Launch(int(environ[rank]), int(environ[size]), int(environ[local_rank]), on_host, FORKED in environ)


def unknown_launcher(environ: Mapping[str, str] = os.environ) -> str:
    """Returns a line if this process is one rank alone, and another program seems to have started several; else ""."""
    if _launcher(environ) is not None:
        return ""
    name = next((name for name in _OTHERS if environ.get(name, "").isdecimal() and int(environ[name]) > 1), None)
    remedy = "start the ranks with tftrain.launch, srun, mpirun or horovodrun, or unset it"
    return f"{name}={environ[name]} is set, but this run has one rank of its own: {remedy}" if name else ""


def is_slurm_step(environ: Mapping[str, str]) -> bool:
    """Returns whether `srun` started this process, and not another launcher inside its step."""
    return _launcher(environ) is _SLURM


def tasks_of_hosts(text: str) -> list[int]:
    """Returns the number of tasks on each host from Slurm's form: "4(x2),1" is [4, 4, 1]."""
    counts = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(tasks) for tasks, hosts in counts for _ in range(int(hosts or 1))]


def _launcher(environ: Mapping[str, str]) -> tuple[str, str, str, str] | None:
    """Returns the names of the first launcher whose rank, size and local rank are set."""
    return next((names for names in _LAUNCHERS if all(name in environ for name in names[:3])), None)
