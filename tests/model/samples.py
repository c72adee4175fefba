"""Small models and batches with every trait that can go wrong: odd sizes, padding, unused slots, all weights random."""

import collections
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from tftrain.config.model import ModelConfig
from tftrain.model.bert import BertPretrainer, LossTerms
from tftrain.model.decoder import Decoder
from tftrain.model.implementations import FLAGS
from tftrain.ops.dropout import DropoutKey
from tftrain.ops.library import unavailable_reason
from tftrain.tasks.bert_pretraining import BertPretraining

VOCAB = 59
NEEDS_OPS = pytest.mark.skipif(bool(unavailable_reason(gpu=False)), reason="the library of ops is not built")
LossSums = collections.namedtuple("LossSums", BertPretraining.sums)
PLAIN = dict.fromkeys(FLAGS, "reference")


def small_config(**changes) -> ModelConfig:
    """A model of two layers, 21 wide, three heads; weights large enough that nothing is linear."""
    sizes = {
        "vocab_size": VOCAB,
        "num_hidden_layers": 2,
        "hidden_size": 21,
        "num_attention_heads": 3,
        "intermediate_size": 35,
        "max_position_embeddings": 31,
        "initializer_range": 0.2,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        **PLAIN,
    }
    return ModelConfig(**{**sizes, **changes})


def small_model(config: ModelConfig, dtype: str = "float32", seed: int = 1) -> BertPretrainer | Decoder:
    """A model whose biases, scales and shifts are random too, the same for every dtype but for rounding."""
    model = (Decoder if config.is_causal else BertPretrainer)(config, dtype, seed)
    random = np.random.default_rng(seed)
    for name, variable in model.named_variables().items():
        if name.endswith(("bias", "beta", "gamma")):
            noise = tf.constant(random.normal(scale=0.2, size=variable.shape), variable.dtype)
            variable.assign_add(noise)
    return model


def small_batch(samples: int = 5, length: int = 19, predictions: int = 4, seed: int = 2) -> dict[str, tf.Tensor]:
    """A batch in the standard format; sample i has `length - 3 i` tokens, at least 4."""
    random = np.random.default_rng(seed)
    tokens = np.maximum(length - 3 * np.arange(samples), 4)
    batch = {
        "input_ids": random.integers(VOCAB, size=(samples, length)),
        "input_mask": np.arange(length) < tokens[:, None],
        "segment_ids": random.integers(2, size=(samples, length)),
        "masked_lm_positions": random.integers(tokens[:, None], size=(samples, predictions)),
        "masked_lm_ids": random.integers(VOCAB, size=(samples, predictions)),
        "next_sentence_labels": random.integers(2, size=samples),
    }
    used = random.integers(1, predictions + 1, size=(samples, 1))
    batch = {name: tf.constant(value, tf.int32) for name, value in batch.items()}
    return batch | {"masked_lm_weights": tf.constant(np.arange(predictions) < used, tf.float32)}


def rows(batch: dict[str, tf.Tensor], first: int, last: int) -> dict[str, tf.Tensor]:
    """Samples first..last-1 of a batch."""
    return {name: value[first:last] for name, value in batch.items()}


def dropout_key(seed: int = 3, step: int = 5, first_sample: int = 0) -> DropoutKey:
    """A DropoutKey of plain numbers."""
    return DropoutKey(seed, tf.constant(step, tf.int64), tf.constant(first_sample, tf.int64))


class Outputs(NamedTuple):
    """Logits of the masked words, [b, P, words], and of the next sentence, [b, 2] or [b, E, 2]."""

    mlm_logits: tf.Tensor
    nsp_logits: tf.Tensor


def outputs(model: BertPretrainer, batch: dict, key: DropoutKey | None = None) -> Outputs:
    """Returns what a model predicts for a batch, by the way of training up to the logits."""
    return heads(model, model.hidden_states(batch, key), batch)


def heads(model: BertPretrainer, x: tf.Tensor, batch: dict) -> Outputs:
    """Maps the residual stream after the last block to logits."""
    x = model.output(x)
    mlm_logits = model.masked_lm(x, batch["masked_lm_positions"])
    return Outputs(mlm_logits, model.next_sentence_logits(x, batch))


def mean_loss(sums: LossSums) -> tf.Tensor:
    """The loss of a batch on its own."""
    return sums.mlm_sum / sums.mlm_weight + sums.nsp_sum / sums.examples


def loss_sums(model: BertPretrainer, batch: dict, key: DropoutKey | None = None) -> LossSums:
    """Returns the `LossSums` of a batch."""
    return batch_sums(model.loss_terms(model.hidden_states(batch, key), batch), batch)


def batch_sums(terms: LossTerms, batch: dict) -> LossSums:
    """Returns the `LossSums` of what a model predicts."""
    return LossSums(**BertPretraining.batch_sums(terms, batch))


def loss_and_gradients(model: BertPretrainer, batch: dict, key: DropoutKey | None = None, scale: float = 1.0):
    """Returns the loss of a batch and name -> gradient of `scale` times the loss, divided by `scale`."""
    variables = model.named_variables()
    with tf.GradientTape() as tape:
        loss = mean_loss(loss_sums(model, batch, key))
        scaled = loss * scale
    gradients = tape.gradient(scaled, list(variables.values()))
    wide = loss.dtype
    return loss, {name: tf.cast(g, wide) / scale for name, g in zip(variables, gradients, strict=True)}


def half_unit(dtype: str) -> float:
    """Half a unit in the last place of 1: the largest relative error of rounding to `dtype` once."""
    return float(ml_dtypes.finfo(dtype).eps) / 2


def assert_close(actual, expected, rtol: float, dtype: str = "float32", roundings: int = 16, what: str = "") -> None:
    """Compares arrays of numbers that were rounded to `dtype` some times on the way.

    An element may be off by `rtol` of itself, or by `roundings` half units in the last place of the largest element:
    a small element is often a difference of large ones.
    """
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    atol = roundings * half_unit(dtype) * np.abs(expected).max()
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol, err_msg=what)


def tensor_bytes(graph: tf.Graph) -> list[int]:
    """Returns the sizes of the tensors of a traced function, and of the functions that it calls, where known."""
    graphs = [graph, *(function.graph for function in graph._functions.values() if hasattr(function, "graph"))]
    assert len(graphs) > 1
    tensors = (each for inner in graphs for operation in inner.get_operations() for each in operation.outputs)
    return [each.shape.num_elements() * each.dtype.size for each in tensors if each.shape.is_fully_defined()]
