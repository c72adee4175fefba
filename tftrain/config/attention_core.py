"""Which attention core `--attn_impl=auto` stands for: the fastest one that flags, data and device allow."""

from typing import NamedTuple

from tftrain.config import cudnn, length_choice
from tftrain.config.compute import ComputeConfig
from tftrain.config.data import DataConfig
from tftrain.config.model import HEAD_SIZES, ModelConfig
from tftrain.config.parallel import ParallelConfig

# On CPUs, in 16 bits and with nothing to skip, flash is faster from here on: docs/results/benchmarks.md.
FLASH_LENGTH = 512


class AttentionChoice(NamedTuple):
    """What a run knows of its attention core before TensorFlow is loaded."""

    core: str  # softmax, flash or cudnn; never auto
    lengths: tuple[int, ...] = ()  # tokens of the rows that the core will take


def takes_heads(core: str, size: int) -> bool:
    """Whether a core takes heads of `size` elements."""
    multiple, largest = HEAD_SIZES.get(core, (1, size))
    return size % multiple == 0 and size <= largest


def chosen(
    model: ModelConfig, data: DataConfig, compute: ComputeConfig, parallel: ParallelConfig, gpu: bool
) -> AttentionChoice:
    """Returns the core of a run whose flags have no problems, on a GPU or on the CPU."""
    longest = data.max_seq_length or 0
    lengths = length_choice.read(data.seq_length_buckets, longest) if longest else ()
    core = model.attn_impl if model.attn_impl != "auto" else _fastest(model, data, compute, parallel, gpu)
    return AttentionChoice(core, lengths)


def of_packed_rows(model: ModelConfig) -> str:
    """Returns the value of `--attn_impl` for rows of several examples: flash skips what they hide from each other."""
    return "flash" if model.attn_impl == "auto" and takes_heads("flash", model.head_size) else model.attn_impl


def _fastest(model: ModelConfig, data: DataConfig, compute: ComputeConfig, parallel: ParallelConfig, gpu: bool) -> str:
    if not takes_heads("flash", model.head_size):
        return "softmax"
    if gpu:
        # Labelled examples may be packed.
        refused = model.reads_examples or cudnn.reason_against(model, data, compute, parallel)
        return "flash" if refused or not takes_heads("cudnn", model.head_size) else "cudnn"
    skips = model.is_causal or model.local_attention > 0 or compute.precision == "fp32"
    return "flash" if skips or (data.max_seq_length or 0) >= FLASH_LENGTH else "softmax"
