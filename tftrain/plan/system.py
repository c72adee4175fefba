"""Software systems: share of the data sheet's rates they reach, cost of a launch, memory besides the tensors.

There are few constants, and each could be measured by itself. `python -m tftrain.plan --calibrate` fits them to the
reference rows, from the values of this module, and prints `constants.json`.
"""

import functools
import json
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True)
class Constants:
    """Constants of a software system on a kind of device; the defaults are the starting values of a fit."""

    product_rate: float = 0.75  # share of the peak that large matrix products reach
    misaligned: float = 0.9  # factor on that rate for each halving of alignment, for a single product
    misaligned_batch: float = 0.3  # the same for many products in one launch
    attention_rate: float = 0.0  # share of the peak that flash attention reaches; 0: that of its products
    memory_rate: float = 0.6  # share of the memory's bandwidth that kernels reach
    link_rate: float = 0.6  # share of the links' bandwidth that collectives reach in a node
    network_rate: float = 0.7  # the same between nodes
    launch_us: float = 20.0  # host microseconds of one launch; the device idles if it is faster than the host
    wait_us: float = 20.0  # microseconds of each tensor parallel collective for each other rank
    wait_share: float = 0.0  # the same as a share of what a rank computes, unless it is 0: on a CPU
    batch_ms: float = 0.0  # milliseconds of a micro-batch beside its parts: start of the program, input
    # Milliseconds of each sum of gradients over data parallel ranks beside its traffic: Horovod's negotiation.
    sum_ms: float = 0.0
    step_ms: float = 2.0  # milliseconds of an update beside its parts
    # Nanoseconds of an update for each weight of a rank: a CPU's work on gradients beside their sum.
    gradient_ns: float = 0.0
    transfer: float = 0.5  # share of the transfers between pipeline stages that is not hidden
    reserve_gb: float = 4.0  # memory of context, libraries and communication buffers
    transport_gb: float = 0.0  # with more than one rank: connections, and the buffer for sums if the state is whole
    fragmentation: float = 0.1  # share of the activations lost between blocks of the allocator
    lost_pieces: float = 0.0  # bytes that are lost around each one of a recomputed block's input
    state_slack: float = 0.1  # temporary bytes a weight around the optimizer


@functools.cache
def systems() -> dict[str, Constants]:
    """Returns the calibrated constants by the system's name."""
    text = (resources.files("tftrain.plan") / "constants.json").read_text()
    return {name: Constants(**values) for name, values in json.loads(text).items()}


def of_trainer(gpu: bool, card: str = "") -> Constants:
    """Returns the constants of `tftrain.run` on a GPU, whose card is that of a `Cluster`, or on a CPU."""
    return systems()[on_card("encoder", card) if gpu else "tftrain_cpu"]


def on_card(system: str, card: str) -> str:
    """Returns the name of a GPU's system on a card of a `Cluster`."""
    return f"{system}_{card}" if card else system
