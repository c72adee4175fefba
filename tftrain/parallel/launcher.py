"""Reads this process's rank from the launcher's environment, before TensorFlow or Horovod is imported."""

import os
from typing import NamedTuple

# tftrain.launch and horovodrun over Gloo, Open MPI's mpirun, Slurm's srun (whose step variables exist only inside it).
_LAUNCHERS = (
    ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
)


class Launch(NamedTuple):
    """This process among those that were launched together.

    Attributes:
        rank, size: of all processes.
        local_rank, local_size: of the processes on this host.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1


def launch_from_environment(environ=os.environ) -> Launch:
    """Returns this process's place; one process alone if no launcher's variables are set."""
    for rank, size, local_rank, local_size in _LAUNCHERS:
        if rank in environ and size in environ:
            # Slurm writes "4(x2)" for four tasks on each of two nodes.
            on_host = environ.get(local_size, "1").split("(")[0].split(",")[0]
            return Launch(int(environ[rank]), int(environ[size]), int(environ.get(local_rank, 0)), int(on_host))
    return Launch()
