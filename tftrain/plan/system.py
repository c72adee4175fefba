"""Software systems: what share of a data sheet they reach, what a launch costs them, what memory they lose.

Constants are few, and each is a thing of its own that could be measured by itself. `python -m tftrain.plan --calibrate`
fits them to the reference rows, from the values here, and prints `constants.json`.
"""

import functools
import json
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True)
class Constants:
    """What the planner needs to know of a software system on a kind of device; the values here are where a fit starts.

    Attributes:
        product_rate: share of the peak that large matrix products reach.
        misaligned, misaligned_batch: what each halving of alignment leaves of that rate, to one product and to many in
            one launch.
        memory_rate: share of the memory's bandwidth that kernels reach.
        link_rate, network_rate: share of the links' bandwidth that collectives reach in a node, between nodes.
        launch_us: host time of one launch, microseconds; the device idles where it is faster than the host.
        wait_us: of each collective of tensor parallel ranks, for each other rank, microseconds.
        batch_ms: of a micro-batch beside its parts: the program's start, input, negotiation.
        step_ms: of an update, likewise.
        gradient_ns: of an update, for each weight of a rank: what a CPU does with gradients beside their sum.
        transfer: share of the transfers between pipeline stages that nothing hides.
        reserve_gb: context, libraries and communication's own buffers.
        fragmentation: share of activations that is lost between blocks of the allocator.
        state_slack: bytes a weight of temporaries around the optimizer.
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
