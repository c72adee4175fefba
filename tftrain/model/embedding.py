"""From token ids to vectors, and the vocabulary that tensor parallel ranks divide.

A tensor parallel rank has consecutive rows of the word embedding, and so the same classes of the tied output
(`output_layer`).
"""

import math
from collections.abc import Callable

import tensorflow as tf
import tf_keras

from tftrain.architecture.architecture import Architecture
from tftrain.config.train import ModelConfig
from tftrain.model.layers import LayerNorm
from tftrain.model.parameters import Parameters
from tftrain.ops.dropout import AxisRange, DropoutKey, dropout_at, reference_dropout
from tftrain.ops.dtypes import wide_dtype
from tftrain.ops.shapes import dimension
from tftrain.parallel.tensor import TensorRanks


class Embedding(tf_keras.layers.Layer):
    """Word + position + token type, then LayerNorm if the architecture has one there, and dropout.

    Attributes:
        word: [vocab, H], or this rank's rows of it; the output layer shares it.
        position: [max_position_embeddings, H]; None where the attention knows the positions.
        token_type: [type_vocab_size, H]; None in a decoder.
        longest: the longest sequence, in tokens.
    """

    def __init__(
        self,
        parameters: Parameters,
        architecture: Architecture,
        config: ModelConfig,
        word: tf.Variable,
        dropout_site: int,
    ):
        """Makes the tables of positions and token types, and the norm.

        Args:
            parameters: makes the variables, and has made `word`.
            architecture: which tables there are, and whether there is a norm.
            config: the hidden dropout and the norm's implementation.
            word: the word table.
            dropout_site: dropout site of the sum.
        """
        super().__init__(dtype=parameters.dtype, autocast=False)
        self.dropout_rate, self.dropout_site = config.hidden_dropout_prob, dropout_site
        self.word, self.longest = word, architecture.positions or math.inf
        self.ranks, self.place, self.first_word = parameters.ranks, parameters.place, parameters.offset("word")
        tables = {name: parameters.normal(name, [table.rows, table.width]) for name, table in architecture.tables}
        self.position, self.token_type = tables.get("position"), tables.get("token_type")
        norm = architecture.embedding_norm
        self.norm = LayerNorm(parameters.scope("norm"), norm, config) if norm else None

    def call(
        self,
        input_ids: tf.Tensor,
        segment_ids: tf.Tensor | None,
        dropout_key: DropoutKey | None,
        lookup_table: tf.Tensor | None,
        position_ids: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Embeds a batch.

        Args:
            input_ids: int32 [b, S].
            segment_ids: int32 [b, S], each below type_vocab_size; not used in a decoder.
            dropout_key: None in inference.
            lookup_table: like `word`; if given, words are looked up in it, see `Transformer.embed`.
            position_ids: int32 [b, S], each below max_position_embeddings; by default 0, 1, ... in every row.

        Returns:
            [b, S, H], in the model's dtype; under sequence parallelism [b, S / ranks, H] of this rank's tokens.
        """
        length, hidden = dimension(input_ids, 1), self.word.shape[1]
        first, end = self.ranks.own_tokens(length)
        table = self.word if lookup_table is None else lookup_table
        look_up = lookup if isinstance(table, tf.Variable) else tf.gather
        if self.ranks.group.size == 1:
            x = look_up(table, tf.reshape(input_ids, [-1]))  # [b * S, H]
        else:
            x = sliced_lookup(look_up, table, input_ids, self.first_word, self.ranks, self.place)
            x = tf.reshape(x, [-1, hidden])
        if self.token_type is not None:
            # The table has about two rows. The gradient of a product with one-hot rows is a matrix product, which adds
            # up many rows better than a scatter does.
            types = tf.one_hot(tf.reshape(segment_ids[:, first:end], [-1]), self.token_type.shape[0], dtype=self.dtype)
            x += tf.matmul(types, self.token_type)
        x = tf.reshape(x, [-1, end - first, hidden])
        if self.position is not None and position_ids is not None:
            x += tf.reshape(lookup(self.position, tf.reshape(position_ids[:, first:end], [-1])), tf.shape(x))
        elif self.position is not None:
            x += self.position[first:end]  # [b, S, H] + [S, H]
        if self.norm is not None:
            x = self.norm(x)
        part = AxisRange(first, length) if self.ranks.divide_sequence else None
        return reference_dropout(x, dropout_at(dropout_key, self.dropout_rate, self.dropout_site, part))


@tf.custom_gradient
def lookup(table: tf.Tensor, indices: tf.Tensor):
    """Picks rows of a table, with a dense gradient.

    TensorFlow's own gradient of a gather is a list of rows, `IndexedSlices`. TensorFlow adds such a list and the dense
    gradient of the tied output as one list, with more rows than the table has. This gradient adds up the rows of each
    index at once, in float32 or wider: in bfloat16 the 257th gradient of a frequent word would add nothing.

    Args:
        table: [rows, width], any float dtype.
        indices: [n], int32 or int64, each in [0, rows).

    Returns:
        [n, width], like `table`; and a gradient for the table that is a dense tensor.

    Raises:
        tf.errors.InvalidArgumentError: an index is out of range (on CPU, outside XLA).
    """

    def gradient(upstream):
        wide = tf.cast(upstream, wide_dtype(table.dtype))
        total = tf.math.unsorted_segment_sum(wide, indices, tf.shape(table)[0])
        return tf.cast(total, table.dtype), None

    return tf.gather(table, indices), gradient


def sliced_lookup(
    look_up: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    table: tf.Tensor,
    ids: tf.Tensor,
    first: int,
    ranks: TensorRanks,
    place: str,
) -> tf.Tensor:
    """Picks rows of a table that tensor parallel ranks divide.

    Args:
        look_up: a function of table and indices, such as `tf.gather`. The words of other ranks look up this rank's
            first row and give it gradients of zero.
        table: [rows of this rank, width].
        ids: int32 [b, S], indices into the whole table, equal on every rank; an index outside it picks zeros.
        first: index of this rank's first row.
        ranks: the ranks.
        place: name of the layer, for the collective.

    Returns:
        [b, S, width], in the table's dtype, equal on every rank; or, under sequence parallelism, this rank's tokens.
    """
    local_ids = tf.reshape(ids - first, [-1])
    is_local = (local_ids >= 0) & (local_ids < table.shape[0])
    rows = look_up(table, tf.where(is_local, local_ids, 0))
    rows = tf.where(is_local[:, tf.newaxis], rows, tf.zeros([], rows.dtype))
    return ranks.leave(tf.reshape(rows, [-1, ids.shape[1], table.shape[1]]), place)
