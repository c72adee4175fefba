"""This machine as a cluster: the measured rates of matrix products by size, of copies and between processes.

`--measure` writes them to a file (`--machine_file`), which `--cluster=this_machine` reads.
"""

import dataclasses
import errno
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from tftrain.config.fields import ConfigError, Problem
from tftrain.config.run import RunConfig
from tftrain.host.hardware import cores, host_memory_gb
from tftrain.host.text import reason
from tftrain.plan import cluster_file
from tftrain.plan.cluster import CLUSTERS, Cluster
from tftrain.plan.cluster import of_device as cluster_of_device
from tftrain.plan.system import on_card

NAME = "this_machine"
SIZES = (64, 128, 256, 512, 1024, 2048)
COPY_BYTES = 1 << 28
SENT_BYTES = 1 << 26
SECONDS, BUSY_SECONDS = 0.3, 0.5  # each measurement; how long others are watched before
SHARED = ("memory_gb", "peak_fp32", "peak_16bit", "memory_gbs")  # what the processes of a machine divide among them


def read(path: Path) -> Cluster:
    """Reads the file that `measure` wrote; raises a ConfigError if it can't be read, or has other content."""
    return cluster_file.read(path, "machine_file", "a file that `python -m tftrain.plan --measure` writes")


def named(name: str, machine_file: Path) -> Cluster:
    """Returns the cluster that --cluster names: listed, this machine or a JSON file; a ConfigError if there is none."""
    if name == NAME:
        return read(machine_file)
    if name in CLUSTERS:
        return CLUSTERS[name]
    if name.endswith(cluster_file.SUFFIX):
        return cluster_file.read(
            Path(name), "cluster", "a JSON file that describes a cluster, see python -m tftrain docs planner"
        )
    expected = f"expected one of {', '.join([*CLUSTERS, NAME])}, or a JSON file that describes one"
    raise ConfigError([Problem("cluster", name, expected)])


def default_system(cluster: Cluster, trainer: str) -> str:
    """Returns the default system; the constants of tftrain_cpu are shares of measured rates, not of a data sheet."""
    if cluster.multiprocessors:
        return on_card("megatron" if trainer == "megatron" else "encoder", cluster.card)
    return "tftrain_cpu" if cluster.name == NAME and trainer == "tftrain" else "megatron_cpu"


def shared(machine: Cluster, processes: int) -> Cluster:
    """Returns this machine as a node whose devices are equal shares of it, one for each process."""
    shares = {name: getattr(machine, name) / processes for name in SHARED}
    return dataclasses.replace(machine, **shares, per_node=processes, link_gbs=machine.network_gbs)


def device_of(machine_file: str, processes: int, gpu: str | None) -> tuple[Cluster | None, str]:
    """Returns the device of one of this machine's processes; or None if it is not known, and the reason.

    `gpu` is the name of the process's GPU; None: it has a share of the CPU. The reason is "" if only the default file
    does not exist.
    """
    path = Path(machine_file)
    if gpu is None and machine_file == RunConfig.machine_file and not path.exists():
        return None, ""
    try:
        return cluster_of_device(gpu) if gpu else shared(read(path), processes), ""
    except ConfigError as error:  # The planner does not know the GPU, or the machine was not measured.
        return None, str(error)


def measure(path: Path) -> str:
    """Measures this machine, writes the file and returns it.

    Raises a ConfigError if the file can't be written; this is checked before the measurement.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    except OSError as error:
        raise ConfigError([Problem("machine_file", str(path), f"expected a file to write: {reason(error)}")]) from error
    if (busy := psutil.cpu_percent(BUSY_SECONDS)) > 10:
        notice = f"other work takes {busy:.0f}% of the cores, so that the rates are too low: measure again without it"
        print(notice, file=sys.stderr)
    *rates, half = product_rates(SIZES)
    best = max(rates)
    cluster = Cluster(
        name=NAME,
        memory_gb=host_memory_gb(),
        peak_fp32=best,
        peak_16bit=half,
        memory_gbs=copy_rate(),
        multiprocessors=0,
        per_node=1,
        link_gbs=0,
        network_gbs=socket_rate(),
        curve=tuple((size, float(f"{rate / best:.4g}")) for size, rate in zip(SIZES, rates, strict=True)),
    )
    text = json.dumps(dataclasses.asdict(cluster), indent=1) + "\n"
    path.write_text(text)
    return text


def product_rates(sizes: Sequence[int]) -> list[float]:
    """Returns TFLOPs of TensorFlow's products [size, size] x [size, size] in fp32, and of the last in bfloat16."""
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-m", "tftrain.bench.product_rates", str(SECONDS), *map(str, sizes)]
    return json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout)


def fastest(action: Callable[[], object], seconds: float) -> float:
    """Returns the seconds of the fastest of several runs, which take so many seconds together."""
    best, stop = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < stop or best == float("inf"):
        begin = time.perf_counter()
        action()
        best = min(best, time.perf_counter() - begin)
    return best


def copier(size: float, threads: int) -> Callable[[], float]:
    """Returns a function that copies one array to another, `size` bytes together, and returns bytes/s.

    Each thread copies its part; numpy releases the interpreter lock. Both arrays were written before, and the C library
    copies large blocks with stores that bypass the cache, so that these bytes are all that moves.
    """
    import numpy as np

    half = max(int(size) // 2, threads)
    source, target, pool = np.ones(half, np.uint8), np.ones(half, np.uint8), ThreadPoolExecutor(threads)
    parts = [slice(half * part // threads, half * (part + 1) // threads) for part in range(threads)]

    def copy() -> float:
        start = time.perf_counter()
        list(pool.map(lambda part: np.copyto(target[part], source[part]), parts))
        return 2 * half / (time.perf_counter() - start)

    return copy


def copy_rate() -> float:
    """Returns the rate of a copy by all cores in 1e9 bytes/s, reads and writes together."""
    size = 2 * COPY_BYTES * cores()
    copy = copier(size, cores())
    copy()
    return 1e-9 * size / fastest(copy, SECONDS)


def socket_rate() -> float:
    """Returns 1e9 bytes/s through a local socket, as Gloo sends between processes of one host."""
    sender, receiver = socket.socketpair()
    data, buffer = bytes(SENT_BYTES), bytearray(1 << 20)

    def receive():
        while receiver.recv_into(buffer):
            pass

    thread = threading.Thread(target=receive)
    thread.start()
    seconds = fastest(lambda: sender.sendall(data), SECONDS)
    sender.close()
    thread.join()
    receiver.close()
    return SENT_BYTES / seconds / 1e9
