"""Writes small random models of TensorFlow libraries with their outputs: fixtures of `test_outputs`.

    python -m tests.formats.make_tensorflow_fixtures tf_models
    python -m tests.formats.make_tensorflow_fixtures tf1 --source=FOLDER
    python -m tests.formats.make_tensorflow_fixtures nvidia --source=FOLDER

For tf1, FOLDER is the unpacked wheel bert-tensorflow 1.0.4, which is google-research/bert. For nvidia, it is
TensorFlow2/LanguageModeling/BERT of a checkout of https://github.com/NVIDIA/DeepLearningExamples, whose package
`official` takes the place of tf-models'. So each library runs in a process of its own.
"""

import argparse
import importlib
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np

from tests.kit.tf_models import bert_pretrainer, features

os.environ.update(TF_USE_LEGACY_KERAS="1", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")
FOLDER = Path(__file__).parent / "data"
CONFIG = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 24,
    "initializer_range": 0.02,
    "intermediate_size": 40,
    "max_position_embeddings": 20,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "type_vocab_size": 2,
    "vocab_size": 35,
}
SAMPLES, LENGTH = 3, 16


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("library", choices=("tf_models", "tf1", "nvidia"))
    parser.add_argument("--source", default="")
    arguments = parser.parse_args()
    globals()[arguments.library](arguments.source)


def inputs() -> dict[str, np.ndarray]:
    random = np.random.default_rng(5)
    lengths = np.array([16, 11, 5])
    mask = (np.arange(LENGTH) < lengths[:, None]).astype(np.int32)
    ids = random.integers(0, CONFIG["vocab_size"], (SAMPLES, LENGTH)).astype(np.int32)
    return {
        "input_ids": ids,
        "input_mask": mask,
        "segment_ids": ((np.arange(LENGTH) >= 6) & (mask > 0)).astype(np.int32),
    }


def randomize(model) -> None:
    random = np.random.default_rng(7)
    for variable in model.trainable_variables:
        variable.assign(random.normal(float("gamma" in variable.name), 0.3, variable.shape))


def empty(name: str) -> Path:
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "bert_config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    shutil.copy(FOLDER / "hf_bert/vocab.txt", folder)
    return folder


def save(name: str, checkpoint, **arrays) -> None:
    folder = empty(name)
    checkpoint.write(str(folder / "bert_model.ckpt"))
    arrays = {key: np.asarray(value) for key, value in (inputs() | arrays).items()}
    np.savez_compressed(folder / "expected.npz", **arrays)


def tf_models(_: str) -> None:
    import tensorflow as tf

    model = bert_pretrainer(CONFIG, library=importlib.import_module)
    positions = np.tile(np.arange(LENGTH, dtype=np.int32), (SAMPLES, 1))
    given = features({**inputs(), "masked_lm_positions": positions})
    model(given)
    randomize(model)
    found = model(given, training=False)
    save(
        "tf_models",
        tf.train.Checkpoint(model=model),
        hidden=found["sequence_output"],
        mlm_logits=found["mlm_logits"],
        nsp_logits=found["next_sentence"],
    )
    save(
        "tf_models_encoder",
        tf.train.Checkpoint(encoder=model.encoder_network),
        hidden=found["sequence_output"],
        pooled=found["pooled_output"],
    )


def tf1(source: str) -> None:
    """The code is for TensorFlow 1. Of what TensorFlow 2 lacks, it needs the flags and the layer norm of contrib."""
    import types

    import tensorflow as tf

    old = tf.compat.v1
    old.disable_v2_behavior()

    def layer_norm(inputs, begin_norm_axis, begin_params_axis, scope):
        with old.variable_scope(scope, default_name="LayerNorm"):
            shape = inputs.shape[begin_params_axis:]
            beta = old.get_variable("beta", shape, initializer=old.zeros_initializer())
            gamma = old.get_variable("gamma", shape, initializer=old.ones_initializer())
        mean, variance = tf.nn.moments(inputs, [inputs.shape.rank - 1], keepdims=True)
        return tf.nn.batch_normalization(inputs, mean, variance, beta, gamma, 1e-12)

    module = types.ModuleType("tensorflow")
    module.__dict__.update({name: getattr(old, name) for name in dir(old)})
    module.contrib = types.ModuleType("tensorflow.contrib")
    module.contrib.layers = types.SimpleNamespace(layer_norm=layer_norm)
    module.contrib.tpu = types.SimpleNamespace(TPUEstimator=object, TPUEstimatorSpec=object)
    sys.modules["tensorflow"], kept = module, sys.modules["tensorflow"]
    sys.modules["tensorflow.contrib"] = module.contrib
    sys.path.insert(0, source)
    from bert import modeling, run_pretraining

    sys.modules["tensorflow"] = kept
    given = inputs()
    positions = np.tile(np.arange(LENGTH, dtype=np.int32), (SAMPLES, 1))
    config = modeling.BertConfig.from_dict(CONFIG)
    model = modeling.BertModel(
        config,
        False,
        tf.constant(given["input_ids"]),
        tf.constant(given["input_mask"]),
        tf.constant(given["segment_ids"]),
    )
    words = run_pretraining.get_masked_lm_output(
        config,
        model.get_sequence_output(),
        model.get_embedding_table(),
        tf.constant(positions),
        tf.zeros([SAMPLES, LENGTH], tf.int32),
        tf.ones([SAMPLES, LENGTH]),
    )[2]
    pairs = run_pretraining.get_next_sentence_output(
        config, model.get_pooled_output(), tf.zeros([SAMPLES, 1], tf.int32)
    )[2]
    random, folder = np.random.default_rng(7), empty("tf1")
    with old.Session() as session:
        for variable in old.global_variables():
            value = random.normal(float("gamma" in variable.name), 0.3, variable.shape)
            session.run(old.assign(variable, value.astype(np.float32)))
        hidden, words, pairs = session.run([model.get_sequence_output(), words, pairs])
        old.train.Saver().save(session, str(folder / "bert_model.ckpt"), write_meta_graph=False, write_state=False)
    words = words.reshape(SAMPLES, LENGTH, -1)
    arrays = inputs() | {"hidden": hidden, "mlm_log_probabilities": words, "nsp_log_probabilities": pairs}
    np.savez_compressed(folder / "expected.npz", **arrays)


def nvidia(source: str) -> None:
    for folder in ("official", "official/nlp", "official/utils", "official/utils/misc"):
        (Path(source) / folder / "__init__.py").touch()
    sys.path.insert(0, source)
    import tensorflow as tf
    from official.nlp import bert_modeling, bert_models

    config = bert_modeling.BertConfig.from_dict(CONFIG)
    whole, encoder = bert_models.pretrain_model(config, LENGTH, LENGTH, tf.float32)
    randomize(whole)
    given = inputs()
    hidden, pooled = encoder([given["input_ids"], given["input_mask"], given["segment_ids"]], training=False)
    pretrainer = next(layer for layer in whole.layers if layer.name.startswith("bert_pretrainer"))
    nsp = pretrainer.classification(pooled)
    checkpoint = tf.train.Checkpoint(model=whole)
    save("nvidia", checkpoint, hidden=hidden, nsp_log_probabilities=nsp)
    save("nvidia_encoder", tf.train.Checkpoint(model=encoder), hidden=hidden, pooled=pooled)


if __name__ == "__main__":
    main()
