"""The workloads of other software, and what its runs hold and send otherwise than this trainer's."""

from typing import Any

from tftrain.bench.published import encoder, megatron
from tftrain.config.parallel import ParallelConfig
from tftrain.plan import inventory, memory
from tftrain.plan.workload import Workload


class OtherWorkload(Workload):
    """A job of other software: ZeRO's partition is that of its paper, and an update widens gradients of 16 bits."""

    runs_here = copies_table = sharded_masters = owns_tensors = False
    widens_gradients = property(lambda work: work.precision != "fp32")
    # Without a buffer for sums, ZeRO-2 partitions the gradients themselves; ZeRO-1 sums them for all ranks.
    whole_gradients = property(lambda work: bool(work.accumulation) and work.zero_stage < 3)
    sums_to_owners = property(lambda work: work.zero_stage == 2)


class Megatron(OtherWorkload):
    """Megatron-LM, which accumulates into the gradients' own buffer."""

    @classmethod
    def adapted(cls, work: Workload, zero_stage: int | None) -> "Megatron":
        """See `Workload`."""
        partitioned = work._replace(zero_stage=1).owners > 1
        stage = work.zero_stage if zero_stage is None else zero_stage * partitioned
        return cls(*work)._replace(accumulation="", zero_stage=stage)

    def stage_flags(self, current: ParallelConfig) -> dict[str, Any]:
        """See `Workload`."""
        return {"zero_stage": self.zero_stage}


class Fsdp(Megatron):
    """A decoder on PyTorch's FSDP, with ZeRO-2 or ZeRO-3: shards are the masters, and blocks are gathered."""

    gathers_blocks = sharded_masters = property(lambda work: work.zero_stage >= 2)


class EncoderJob(OtherWorkload):
    """The encoder of the published tables: every micro-batch sums gradients, on one GPU too."""

    gradient_sums = Workload.micro_batches


@inventory.make_parts.register
def _(work: Megatron) -> inventory.Parts:
    return inventory.Parts(megatron.block(work), megatron.embedding(work), megatron.head(work))


@inventory.make_parts.register
def _(work: EncoderJob) -> inventory.Parts:
    return inventory.Parts(encoder.block(work), encoder.embedding(work), encoder.head(work))


@memory.gathered.register
def _(work: OtherWorkload, weights: float) -> float:
    """The embedding and the output layer stay whole, and with FSDP's ZeRO-2 all weights."""
    one_block, layers = inventory.parts(work).block.weights, work.layers_of(0)
    some = min(2, layers) * one_block + weights - layers * one_block
    return work.item * ((some if work.zero_stage == 3 else weights) + some)


@memory.held_by_stages.register
def _(work: OtherWorkload, stage: int) -> list[tuple[str, float]]:
    return []
