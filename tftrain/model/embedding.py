"""From token ids to vectors: the sum of a word's, a position's and a token type's embedding."""

import tensorflow as tf
import tf_keras

from tftrain.config import ModelConfig
from tftrain.model.dropout import DropoutKey, dropout
from tftrain.model.lookup import lookup
from tftrain.model.normalization import LayerNorm
from tftrain.model.parameters import Parameters
from tftrain.model.vocabulary import sliced_lookup


class Embedding(tf_keras.layers.Layer):
    """Word + position + token type, then LayerNorm (post-norm models only) and dropout.

    Attributes:
        word: [vocab, H], or this rank's rows of it; the masked-LM head shares it.
        position: [max_position_embeddings, H].
        token_type: [type_vocab_size, H].
    """

    def __init__(self, parameters: Parameters, config: ModelConfig, vocab_size: int, dropout_site: int):
        """Makes the three tables, and the norm of a post-norm model.

        Args:
            parameters: where the variables come from.
            config: sizes, the place of the norms, the hidden dropout.
            vocab_size: rows of the word table.
            dropout_site: dropout site of the sum.
        """
        super().__init__(dtype=parameters.dtype, autocast=False)
        self.dropout_rate, self.dropout_site = config.hidden_dropout_prob, dropout_site
        hidden = config.hidden_size
        self.word = parameters.normal("word", [vocab_size, hidden], axis=0)
        self.group, self.place, self.first_word = parameters.tensor, parameters.place, parameters.offset("word")
        self.position = parameters.normal("position", [config.max_position_embeddings, hidden])
        self.token_type = parameters.normal("token_type", [config.type_vocab_size, hidden])
        post_norm = config.norm_position == "post"
        self.norm = LayerNorm(parameters.scope("norm"), config) if post_norm else None

    def call(
        self,
        input_ids: tf.Tensor,
        segment_ids: tf.Tensor,
        dropout_key: DropoutKey | None,
        lookup_table: tf.Tensor | None,
    ) -> tf.Tensor:
        """Embeds a batch.

        Args:
            input_ids: int32 [b, S].
            segment_ids: int32 [b, S], each below type_vocab_size.
            dropout_key: None in inference.
            lookup_table: like `word`, used for the words in place of the variable, see `BertPretrainer.call`.

        Returns:
            [b, S, H], in the model's dtype.
        """
        length, hidden = input_ids.shape[1], self.position.shape[1]
        ids = tf.reshape(input_ids, [-1])
        look_up, table = (lookup, self.word) if lookup_table is None else (tf.gather, lookup_table)
        if self.group.size == 1:
            words = look_up(table, ids)  # [b * S, H]
        else:
            words = sliced_lookup(look_up, table, ids, self.first_word, self.group, self.place)
        # Two or so rows: a product with one-hot rows has the better gradient, a sum inside a matrix product.
        types = tf.one_hot(tf.reshape(segment_ids, [-1]), self.token_type.shape[0], dtype=self.dtype)
        x = tf.reshape(words + tf.matmul(types, self.token_type), [-1, length, hidden])
        x += self.position[:length]  # [b, S, H] + [S, H]
        if self.norm is not None:
            x = self.norm(x)
        return dropout(x, self.dropout_rate, dropout_key, self.dropout_site)
