"""The least number of bytes that an op moves: it reads each input once and writes each output once.

The count includes the op's own inputs and outputs, also those of backward, and nothing that only one implementation
moves. So a share of 1 of the copy bandwidth means that the op moved nothing twice.
"""

from collections.abc import Callable
from typing import NamedTuple

STATISTIC = 4  # bytes of a mean or a reciprocal deviation, and of an int32


class Extent(NamedTuple):
    """The sizes that determine the bytes.

    Attributes:
        batch: samples.
        elements: of one sample's largest tensor.
        columns: of the last axis; biases and norm parameters have as many.
        item: bytes of an element.
    """

    batch: int
    elements: int
    columns: int
    item: int

    @property
    def tensor(self) -> int:
        """Bytes of one tensor of the whole batch."""
        return self.batch * self.elements * self.item

    @property
    def vector(self) -> int:
        """Bytes of one bias, or norm parameter."""
        return self.columns * self.item

    @property
    def statistics(self) -> int:
        """Bytes of one fp32 number for each row."""
        return self.batch * self.elements // self.columns * STATISTIC


class Traffic(NamedTuple):
    """Bytes moved by each pass."""

    forward: int
    backward: int


def layer_norm(at: Extent) -> Traffic:
    """x, gamma, beta -> y, mean, rstd; and dy, x, gamma, mean, rstd -> dx, dgamma, dbeta."""
    return Traffic(
        2 * at.tensor + 2 * at.vector + 2 * at.statistics,
        3 * at.tensor + 3 * at.vector + 2 * at.statistics,
    )


def rms_norm(at: Extent) -> Traffic:
    """x, gamma -> y, rstd; and dy, x, gamma, rstd -> dx, dgamma."""
    return Traffic(2 * at.tensor + at.vector + at.statistics, 3 * at.tensor + 2 * at.vector + at.statistics)


def attention_softmax(at: Extent) -> Traffic:
    """scores, int32 mask -> probabilities, dropped; and ddropped, probabilities -> dscores, dropped."""
    return Traffic(3 * at.tensor + at.batch * at.columns * STATISTIC, 4 * at.tensor)


def attention_softmax_causal(at: Extent) -> Traffic:
    """As `attention_softmax`, but of the inputs' tensors only the keys up to each query."""
    triangle = at.tensor // at.columns * (at.columns + 1) // 2
    return Traffic(triangle + 2 * at.tensor + at.batch * at.columns * STATISTIC, 2 * triangle + 2 * at.tensor)


def bias_gelu(at: Extent) -> Traffic:
    """x, bias -> y; and dy, x, bias -> dx, dbias."""
    return Traffic(2 * at.tensor + at.vector, 3 * at.tensor + 2 * at.vector)


def geglu(at: Extent) -> Traffic:
    """gate, up, two biases -> y; and dy, gate, up, two biases -> dgate, dup, two dbias."""
    return Traffic(3 * at.tensor + 2 * at.vector, 5 * at.tensor + 4 * at.vector)


def swiglu(at: Extent) -> Traffic:
    """gate, up -> y; and dy, gate, up -> dgate, dup."""
    return Traffic(3 * at.tensor, 5 * at.tensor)


def bias_dropout_add(at: Extent) -> Traffic:
    """x, bias, residual -> y; and dy -> dx, dbias. The residual's gradient is dy itself."""
    return Traffic(3 * at.tensor + at.vector, 2 * at.tensor + at.vector)


TRAFFIC: dict[str, Callable[[Extent], Traffic]] = {
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "attention_softmax": attention_softmax,
    "attention_softmax_causal": attention_softmax_causal,
    "bias_gelu_tanh": bias_gelu,
    "bias_gelu_erf": bias_gelu,
    "geglu_tanh": geglu,
    "swiglu": swiglu,
    "bias_dropout_add": bias_dropout_add,
}

# Bytes for each fp32 parameter, of the ops that a whole update consists of. LAMB: the gradients' norm reads g (4); the
# moments read g, m, v, w and write m, v (24); the weights, which need the norms of all of that, read m, v, w and write
# w (16). AdamW: the norm (4); read g, m, v, w and write m, v, w (28). With 16-bit weights, each reading of g takes 2
# bytes instead of 4, and the weights are also written as 2.
UPDATE_BYTES = {"lamb": {"fp32": 44, "bf16": 42}, "adamw": {"fp32": 32, "bf16": 30}}


def batch_for(op: str, elements: int, columns: int, item: int, working_set: float) -> int:
    """Returns the smallest power of two, as a batch, with which forward moves at least `working_set` bytes."""
    batch = 1
    while TRAFFIC[op](Extent(batch, elements, columns, item)).forward < working_set:
        batch *= 2
    return batch
