"""Software systems: share of the data sheet's rates they reach, cost of a launch, memory besides the tensors.

Constants are few, and each could be measured by itself. `python -m tftrain.plan --calibrate`
fits them to the reference rows, from the values here, and prints `constants.json`.
"""

import functools
import json
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True)
class Constants:
    """Constants of a software system on a kind of device; the defaults are the starting values of a fit.

    Attributes:
        product_rate: share of the peak that large matrix products reach.
        misaligned, misaligned_batch: factor on that rate for each halving of alignment, for a single product and for
            many in one launch.
        memory_rate: share of the memory's bandwidth that kernels reach.
        link_rate, network_rate: share of the links' bandwidth that collectives reach in a node, between nodes.
        launch_us: host microseconds of one launch; the device idles if it is faster than the host.
        wait_us: microseconds of each tensor parallel collective for each other rank.
        batch_ms: milliseconds of a micro-batch beside its parts: start of the program, input, negotiation.
        step_ms: milliseconds of an update beside its parts.
        gradient_ns: nanoseconds of an update for each weight of a rank: a CPU's work on gradients beside their sum.
        transfer: share of the transfers between pipeline stages that is not hidden.
        reserve_gb: memory of context, libraries and communication buffers.
        fragmentation: share of the activations lost between blocks of the allocator.
        state_slack: temporary bytes a weight around the optimizer.
    """

    product_rate: float = 0.75
    misaligned: float = 0.9
    misaligned_batch: float = 0.3
    memory_rate: float = 0.6
    link_rate: float = 0.6
    network_rate: float = 0.7
    launch_us: float = 20.0
    wait_us: float = 20.0
    batch_ms: float = 0.0
    step_ms: float = 2.0
    gradient_ns: float = 0.0
    transfer: float = 0.5
    reserve_gb: float = 4.0
    fragmentation: float = 0.1
    state_slack: float = 0.1


@functools.cache
def systems() -> dict[str, Constants]:
    """Returns the calibrated constants by the system's name."""
    text = (resources.files("tftrain.plan") / "constants.json").read_text()
    return {name: Constants(**values) for name, values in json.loads(text).items()}


def of_trainer(gpu: bool) -> Constants:
    """Returns the constants of `tftrain.run` on a GPU, or on a CPU."""
    return systems()["encoder" if gpu else "tftrain_cpu"]
