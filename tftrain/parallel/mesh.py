"""The ranks of a run and this process's place among them.

One object holds every size and rank that the rest of the code asks for. Horovod is imported only when several
processes were launched together, so a run of one process needs none.
"""

import os
from dataclasses import dataclass

import tensorflow as tf

from tftrain.parallel.launcher import Launch

# A rank that waits longer than this for another ends the run instead of hanging for ever.
STALL_WARNING_SECONDS = 60
STALL_SHUTDOWN_SECONDS = 600


class MeshError(RuntimeError):
    """The ranks that were launched can't work together; the message says why and what to do."""


@dataclass(frozen=True)
class Mesh:
    """Ranks by what they share. Every rank is a data parallel one here.

    Attributes:
        rank, size: of all processes.
        local_rank, local_size: of the processes on this host.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @property
    def data_parallel_rank(self) -> int:
        """Which share of the global batch is this process's."""
        return self.rank

    @property
    def data_parallel_size(self) -> int:
        """Ranks that share a global batch."""
        return self.size

    @property
    def is_chief(self) -> bool:
        """Whether this process writes logs, metrics and checkpoints."""
        return self.rank == 0

    def share(self, samples: int) -> tuple[int, int]:
        """Returns [start, stop) of this rank's samples among the `samples` of a global batch."""
        each = samples // self.data_parallel_size
        return self.data_parallel_rank * each, (self.data_parallel_rank + 1) * each


def start(launch: Launch, cpu_threads: int = 0) -> Mesh:
    """Connects this process to its peers and gives it its device and its threads.

    Args:
        launch: this process's place, from the environment.
        cpu_threads: TensorFlow's threads; 0: this host's cores shared by the ranks on it.

    Returns:
        The mesh.

    Raises:
        MeshError: several processes were launched and Horovod is not installed, or it counts them differently.
    """
    mesh = Mesh(*launch)
    if mesh.size > 1:
        os.environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", str(STALL_WARNING_SECONDS))
        os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", str(STALL_SHUTDOWN_SECONDS))
        try:
            import horovod.tensorflow as hvd
        except ImportError as error:
            raise MeshError(
                f"{mesh.size} processes were launched, but Horovod can't be imported ({error}); `make setup` builds it"
            ) from error
        hvd.init()
        mesh = Mesh(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size())
        if mesh.size != launch.size:
            raise MeshError(
                f"the launcher started {launch.size} processes, but Horovod connected {mesh.size}; "
                f"was Horovod built with MPI where mpirun or srun starts it?"
            )
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        # Some launchers show each rank its own GPU only.
        gpu = gpus[0] if len(gpus) == 1 else gpus[mesh.local_rank] if mesh.local_rank < len(gpus) else None
        if gpu is None:
            raise MeshError(f"{mesh.local_size} ranks on a host of {len(gpus)} GPUs; start one rank for each GPU")
        tf.config.set_visible_devices(gpu, "GPU")
        tf.config.experimental.set_memory_growth(gpu, True)
    else:
        threads = cpu_threads or max(1, len(os.sched_getaffinity(0)) // mesh.local_size)
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(max(2, threads))
    return mesh
