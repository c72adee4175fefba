"""The least number of bytes that an op moves: it reads each input once and writes each output once.

The count includes the op's own inputs and outputs, also those of backward, and nothing that only one implementation
moves. So a share of 1 of the copy bandwidth means that the op moved nothing twice.
"""

from typing import NamedTuple

STATISTIC = 4  # bytes of a mean or a reciprocal deviation, and of an int32


class Moved(NamedTuple):
    """How often one pass of an op reads or writes each kind of memory."""

    tensors: int  # tensors of the whole batch
    vectors: int = 0  # biases and norm parameters
    statistics: int = 0  # fp32 numbers, one for each row
    masks: int = 0  # int32 numbers, one for each column of each sample
    triangles: int = 0  # tensors of which only the keys up to each query count

    def bytes(self, batch: int, elements: int, columns: int, item: int) -> int:
        """Returns the bytes that a pass over `batch` samples moves.

        `elements` is the size of one sample's largest tensor, `columns` the size of its last axis. Biases and norm
        parameters have `columns` elements. `item` is the bytes of an element.
        """
        rows = batch * elements // columns
        return (
            (self.tensors * rows * columns + self.triangles * rows * (columns + 1) // 2) * item
            + self.vectors * columns * item
            + (self.statistics * rows + self.masks * batch * columns) * STATISTIC
        )


class Traffic(NamedTuple):
    """Both passes of an op."""

    forward: Moved
    backward: Moved


# x, bias -> y; and dy, x, bias -> dx, dbias.
_BIAS_GELU = Traffic(Moved(2, vectors=1), Moved(3, vectors=2))
TRAFFIC = {
    # x, gamma, beta -> y, mean, rstd; and dy, x, gamma, mean, rstd -> dx, dgamma, dbeta.
    "layer_norm": Traffic(Moved(2, vectors=2, statistics=2), Moved(3, vectors=3, statistics=2)),
    # x, gamma -> y, rstd; and dy, x, gamma, rstd -> dx, dgamma.
    "rms_norm": Traffic(Moved(2, vectors=1, statistics=1), Moved(3, vectors=2, statistics=1)),
    # scores, int32 mask -> probabilities, dropped; and ddropped, probabilities -> dscores, dropped.
    "attention_softmax": Traffic(Moved(3, masks=1), Moved(4)),
    # The same, but of the inputs' tensors only the keys up to each query.
    "attention_softmax_causal": Traffic(Moved(2, masks=1, triangles=1), Moved(2, triangles=2)),
    "bias_gelu_tanh": _BIAS_GELU,
    "bias_gelu_erf": _BIAS_GELU,
    # gate, up, two biases -> y; and dy, gate, up, two biases -> dgate, dup, two dbias.
    "geglu_tanh": Traffic(Moved(3, vectors=2), Moved(5, vectors=4)),
    # gate, up -> y; and dy, gate, up -> dgate, dup.
    "swiglu": Traffic(Moved(3), Moved(5)),
    # x, bias, residual -> y; and dy -> dx, dbias. The residual's gradient is dy itself.
    "bias_dropout_add": Traffic(Moved(3, vectors=1), Moved(2, vectors=1)),
}

# Bytes for each fp32 parameter, of the ops that a whole update consists of. LAMB: the gradients' norm reads g (4); the
# moments read g, m, v, w and write m, v (24); the weights, which need the norms of all of that, read m, v, w and write
# w (16). AdamW: the norm (4); read g, m, v, w and write m, v, w (28). With 16-bit weights, each reading of g takes 2
# bytes instead of 4, and the weights are also written as 2.
UPDATE_BYTES = {"lamb": {"fp32": 44, "bf16": 42}, "adamw": {"fp32": 32, "bf16": 30}}


def batch_for(op: str, elements: int, columns: int, item: int, working_set: float) -> int:
    """Returns the smallest power of two, as a batch, with which forward moves at least `working_set` bytes."""
    batch = 1
    while TRAFFIC[op].forward.bytes(batch, elements, columns, item) < working_set:
        batch *= 2
    return batch
