"""From token ids to vectors: the token embedding, which may be the output layer too, and what is added to its rows."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from tftrain.architecture.architecture import Architecture
from tftrain.config.model import ModelConfig
from tftrain.model.layers import Norm
from tftrain.model.parameters import Parameters
from tftrain.model.part import ModelPart
from tftrain.ops.dropout import AxisRange, DropoutKey, dropout_at, reference_dropout
from tftrain.ops.tensors import Batch, dimension, wide_dtype
from tftrain.parallel import collectives
from tftrain.parallel.mesh import Group, Mesh
from tftrain.parallel.sparse_rows import SparseRows

EMBEDDING_SITE = 0  # dropout site; the sites of the blocks follow


class TokenEmbedding(tf.Module):
    """The table of a vector for each token of the vocabulary, as far as this rank needs it.

    Tensor parallel ranks divide the rows: a rank has consecutive tokens, and so the same classes of a tied output
    layer. With pipeline stages, the first one owns the table. If the output layer is tied, the last stage has a copy,
    without optimizer state: it sends the gradient of its copy to the owner, and receives the table after the update.

    Attributes:
        table: [vocab, H], or this rank's rows of it; None on a rank that neither looks tokens up nor predicts them. It
            is the first variable of the rank that owns it.
        first: the token of this rank's first row.
        is_shared: whether another pipeline stage has the table too.
        is_copy: whether that stage owns it.
        copy: global name -> the table, if it is a copy; else nothing.
    """

    def __init__(self, parameters: Parameters, architecture: Architecture, part: ModelPart):
        """Makes the table, before all other variables, if the part of the model that this rank holds needs it."""
        super().__init__()
        self.table, self.first, self.ranks, self.scope = None, 0, parameters.ranks, parameters.scope
        self._released = parameters.released
        self.copy: dict[str, tf.Variable] = {}
        self.is_shared = architecture.tied and part.embedding != part.heads
        self.is_copy = self.is_shared and part.heads
        if part.embedding or self.is_copy:
            self.table = parameters.leaf("word", architecture.word)
            self.first = parameters.offset("word")
        if self.is_copy:
            self.copy = {parameters.global_name("word"): self.table}

    def update_copy(self, mesh: Mesh, name: str) -> None:
        """Sends the table from its owner to the copy; every rank must call it, eagerly or in a traced function.

        The name of the transfer is unique in a graph.
        """
        if not self.is_shared:
            return
        name, link = f"token_embedding.{name}", self._link(mesh)
        if self.is_copy:
            self.table.assign(collectives.receive(link, self.table.shape, self.table.dtype, name), read_value=False)
        else:
            collectives.prevent_pruning(collectives.send(link, self.table.read_value(), name))

    def with_gradient_of_copy(self, mesh: Mesh, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the gradients of the variables that this rank owns; every rank must call it.

        Given are those of all variables of this rank, a copy of the table last.
        """
        if not self.is_shared:
            return list(gradients)
        name, link = "token_embedding.gradient", self._link(mesh)
        if self.is_copy:
            *own, of_copy = gradients
            sent = collectives.send(link, tf.cast(of_copy, tf.float32), name)
            with tf.control_dependencies([collectives.prevent_pruning(sent)]):
                return [tf.identity(gradient) for gradient in own]
        of_table, *others = gradients
        received = collectives.receive(link, self.table.shape, tf.float32, name)
        return [tf.cast(of_table, tf.float32) + received, *others]

    def _link(self, mesh: Mesh) -> Group:
        """Returns this rank and the one at the same place in the other of the first and the last stage."""
        return mesh.link(0 if self.is_copy else mesh.pipeline_parallel_size - 1)

    def rows(self, ids: tf.Tensor) -> SparseRows:
        """Looks tokens up, int32 [b, S], outside the gradient tape, so that their gradients stay rows, see `look_up`.

        Returns the ids and values of rows of this rank's table: its first row for tokens of other ranks.
        """
        local = self._local(ids)[0]
        return SparseRows(tf.reshape(local, [-1]), tf.gather(self.table, local))

    def look_up(self, ids: tf.Tensor, rows: tf.Tensor | None = None) -> tf.Tensor:
        """Returns the vectors of tokens.

        Args:
            ids: int32 [b, S], equal on every tensor parallel rank; with several of them, an id outside the vocabulary
                has the vector 0.
            rows: [b, S, H], values of `rows(ids)`, which get the gradient in the place of the table; None: the table
                gets a dense gradient.

        Returns:
            [b * S, H], in the table's dtype, equal on every rank; under sequence parallelism, of this rank's tokens.
        """
        local, is_local = self._local(tf.reshape(ids, [-1]))  # A GPU reshapes int32 numbers only on the host.
        if rows is not None:
            x = tf.reshape(rows, [-1, rows.shape[-1]])
        else:
            # A table in 8 bits can only be gathered from, and is not trained.
            is_trained = isinstance(self.table, tf.Variable)
            x = lookup(self.table, local, not self._released) if is_trained else tf.gather(self.table, local)
        if is_local is None:
            return x
        x = tf.where(tf.reshape(is_local, [-1, 1]), x, tf.zeros([], x.dtype))
        width = x.shape[1]
        return tf.reshape(self.ranks.leave(tf.reshape(x, [-1, ids.shape[1], width]), self.scope), [-1, width])

    def _local(self, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Returns rows of this rank's table for tokens, and which tokens it has; None: all of them."""
        if self.ranks.group.size == 1:
            return ids, None
        local = ids - self.first
        is_local = (local >= 0) & (local < self.table.shape[0])
        return tf.where(is_local, local, 0), is_local


class Embedding(tf_keras.layers.Layer):
    """Token + position + token type, then a norm if the architecture has one there, and dropout.

    Attributes:
        position: [first_row + max_position_embeddings, H], whose row `first_row` is that of position 0; None where the
            attention knows the positions.
        token_type: [type_vocab_size, H]; None in a family without token types.
        longest: the longest sequence, in tokens.
    """

    def __init__(
        self, parameters: Parameters, architecture: Architecture, config: ModelConfig, token_embedding: TokenEmbedding
    ):
        """Makes the tables of positions and token types, and the norm; `token_embedding` looks tokens up."""
        super().__init__(dtype=parameters.dtype, autocast=False)
        self.dropout_rate, self.ranks = config.hidden_dropout_prob, parameters.ranks
        self.token_embedding, self.longest = token_embedding, config.longest_sequence
        self.first_row, self._reads_types = config.first_row, config.family.token_types
        tables = {name: parameters.leaf(name, table) for name, table in architecture.tables}
        self.position, self.token_type = tables.get("position"), tables.get("token_type")
        norm = architecture.embedding_norm
        self.norm = Norm(parameters.inner("norm"), norm, config) if norm else None

    def call(self, batch: Batch, dropout_key: DropoutKey | None = None) -> tf.Tensor:
        """Maps token ids to the residual stream.

        Args:
            batch: input_ids, int32 [b, S]; segment_ids, int32 [b, S], each below type_vocab_size, if the family reads
                token types; position_ids, int32 [b, S], if a row has several examples, by default 0, 1, ... in every
                row; token_rows if the gradients of rows stay rows, see `TokenEmbedding.look_up`. When a function is
                traced, b may be unknown, and in inference with plain TensorFlow S too.
            dropout_key: what the dropout masks depend on; None in inference.

        Returns:
            [b, S, H], in the model's dtype; under sequence parallelism [b, S / ranks, H] of this rank's tokens.

        Raises:
            ValueError: the sequence is longer than the position embedding.
        """
        input_ids, position_ids = batch["input_ids"], batch.get("position_ids")
        if input_ids.shape[1] is not None and input_ids.shape[1] > self.longest:
            raise ValueError(
                f"sequences of {input_ids.shape[1]} tokens do not fit --max_position_embeddings={self.longest}"
            )
        length = dimension(input_ids, 1)
        first, end = self.ranks.own_tokens(length)
        x = self.token_embedding.look_up(input_ids, batch.get("token_rows"))  # [b * S, H]
        if self.token_type is not None and self._reads_types:
            # The table has about two rows: a matrix product adds up their gradients better than a scatter does.
            types = tf.reshape(tf.cast(batch["segment_ids"][:, first:end], tf.int32), [-1])
            x += tf.matmul(tf.one_hot(types, self.token_type.shape[0], dtype=self.dtype), self.token_type)
        elif self.token_type is not None:
            x += self.token_type[0]
        x = tf.reshape(x, [-1, end - first, x.shape[1]])
        if self.position is not None and position_ids is not None:
            rows = tf.reshape(position_ids[:, first:end] + self.first_row, [-1])
            x += tf.reshape(lookup(self.position, rows), tf.shape(x))
        elif self.position is not None:
            x += self.position[self.first_row + first : self.first_row + end]  # [b, S, H] + [S, H]
        if self.norm is not None:
            x = self.norm(x)
        part = AxisRange(first, length) if self.ranks.divide_sequence else None
        return reference_dropout(x, dropout_at(dropout_key, self.dropout_rate, EMBEDDING_SITE, part))


def lookup(table: tf.Tensor | tf.Variable, indices: tf.Tensor, keep: bool = True) -> tf.Tensor:
    """Picks rows of a table, with a dense gradient.

    TensorFlow's own gradient of a gather is a list of rows, `IndexedSlices`. TensorFlow adds such a list and the dense
    gradient of the tied output as one list, with more rows than the table has. This gradient adds up the rows of each
    index at once, in float32 or wider: in bfloat16 the 257th gradient of a frequent word would add nothing.

    Args:
        table: [rows, width], any float dtype.
        indices: [n], int32 or int64, each in [0, rows).
        keep: whether the table may stay in memory until backward; if not, it is a variable.

    Returns:
        [n, width], like `table`; and a gradient for the table that is a dense tensor.

    Raises:
        tf.errors.InvalidArgumentError: an index is out of range (on CPU, outside XLA).
    """

    @tf.custom_gradient
    def pick(table: tf.Tensor, indices: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
        return tf.gather(table, indices), lambda upstream: (_sum_of_rows(upstream, table, indices), None)

    if keep:
        return pick(table, indices)
    with tf.compat.v1.get_default_graph().gradient_override_map({"GatherV2": "TftrainLookup"}):
        return tf.gather(table.read_value(), indices)


@tf.RegisterGradient("TftrainLookup")
def _lookup_gradient(op: tf.Operation, upstream: tf.Tensor) -> tuple[tf.Tensor, None, None]:
    """Returns the gradient of the table; that of indices and axis is None."""
    table, indices, _axis = op.inputs
    return _sum_of_rows(upstream, table, indices), None, None


def _sum_of_rows(upstream: tf.Tensor, table: tf.Tensor | tf.Variable, indices: tf.Tensor) -> tf.Tensor:
    wide = tf.cast(upstream, wide_dtype(table.dtype))
    return tf.cast(tf.math.unsorted_segment_sum(wide, indices, dimension(table, 0)), table.dtype)
