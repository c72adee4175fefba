"""Orthogonal updates of hidden matrices (Muon): the momentum of a matrix, with all singular values brought near 1.

Newton-Schulz iteration needs the whole matrix. Data parallel ranks that partition the state own whole matrices, so that
an owner computes alone. Tensor parallel ranks gather the shards of a matrix, all compute the same, and each takes its
own shard.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from tftrain.architecture.shard import VariableShard
from tftrain.config.optimizer import ORTHOGONAL_ITERATIONS
from tftrain.optim.state_layout import Slice
from tftrain.parallel import collectives
from tftrain.parallel.mesh import Group

# a x + b x^3 + c x^5 of Muon (kellerjordan.github.io/posts/muon), which brings singular values between 0.7 and 1.2.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
# Moonlight (arXiv 2502.16982, section 2.2): 0.2 sqrt(max(rows, columns)) gives updates the root mean square of those of
# AdamW, so that one learning rate and one weight decay serve all tensors.
RMS_OF_ADAMW = 0.2


def orthogonalized(matrix: tf.Tensor, products: tf.DType = tf.float32) -> tf.Tensor:
    """Returns about U V^T of a matrix U S V^T, fp32 [rows, columns], computed with products of the dtype `products`."""
    rows, columns = matrix.shape
    a, b, c = COEFFICIENTS
    x = tf.transpose(matrix) if rows > columns else matrix  # The products are of the shorter side.
    x = tf.cast(x / (tf.norm(x) + 1e-7), products)
    for _ in range(ORTHOGONAL_ITERATIONS):
        square = tf.matmul(x, x, transpose_b=True)
        x = a * x + tf.matmul(b * square + c * tf.matmul(square, square), x)
    x = tf.cast(x, tf.float32)
    return tf.transpose(x) if rows > columns else x


@dataclass(frozen=True)
class Orthogonalization:
    """Makes the momenta of the matrices of a store updates; each slice is a whole matrix, or a tensor parallel one."""

    shards: Sequence[VariableShard]  # what this rank holds of each tensor of a state
    group: Group  # the tensor parallel ranks
    products: tf.DType

    def __call__(self, momentum: tf.Tensor, slices: Sequence[Slice]) -> tf.Tensor:
        """Returns the update of a store, fp32, of the shape of its momentum; all ranks of the group call it."""
        parts = tf.split(tf.reshape(momentum, [-1]), [item.size for item in slices])
        updates, done = [], []
        for part, (tensor, _) in zip(parts, slices, strict=True):
            # One matrix after the other: the iteration takes several times the memory of one.
            with tf.control_dependencies(done):
                updates.append(part if tensor is None else tf.reshape(self._of_tensor(part, tensor), [-1]))
            done = updates[-1:]
        return tf.reshape(tf.concat(updates, 0), momentum.shape)

    def _of_tensor(self, momentum: tf.Tensor, tensor: int) -> tf.Tensor:
        shard = self.shards[tensor]
        scale = RMS_OF_ADAMW * max(shard.whole) ** 0.5
        block = tf.reshape(momentum, shard.shape)
        if not shard.is_divided:
            return scale * orthogonalized(block, self.products)
        by_columns = shard.shape[0] == shard.whole[0]
        rows = tf.transpose(block) if by_columns else block
        whole = collectives.all_gather_rows(self.group, rows, f"matrix.{shard.name}")
        whole = tf.ensure_shape(whole, shard.whole[::-1] if by_columns else shard.whole)
        update = scale * orthogonalized(whole, self.products)
        return shard.take(tf.transpose(update) if by_columns else update)
