"""Multi-head self-attention (Vaswani et al., arXiv 1706.03762)."""

import tensorflow as tf
import tf_keras

from tftrain.architecture import parts
from tftrain.config.train import ModelConfig
from tftrain.model.attention_cores import AttentionMask, core_of
from tftrain.model.checkpointing import KEEP_ALL, Checkpointing
from tftrain.model.layers import Dense, Entered, enter_dense, leave_dense
from tftrain.model.parameters import Parameters
from tftrain.model.positions import alibi_slopes, rotate
from tftrain.ops.dropout import AxisRange, DropoutKey, dropout_at
from tftrain.ops.shapes import dimension


class SelfAttention(tf_keras.layers.Layer):
    """Queries, keys and values from one input, an attention core, and the output projection.

    Tensor parallel ranks divide the heads. Each rank has the query, key and value projections of its heads, and the
    rows of the output projection that belong to its heads.
    """

    def __init__(
        self,
        parameters: Parameters,
        spec: parts.Attention,
        config: ModelConfig,
        probabilities_site: int,
        checkpointing: Checkpointing = KEEP_ALL,
    ):
        """Makes the projections `query`, `key`, `value` and `output`.

        Args:
            parameters: makes the variables.
            spec: the projections, the heads and the kind of positions.
            config: the attention core, its dropout and the initial weights.
            probabilities_site: dropout site of the attention probabilities.
            checkpointing: whether backward recomputes the core.
        """
        super().__init__(dtype=parameters.dtype, autocast=False)
        self.core, self.checkpointing = core_of(config), checkpointing
        self.dropout_rate, self.dropout_site = config.attention_probs_dropout_prob, probabilities_site
        self.ranks, self.place = parameters.ranks, parameters.place
        self.head_size, self.rotary, self.slopes = spec.head_size, spec.positions == "rotary", None
        self.query = Dense(parameters.scope("query"), spec.query)
        self.key = Dense(parameters.scope("key"), spec.key)
        self.value = Dense(parameters.scope("value"), spec.value)
        self.output_projection = Dense(parameters.scope("output"), spec.output, config.residual_init_scale)
        self.heads, self.head_range = self.query.kernel.shape[1] // self.head_size, None
        first = parameters.scope("query").offset("kernel") // self.head_size
        if self.ranks.group.size > 1:
            self.head_range = AxisRange(first, spec.heads)
        if spec.positions == "alibi":
            self.slopes = alibi_slopes(spec.heads)[first : first + self.heads]
        self._attend_as_piece = self.ranks.piece(self._attend)

    def call(
        self, x: tf.Tensor, mask: AttentionMask, dropout_key: DropoutKey | None, with_bias: bool = True
    ) -> tf.Tensor:
        """Lets every token attend to the tokens of its sample.

        Args:
            x: [b, S, H], or this rank's tokens of it.
            mask: which keys a query attends to.
            dropout_key: None in inference.
            with_bias: False if the op that follows adds the bias of the output projection.

        Returns:
            Like `x`; for a sample without tokens, the output projection of zeros.
        """
        x = enter_dense(self.ranks, x, [self.query, self.key, self.value], self.place)
        attended = self._attend_as_piece(x, mask, dropout_key, with_bias and self.ranks.group.size == 1)
        return leave_dense(self.ranks, attended, self.output_projection, with_bias)

    def _attend(self, x: Entered, mask: AttentionMask, dropout_key: DropoutKey | None, with_bias: bool) -> tf.Tensor:
        """Returns this rank's part of the output, [b, S, H]."""
        projected = x.outputs([self.query, self.key, self.value])
        query, key, value = (self._split_heads(each) for each in projected)
        if self.rotary:
            query, key = rotate(query), rotate(key)
        mask = mask._replace(slopes=self.slopes)
        dropout = dropout_at(dropout_key, self.dropout_rate, self.dropout_site, self.head_range)
        context = self.checkpointing.attention_core(self.core, query, key, value, mask, dropout)
        width = self.heads * self.head_size
        context = tf.reshape(context, [-1, dimension(context, 1), width])  # [b, S, H of this rank]
        return self.output_projection(context, with_bias=with_bias)

    def _split_heads(self, x: tf.Tensor) -> tf.Tensor:
        """Maps [b, S, H of this rank] to [b, S, heads of this rank, head_size]."""
        return tf.reshape(x, [-1, dimension(x, 1), self.heads, self.head_size])
