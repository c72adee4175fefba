"""Environment variables for Horovod: how fast its collectives begin, and how long they may wait."""

import os
from collections.abc import Mapping

from tftrain.parallel.launcher import Launch
from tftrain.parallel.mesh import MeshError
from tftrain.parallel.rendezvous import address_of_store

# If a rank makes others wait, Horovod first prints a warning and later ends the run.
STALL_WARNING_SECONDS = 60
STALL_SHUTDOWN_SECONDS = 600
# In every cycle, Horovod's thread in each rank exchanges a message with all other ranks, one after the other. With so
# many messages a millisecond and core, that takes some tenths of the cores' time (docs/results/parallelism.md).
MESSAGES_PER_MS = 10
DEFAULT_CYCLE_MS = 1.0
# On GPUs, a sum of tensor parallel ranks waits for the next cycle.
GPU_CYCLE_MS = 0.1
# Tensors of a process set whose negotiation Horovod remembers. Its default, 1024, is less than some models have; those
# beyond it would be negotiated in every step, and unused entries cost nothing.
CACHED_TENSORS = 16384
# Gradients of a divided state travel in large buckets. Horovod's buffer for joint sums, of 128 MiB, saves them no time.
BUFFER_BYTES = 4 << 20


def speed_settings(
    environ: Mapping[str, str], launch: Launch, cores: int, gpu: bool = False, splits_state: bool = False
) -> dict[str, str]:
    """Returns the environment variables for Horovod's collectives; the user's values take precedence.

    Horovod's own cycle time suits ranks with a core of their own. Where ranks share cores, their threads would spend
    all time on asking each other what is ready. On GPUs, a collective is done when the host has put it on the stream
    (asynchronous completion), so that the host need not wait for the GPU. `cores` are those that this rank may use.
    """
    cycle = GPU_CYCLE_MS if gpu else DEFAULT_CYCLE_MS
    # Other launchers than those with a store may bind each rank to cores of its own.
    if launch.local_size > cores and address_of_store(environ):
        cycle = max(cycle, launch.local_size * launch.size / (MESSAGES_PER_MS * cores))
    defaults = {"HOROVOD_CYCLE_TIME": f"{cycle:g}", "HOROVOD_CACHE_CAPACITY": str(CACHED_TENSORS)}
    if gpu:
        defaults["HOROVOD_ENABLE_ASYNC_COMPLETION"] = "1"
    elif splits_state:
        defaults["HOROVOD_FUSION_THRESHOLD"] = str(BUFFER_BYTES)
    return {name: environ.get(name, value) for name, value in defaults.items()}


def stall_limits(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables for the seconds until Horovod warns of a stalled collective and ends the run.

    The user's values take precedence over the defaults.

    Raises:
        MeshError: the user has disabled one of them; no run may wait for ever.
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
        wrong = ", ".join(f"{name}={value}" for name, value in off.items())
        raise MeshError(f"{wrong}: expected positive numbers of seconds, and no disabled check; unset it")
    return limits


def stall_shutdown_seconds() -> float:
    """Returns the seconds that `start` lets a collective take before Horovod ends the run."""
    return float(os.environ.get("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", STALL_SHUTDOWN_SECONDS))
