"""Start-up: connects this process to the other ranks through Horovod, and gives it its device and its threads.

Horovod is imported only if several processes were launched, so a run of one process does not need it.
"""

import dataclasses
import itertools
import json
import os
from collections.abc import Mapping

import tensorflow as tf

from tftrain.config.parallel import ParallelConfig
from tftrain.host import devices, hardware
from tftrain.parallel import tensorflow_cluster
from tftrain.parallel.horovod_settings import speed_settings, stall_limits
from tftrain.parallel.launcher import Launch
from tftrain.parallel.mesh import SUMS_OF_XLA, AgreedMeshError, Mesh, MeshError
from tftrain.parallel.pending_collectives import PendingCollectives
from tftrain.parallel.rendezvous import address_of_store, await_all, value_of_rank_0


def start(
    launch: Launch, cpu_threads: int = 0, parallel: ParallelConfig | None = None, gradient_transport: str = "horovod"
) -> Mesh:
    """Connects this process to its peers, gives it its device and its threads, and returns the mesh.

    Args:
        cpu_threads: TensorFlow's threads; 0: this host's cores shared by the ranks on it.
        parallel: the sizes, whose product divides the number of ranks, the transport and what is divided.
        gradient_transport: the flag.

    Raises:
        MeshError: Horovod is not installed, or connects another number of processes than were launched; or rank 0 has
            another tensor_parallel_size; or Horovod's stall check is disabled; or the ranks can't have a transport or
            the split group.
    """
    parallel = parallel or ParallelConfig()
    sizes = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    mesh = Mesh(*launch[:4], *sizes, split_size_of(launch, sizes[0]) if parallel.split_group == "host" else None)
    gpu = bool(devices.gpus())
    kinds = tensorflow_kinds(mesh, parallel.group_transport, os.environ, gpu, gradient_transport)
    reserved = tensorflow_cluster.reserve_port() if kinds else None
    if mesh.size > 1:
        os.environ.update(stall_limits(os.environ))
        os.environ.update(speed_settings(os.environ, launch, hardware.cores(), gpu, parallel.splits_state))
        address = f"{tensorflow_cluster.own_address()}:{reserved.getsockname()[1]}" if reserved else ""
        mesh, addresses = _connect(launch, mesh, address)
    _choose_device(mesh, cpu_threads)
    if reserved:
        if addresses is None:
            remedy = f"start again, or use --{'gradient' if kinds == SUMS_OF_XLA else 'group'}_transport=horovod"
            raise MeshError(f"rank 0 did not send the addresses of all ranks through the launcher's store; {remedy}")
        tensorflow_cluster.join(mesh.rank, addresses, reserved)
    return dataclasses.replace(mesh, tensorflow_kinds=kinds)


def tensorflow_kinds(
    mesh: Mesh, group_transport: str, environ: Mapping[str, str], gpu: bool, gradient_transport: str = "horovod"
) -> tuple[str, ...]:
    """Returns the kinds of groups whose transport is TensorFlow, or SUMS_OF_XLA, which needs the same connections.

    auto: none, because TensorFlow's ports run ops for everybody.

    On GPUs, TensorFlow's collectives begin in the order of each rank's program, in which the transfers of two stages
    have different orders: there these stay with Horovod.

    Raises:
        AgreedMeshError: it was asked for, and there is no store through which the ranks could exchange addresses.
        MeshError: XLA would sum over ranks, and TensorFlow finds no GPU.
    """
    sizes = {"tensor": mesh.tensor_parallel_size, "link": 1 if gpu else mesh.pipeline_parallel_size}
    kinds, asked = (), "--group_transport=tensorflow: expected auto or horovod"
    if group_transport == "tensorflow":
        kinds = tuple(kind for kind, size in sizes.items() if size > 1)
    elif gradient_transport == "xla" and mesh.size > 1:
        kinds, asked = SUMS_OF_XLA, "--gradient_transport=xla: expected horovod"
        if not gpu:
            raise MeshError(f"{asked}, because TensorFlow finds no GPU, and on CPUs XLA sums nothing over ranks")
    if kinds and address_of_store(environ) is None:
        why = "because under MPI the ranks can't exchange the addresses for TensorFlow's collectives"
        raise AgreedMeshError(f"{asked}, {why}; or start them with `tftrain.launch`")
    return kinds


