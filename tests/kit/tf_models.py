"""tf-models-official, the oracle of some tests. It has no release for TensorFlow 2.21, which is tested without it."""

from collections.abc import Callable, Mapping

import pytest


def tf_models(module: str):
    """Returns a module of the library by its name; without the library, the test is skipped."""
    return pytest.importorskip(module, reason="tf-models-official has no release for this TensorFlow")


def bert_pretrainer(config: Mapping, library: Callable = tf_models):
    """Builds the library's `BertPretrainerV2` by the fields of a bert_config.json, without dropout.

    Its GeLU is the library's, by tanh; `library` returns a module of the library by its name.
    """
    layers, models, networks = (library(f"official.nlp.modeling.{name}") for name in ("layers", "models", "networks"))
    activation = library("official.modeling.activations").gelu
    encoder = networks.BertEncoderV2(
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        num_layers=config["num_hidden_layers"],
        num_attention_heads=config["num_attention_heads"],
        max_sequence_length=config["max_position_embeddings"],
        type_vocab_size=config["type_vocab_size"],
        inner_dim=config["intermediate_size"],
        inner_activation=activation,
        output_dropout=0.0,
        attention_dropout=0.0,
    )
    head = layers.ClassificationHead(config["hidden_size"], num_classes=2, dropout_rate=0.0, name="next_sentence")
    return models.BertPretrainerV2(encoder, mlm_activation=activation, classification_heads=[head])


def features(batch: Mapping) -> dict:
    """Returns the inputs of the library's model for a batch in the standard format."""
    names = {"input_word_ids": "input_ids", "input_mask": "input_mask", "input_type_ids": "segment_ids"}
    names["masked_lm_positions"] = "masked_lm_positions"
    return {theirs: batch[ours] for theirs, ours in names.items()}
