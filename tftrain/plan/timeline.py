"""The planned memory of a rank over one step: forward, backward and update, from the saved tensors block by block.

Pipeline stages have no timeline: their schedule decides how many micro-batches they hold at a time.
"""

from typing import NamedTuple

from tftrain.plan import inventory, memory, timing
from tftrain.plan.cluster import Cluster
from tftrain.plan.system import Constants
from tftrain.plan.workload import Workload


class Moment(NamedTuple):
    """What a rank holds from some time of a step on."""

    seconds: float  # since the step began
    held: float  # bytes
    phase: str  # forward, backward or update; it begins here if it differs from that of the moment before


def of_step(work: Workload, cluster: Cluster, constants: Constants) -> list[Moment]:
    """Returns the moments of a step without a pipeline, the last one at its end."""
    needed, seconds = memory.estimate(work, constants), timing.step(work, cluster, constants)
    parts, durations = inventory.parts(work), timing.part_durations(work, cluster, constants)
    (block, embedding, head), (of_block, of_embedding, of_head) = parts, durations
    lasting = sum(needed[:4]) + needed.reserve + needed.accumulation + needed.gathered + needed.vectors
    kept = sum(size for _, size in memory.saved_by_blocks(work, block, layers=1, under_way=1))
    again = sum(saved.size for saved in block.saved) - kept
    share = needed.gradients / inventory.weights(work)  # bytes of a gradient that stays
    saved_by_ends = [sum(saved.size for saved in part.saved) for part in (embedding, head)]
    moments, now = [Moment(0.0, lasting, "forward")], 0.0
    # With ZeRO-3, blocks wait for their weights; other sums follow backward.
    between = seconds.gradient_sums if work.zero_stage == 3 else 0.0
    wait = 1 + between / (seconds.total - seconds.gradient_sums - seconds.update - seconds.first_pass)

    def move(length: float, held: float, phase: str) -> None:
        nonlocal now
        now += length * (1.0 if phase == "update" else wait)
        moments.append(Moment(now, held, phase))

    move(seconds.first_pass / wait, lasting, "forward")
    for _ in range(max(1, round(work.micro_batches))):
        held, gradients = lasting + saved_by_ends[0], 0.0
        move(of_embedding.forward, held, "forward")
        for _ in range(work.model.layers):
            held += kept
            move(of_block.forward, held, "forward")
        move(of_head.forward, held + saved_by_ends[1], "forward")
        gradients += share * head.weights
        move(of_head.backward, held + gradients, "backward")
        for _ in range(work.model.layers):
            move(0.0, held + again + gradients, "backward")
            held, gradients = held - kept, gradients + share * block.weights
            move(of_block.backward, held + again + gradients, "backward")
        gradients += share * embedding.weights
        move(of_embedding.backward, lasting + gradients + embedding.summands, "backward")
        move(0.0, lasting + (0.0 if work.accumulation else gradients), "backward")
    left = needed.temporaries + needed.communication + (0.0 if work.accumulation else needed.gradients)
    move(0.0, lasting + left, "update")
    move(seconds.gradient_sums - between + seconds.update, lasting + left, "update")
    return [*moments, Moment(now, lasting, "update")]