def split_size_of(launch: Launch, tensor_parallel_size: int) -> int | None:
    """Returns the data parallel ranks of each host, for `Mesh`; None if there is one host.

    Raises:
        MeshError: the ranks of a host are not consecutive, or do not make whole tensor parallel groups.
    """
    state = f"--split_group=host: rank {launch.rank} is number {launch.local_rank} of {launch.local_size} on its host"
    if launch.size % launch.local_size or launch.rank % launch.local_size != launch.local_rank:
        raise MeshError(f"{state}; expected as many ranks on every host, one host after the other; or use all")
    if launch.local_size % tensor_parallel_size:
        raise MeshError(f"{state}; expected a multiple of --tensor_parallel_size={tensor_parallel_size}; or use all")
    return launch.local_size // tensor_parallel_size if launch.local_size < launch.size else None


def _connect(launch: Launch, mesh: Mesh, address: str) -> tuple[Mesh, list[str] | None]:
    """Starts Horovod with one process set for each group that is neither all ranks nor a single one.

    Returns:
        The mesh; and the addresses of all ranks, None if this one does not learn them.
    """
    try:
        import horovod.tensorflow as hvd
    except ImportError as error:
        raise MeshError(
            f"{launch.size} processes, but Horovod can't be imported ({error}): see python -m tftrain docs cluster"
        ) from error
    sizes = {name: getattr(mesh, name) for name in ("tensor_parallel_size", "pipeline_parallel_size")}
    sizes["split_group"] = mesh.split_size
    first = json.loads(value_of_rank_0(launch, "sizes", json.dumps(sizes)))
    for name, size in sizes.items():
        if first[name] != size:
            remedy = "start all with the same flags, environment, packages and data"
            values = f"on rank {launch.rank} --{name} is {size}, but {first[name]} on rank 0"
            raise MeshError(f"the ranks disagree: {values}; {remedy}")
    groups = itertools.chain(*mesh.groups.values(), mesh.links)
    # The set of all ranks always exists.
    sets = {ranks: hvd.ProcessSet(list(ranks)) for ranks in groups if 1 < len(ranks) < launch.size}
    addresses = await_all(launch, value=address)
    hvd.init(process_sets=list(sets.values()))
    if hvd.size() != launch.size:
        remedy = "under mpirun, Horovod must be built with MPI: run `make setup` again"
        raise MeshError(f"the launcher started {launch.size} processes, but Horovod connected {hvd.size()}; {remedy}")
    numbers = {name: getattr(hvd, name)() for name in ("rank", "local_rank", "local_size")}
    return dataclasses.replace(mesh, **numbers, process_sets=sets, pending=PendingCollectives()), addresses


def _choose_device(mesh: Mesh, cpu_threads: int) -> None:
    # On a host with GPUs too, TensorFlow would start as many threads as there are cores in every rank.
    threads = cpu_threads or max(1, hardware.cores() // mesh.local_size)
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(max(2, threads))
    if gpus := devices.gpus():
        # Some launchers show each rank only its own GPU.
        gpu = gpus[0] if len(gpus) == 1 else gpus[mesh.local_rank] if mesh.local_rank < len(gpus) else None
        if gpu is None:
            raise MeshError(f"{mesh.local_size} ranks on a host of {len(gpus)} GPUs; start one rank for each GPU")
        tf.config.set_visible_devices(gpu, "GPU")
        tf.config.experimental.set_memory_growth(gpu, True)
