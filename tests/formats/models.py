"""Runs a model with weights from files, and the places of the fixtures."""

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf
from safetensors.numpy import load_file, save_file

from tests.model import samples
from tests.model.samples import PLAIN
from tftrain.formats.weights import Weights
from tftrain.model.bert import BertClassifier, BertPretrainer
from tftrain.model.decoder import Decoder

DATA, TENSORS = Path(__file__).parent / "data", "model.safetensors"


def edited(folder: Path, fixture: str, fields: Mapping | None = None, tensors=lambda same: same, file="config.json"):
    """Returns a copy of a fixture with other fields of a file, and the tensors that a function makes of its own."""
    shutil.copytree(DATA / fixture, folder)
    content = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**content, **(fields or {})}))
    save_file(tensors(load_file(folder / TENSORS)), folder / TENSORS, {"format": "pt"})
    return folder


def assert_same_tensors(found: Path, expected: Path) -> None:
    """Compares the files of two models of transformers, names and bits."""
    tensors, others = load_file(found / TENSORS), load_file(expected / TENSORS)
    assert tensors.keys() == others.keys()
    for name, value in others.items():
        np.testing.assert_array_equal(tensors[name], value, err_msg=name)


def build(weights: Weights, dtype: str = "float32"):
    """The model with these weights, by plain TensorFlow."""
    config = dataclasses.replace(weights.model, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **PLAIN)
    family = Decoder if config.is_causal else BertClassifier if config.is_fine_tuned else BertPretrainer
    return family(config, dtype, 1, initial=weights.shard)


def outputs(weights: Weights, expected) -> dict[str, np.ndarray]:
    """The outputs of the model for the inputs of a fixture, by the names in it."""
    model = build(weights)
    batch = {name: tf.constant(expected[name], tf.int32) for name in expected if name.endswith(("_ids", "_mask"))}
    hidden, pooled = model.encode(batch)
    found = {"hidden": hidden, "pooled": pooled}
    if weights.model.is_fine_tuned:
        found["task_logits"] = task_logits(model, batch)
    elif weights.model.is_causal:
        found["logits"] = model.logits(model.hidden_states(batch))
    else:
        batch["masked_lm_positions"] = tf.tile(tf.range(hidden.shape[1])[None], [hidden.shape[0], 1])
        found |= samples.outputs(model, batch)._asdict()
        for head in ("mlm", "nsp") if weights.model.next_sentence else ():
            found[f"{head}_log_probabilities"] = tf.nn.log_softmax(found[f"{head}_logits"])
    return {name: value.numpy() for name, value in found.items() if value is not None}


def task_logits(model: BertClassifier, batch) -> tf.Tensor:
    """The outputs of the head of a fine-tuned model."""
    return model.head_outputs(model.run_blocks(model.embedding(batch, None), batch, None), batch, None)
