"""The workloads of other software, and what its runs hold and send otherwise than this trainer's.

`megatron.py` has the inventory of Megatron-LM's decoders, which FSDP's share, and `encoder.py` the inventory of the
encoder of the published tables.
"""

from typing import Any

from tftrain.bench.published import encoder, megatron
from tftrain.config.parallel import ParallelConfig
from tftrain.plan import inventory, memory
from tftrain.plan.inventory import Parts
from tftrain.plan.workload import Workload


class OtherWorkload(Workload):
    """A job of other software: ZeRO's partition is that of its paper, and an update widens gradients of 16 bits."""

    runs_here = copies_table = sharded_masters = has_tensor_owners = False

    @property
    def widens_gradients(self) -> bool:
        """See `Workload`."""
        return self.precision != "fp32"

    @property
    def whole_gradients(self) -> bool:
        """See `Workload`; without a buffer for sums, ZeRO-2 partitions the gradients themselves."""
        return bool(self.accumulation) and self.zero_stage < 3

    @property
    def sums_to_owners(self) -> bool:
        """See `Workload`; ZeRO-1 sums gradients for all ranks."""
        return self.zero_stage == 2


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

    @property
    def sharded_masters(self) -> bool:
        """See `Workload`."""
        return self.zero_stage >= 2

    gathers_blocks = sharded_masters


class EncoderJob(OtherWorkload):
    """The encoder of the published tables: every micro-batch sums gradients, on one GPU too."""

    @property
    def gradient_sums(self) -> float:
        """See `Workload`."""
        return self.micro_batches


@inventory.make_parts.register
def _(work: Megatron) -> Parts:
    return Parts(megatron.block(work), megatron.embedding(work), megatron.head(work))


@inventory.make_parts.register
def _(work: EncoderJob) -> Parts:
    return Parts(encoder.block(work), encoder.embedding(work), encoder.head(work))


@memory.gathered.register
def _(work: OtherWorkload, weights: float) -> float:
    """The embedding and the output layer stay whole, and with FSDP's ZeRO-2 all weights."""
    one_block, layers = inventory.parts(work).block.weights, work.layers_of(0)
    some = min(2, layers) * one_block + weights - layers * one_block
    return work.item * ((some if work.zero_stage == 3 else weights) + some)


@memory.held_by_stages.register
def _(work: OtherWorkload, one: Workload, stage: int) -> list[tuple[str, float]]:
    return []
