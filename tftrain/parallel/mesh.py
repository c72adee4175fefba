"""The ranks of a run, their coordinates, and the groups in which they talk to each other.

One object holds every size, rank and group that the rest of the code asks for. The tensor coordinate runs fastest, so
that the ranks which split a layer sit on one host, then the data coordinate. Horovod is imported only when several
processes were launched together, so a run of one process needs none.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tftrain.parallel.journal import Journal
from tftrain.parallel.launcher import Launch
from tftrain.parallel.rendezvous import value_of_rank_0

# Horovod names ranks that keep others waiting, and then ends the run.
STALL_WARNING_SECONDS = 60
STALL_SHUTDOWN_SECONDS = 600


class MeshError(RuntimeError):
    """The ranks that were launched can't work together; the message says why and what to do."""


@dataclass(frozen=True)
class Group:
    """Ranks that talk to each other.

    Attributes:
        name: world, data or tensor.
        ranks: their global ranks, ascending.
        rank: this process's place among them.
        process_set: Horovod's name for them; None where they are all ranks.
        journal: which collectives this process has begun.
    """

    name: str = "world"
    ranks: tuple[int, ...] = (0,)
    rank: int = 0
    process_set: Any = field(default=None, compare=False, repr=False)
    journal: Journal = field(default_factory=Journal, compare=False, repr=False)

    @property
    def size(self) -> int:
        """How many they are."""
        return len(self.ranks)

    def share(self, count: int) -> tuple[int, int]:
        """Returns [start, stop) of this rank's part of `count` things, of which each rank has as many."""
        each = count // self.size
        return self.rank * each, (self.rank + 1) * each


@dataclass(frozen=True)
class Mesh:
    """All ranks, by what they share: rank = tensor rank + tensor_parallel_size * data rank.

    Attributes:
        rank, size: of all processes.
        local_rank, local_size: of the processes on this host.
        tensor_parallel_size: ranks that split every layer between them.
        process_sets: Horovod's process sets by their ranks.
        journal: which collectives this process has begun, in all groups.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    tensor_parallel_size: int = 1
    process_sets: Mapping[tuple[int, ...], Any] = field(default_factory=dict, compare=False, repr=False)
    journal: Journal = field(default_factory=Journal, compare=False, repr=False)

    @property
    def world(self) -> Group:
        """All ranks."""
        return self._group("world", range(self.size))

    @property
    def data(self) -> Group:
        """The ranks that hold the same part of the model and share a global batch."""
        return self._group("data", data_ranks(self.size, self.tensor_parallel_size)[self.tensor_rank])

    @property
    def tensor(self) -> Group:
        """The ranks that split the layers and see the same samples."""
        return self._group("tensor", tensor_ranks(self.size, self.tensor_parallel_size)[self.data.rank])

    @property
    def tensor_rank(self) -> int:
        """Which part of every layer is this process's."""
        return self.rank % self.tensor_parallel_size

    @property
    def is_chief(self) -> bool:
        """Whether this process writes logs, metrics and checkpoints."""
        return self.rank == 0

    def _group(self, name, ranks) -> Group:
        ranks = tuple(ranks)
        return Group(name, ranks, ranks.index(self.rank), self.process_sets.get(ranks), self.journal)


def data_ranks(size: int, tensor_parallel_size: int) -> list[tuple[int, ...]]:
    """Returns the ranks of every data parallel group, by tensor rank."""
    return [tuple(range(first, size, tensor_parallel_size)) for first in range(tensor_parallel_size)]


def tensor_ranks(size: int, tensor_parallel_size: int) -> list[tuple[int, ...]]:
    """Returns the ranks of every tensor parallel group, by data rank."""
    return [tuple(range(first, first + tensor_parallel_size)) for first in range(0, size, tensor_parallel_size)]


def start(launch: Launch, cpu_threads: int = 0, tensor_parallel_size: int = 1) -> Mesh:
    """Connects this process to its peers and gives it its device and its threads.

    Args:
        launch: this process's place, from the environment.
        cpu_threads: TensorFlow's threads; 0: this host's cores shared by the ranks on it.
        tensor_parallel_size: a divisor of the number of ranks.

    Returns:
        The mesh.

    Raises:
        MeshError: several processes were launched and Horovod is not installed, or it counts them differently, or rank
            0 has another tensor_parallel_size, or Horovod's stall check is switched off.
    """
    mesh = Mesh(*launch, tensor_parallel_size)
    if mesh.size > 1:
        mesh = _connect(launch, tensor_parallel_size)
    _choose_device(mesh, cpu_threads)
    return mesh


def _connect(launch: Launch, tensor_parallel_size: int) -> Mesh:
    """Starts Horovod with one process set for each group that is neither all ranks nor a single one."""
    os.environ.update(stall_limits(os.environ))
    try:
        import horovod.tensorflow as hvd
    except ImportError as error:
        raise MeshError(
            f"{launch.size} processes were launched, but Horovod can't be imported ({error}); `make setup` builds it"
        ) from error
    first = value_of_rank_0(launch, "tensor_parallel_size", str(tensor_parallel_size))
    if first != str(tensor_parallel_size):
        raise MeshError(
            f"the ranks disagree: on rank {launch.rank} --tensor_parallel_size is {tensor_parallel_size}, "
            f"but {first} on rank 0; start all with the same flags, environment, packages and data"
        )
    groups = data_ranks(launch.size, tensor_parallel_size) + tensor_ranks(launch.size, tensor_parallel_size)
    # A set of all ranks would be a second name for the one that always exists.
    sets = {ranks: hvd.ProcessSet(list(ranks)) for ranks in groups if 1 < len(ranks) < launch.size}
    hvd.init(process_sets=list(sets.values()))
    if hvd.size() != launch.size:
        raise MeshError(
            f"the launcher started {launch.size} processes, but Horovod connected {hvd.size()}; "
            f"was Horovod built with MPI where mpirun or srun starts it?"
        )
    return Mesh(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), tensor_parallel_size, sets)


def stall_limits(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns after how many seconds Horovod warns of a stalled collective and ends it: the user's, or the defaults.

    Raises:
        MeshError: the user has switched one of them off; no run may wait for ever.
    """
    defaults = {
        "HOROVOD_STALL_CHECK_TIME_SECONDS": STALL_WARNING_SECONDS,
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": STALL_SHUTDOWN_SECONDS,
    }
    limits = {name: environ.get(name, str(default)) for name, default in defaults.items()}
    off = {name: value for name, value in limits.items() if not (value.isdecimal() and int(value))}
    disabled = environ.get("HOROVOD_STALL_CHECK_DISABLE", "0")
    if disabled != "0":
        off["HOROVOD_STALL_CHECK_DISABLE"] = disabled
    if off:
        given = ", ".join(f"{name}={value}" for name, value in off.items())
        raise MeshError(f"{given}: expected positive numbers of seconds, and no disabled check; unset it")
    return limits


def _choose_device(mesh: Mesh, cpu_threads: int) -> None:
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
