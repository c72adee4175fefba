"""tf-models' `BertPretrainerV2` with the weights of a `BertPretrainer`: an independent implementation to compare with.

Its variables have other names and, in the attention, other shapes: kernels [H, heads, head_size] where ours are
[H, H]. The map between the two is written out here once.
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from tests.kit.tf_models import tf_models
from tftrain.architecture.describe import describe
from tftrain.config.model import ModelConfig
from tftrain.model.bert import BertPretrainer

layers, losses, models, networks = (
    tf_models(f"official.nlp.modeling.{name}") for name in ("layers", "losses", "models", "networks")
)


class OracleOutputs(NamedTuple):
    """mlm_logits [b, P, vocab] and nsp_logits [b, 2], float32."""

    mlm_logits: tf.Tensor
    nsp_logits: tf.Tensor


@dataclasses.dataclass
class Oracle:
    """tf-models' model, and its variables under our names.

    Attributes:
        model: a `BertPretrainerV2`.
        variables: our global name -> tf-models' variable, of the same number of elements in the same order.
    """

    model: models.BertPretrainerV2
    variables: dict[str, tf.Variable]

    def copy_weights(self, source: BertPretrainer) -> None:
        """Gives the oracle the weights of `source`; raises KeyError where the two models' variables differ."""
        ours = source.named_variables()
        if set(ours) != set(self.variables):
            raise KeyError(f"without a counterpart: {sorted(set(ours) ^ set(self.variables))}")
        for name, variable in self.variables.items():
            variable.assign(tf.reshape(tf.cast(ours[name], variable.dtype), variable.shape))

    def run(self, batch: Mapping[str, tf.Tensor]) -> OracleOutputs:
        """Runs the model on a batch in the standard format, without dropout."""
        inputs = {
            "input_word_ids": batch["input_ids"],
            "input_mask": batch["input_mask"],
            "input_type_ids": batch["segment_ids"],
            "masked_lm_positions": batch["masked_lm_positions"],
        }
        outputs = self.model(inputs, training=False)
        return OracleOutputs(outputs["mlm_logits"], outputs["next_sentence"])

    @staticmethod
    def loss(outputs: OracleOutputs, batch: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Returns tf-models' masked-LM loss, a mean over the weights, plus its next-sentence loss."""
        entropy = losses.weighted_sparse_categorical_crossentropy_loss
        mlm = entropy(batch["masked_lm_ids"], outputs.mlm_logits, batch["masked_lm_weights"], from_logits=True)
        return mlm + entropy(batch["next_sentence_labels"], outputs.nsp_logits, from_logits=True)


def build_oracle(config: ModelConfig, vocab_size: int) -> Oracle:
    """Builds tf-models' model of a configuration, with weights of its own.

    Args:
        config: a post-norm model with GeLU and biased keys; dropout rates are not looked at.
        vocab_size: rows of the token embedding.

    Returns:
        An Oracle in float32.

    Raises:
        ValueError: tf-models has no such model.
    """
    if describe(config).block.pre_norm or config.activation != "gelu" or not config.use_bias_in_keys:
        raise ValueError(f"tf-models has only post-norm, GeLU and biased keys, not {config}")

    def activation(x):
        return tf.nn.gelu(x, approximate=config.gelu_form == "tanh")

    encoder = networks.BertEncoderV2(
        vocab_size=vocab_size,
        hidden_size=config.hidden_size,
        num_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        max_sequence_length=config.max_position_embeddings,
        type_vocab_size=config.type_vocab_size,
        inner_dim=config.feed_forward_size,
        inner_activation=activation,
        output_dropout=0.0,
        attention_dropout=0.0,
    )
    head = layers.ClassificationHead(config.hidden_size, num_classes=2, dropout_rate=0.0, name="next_sentence")
    model = models.BertPretrainerV2(encoder, mlm_activation=activation, classification_heads=[head])
    oracle = Oracle(model, {})
    zeros = tf.zeros([1, config.max_position_embeddings], tf.int32)
    names = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions")
    oracle.run(dict.fromkeys(names, zeros))  # makes the variables
    oracle.variables = _variables_by_our_names(model)
    return oracle


def _variables_by_our_names(model: models.BertPretrainerV2) -> dict[str, tf.Variable]:
    found = {}

    def dense(name: str, layer) -> None:
        found[f"{name}/kernel"], found[f"{name}/bias"] = layer.kernel, layer.bias

    def norm(name: str, layer) -> None:
        found[f"{name}/gamma"], found[f"{name}/beta"] = layer.gamma, layer.beta

    encoder = model.encoder_network
    found["embeddings/word"] = encoder.get_embedding_table()
    (found["embeddings/position"],) = encoder._position_embedding_layer.weights
    (found["embeddings/token_type"],) = encoder._type_embedding_layer.weights
    norm("embeddings/norm", encoder._embedding_norm_layer)
    for number, block in enumerate(encoder.transformer_layers):
        attention, name = block._attention_layer, f"layer_{number:02d}"
        dense(f"{name}/attention/query", attention._query_dense)
        dense(f"{name}/attention/key", attention._key_dense)
        dense(f"{name}/attention/value", attention._value_dense)
        dense(f"{name}/attention/output", attention._output_dense)
        norm(f"{name}/attention/norm", block._attention_layer_norm)
        dense(f"{name}/feed_forward/up", block._intermediate_dense)
        dense(f"{name}/feed_forward/down", block._output_dense)
        norm(f"{name}/feed_forward/norm", block._output_layer_norm)
    dense("masked_lm/transform", model.masked_lm.dense)
    norm("masked_lm/norm", model.masked_lm.layer_norm)
    found["masked_lm/bias"] = model.masked_lm.bias
    (head,) = model.classification_heads
    dense("pooler", head.dense)
    dense("next_sentence", head.out_proj)
    return found
