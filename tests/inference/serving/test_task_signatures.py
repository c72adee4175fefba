"""An exported fine-tuned model gives the outputs of the trained one, on token ids and on texts."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from tokenizers import Tokenizer, processors

from tests.finetune import files
from tests.formats.models import DATA
from tests.test_predict import Drawn
from tftrain.finetune.encoding import ExampleEncoder, Sequences
from tftrain.inference import trained_model
from tftrain.inference.serving import exported_folder, onnx_file
from tftrain.inference.serving.signatures import ServedModel, signatures
from tftrain.inference.serving.text_graph import TextGraph
from tftrain.inference.task_predictions import TaskPredictions
from tftrain.tokenizer import tokenizer_files

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
TEXTS = ["key list", "", "good [MASK] map", "a b c d e f g h i j k l m n o p q r s t"]
OTHERS = ["path", "u v w x y z " * 3, "", "bad"]


def fixture(name):
    return f"hf:{DATA}/hf_bert_{name}"


def predicted(model, texts, key):
    """Returns what tftrain.predict prints for texts."""
    _, found = TaskPredictions(model, model.max_seq_length, None, 5, 3)(texts)
    return [list(each[key].values()) if isinstance(each[key], dict) else each[key] for each in found]


@pytest.mark.parametrize("task", ["multi_label", pytest.param("regression", marks=pytest.mark.nightly)])
def test_texts_in_the_graph_are_those_of_predict(task):
    """Texts and pairs, short, empty and too long, with weights that are drawn."""
    weights = Drawn(files.tokenizer())
    changes = {"task": task, "labels": ("x", "y") if task == "multi_label" else (), "initializer_range": 0.4}
    weights.model = dataclasses.replace(weights.model, **changes)
    model = trained_model.with_weights(weights)
    made = signatures(ServedModel(model, TextGraph(model), 5))
    first, second = tf.constant(TEXTS), tf.constant(OTHERS)
    singles, pairs = [(text,) for text in TEXTS], list(zip(TEXTS, OTHERS, strict=True))
    name, output = ("classify", "probabilities") if task == "multi_label" else ("regress", "number")
    key = output if task == "multi_label" else "prediction"
    alone = made[f"{name}_text"].traced(text=first)[output]
    both = made[f"{name}_pair"].traced(text=first, text_pair=second)[output]
    np.testing.assert_allclose(alone, predicted(model, singles, key), **CLOSE)
    np.testing.assert_allclose(both, predicted(model, pairs, key), **CLOSE)
    assert name in made


PROMPTS = {"text_prompt": "a: ", "text_pair_prompt": "key list", "pool_prompt": False}


@pytest.mark.parametrize(
    ("fixture_name", "changes"),
    [
        ("", {"pooling": "max", "embedding_dense": 5, **PROMPTS}),
        *(pytest.param("", {"pooling": each}, marks=pytest.mark.nightly) for each in ("mean", "cls")),
        pytest.param(
            "hf_gpt2",
            {"model_family": "gpt", "embedding_dense": 5, "normalize_embeddings": False},
            marks=pytest.mark.nightly,
        ),
        ("hf_qwen3", {"model_family": "gpt", "position_embedding": "rotary", **PROMPTS, "text_pair_prompt": "a: "}),
    ],
)
def test_vectors_of_texts_in_the_graph_and_in_onnx_are_those_of_predict(tmp_path, fixture_name, changes):
    tokenizer = tokenizer_files.read(DATA / fixture_name) if fixture_name else files.tokenizer()
    if fixture_name == "hf_qwen3":  # As in models for vectors.
        tokenizer = tokenizer._replace(model=with_ending(tokenizer))
    weights = Drawn(tokenizer)
    weights.model = dataclasses.replace(weights.model, task="embedding", initializer_range=0.4, **changes)
    model = trained_model.with_weights(weights)
    made = signatures(ServedModel(model, TextGraph(model), 5))
    assert "classify" not in made
    first = made["embed_text"].traced(text=tf.constant(TEXTS))["embedding"]
    np.testing.assert_allclose(first, predicted(model, [(text,) for text in TEXTS], "embedding"), **CLOSE)
    np.testing.assert_array_equal(made["embeddings"].traced(text=tf.constant(TEXTS))["embedding"], first)
    assert ("embed_text_pair" in made) == (model.config.text_prompt != model.config.text_pair_prompt)
    second = made["embed_text_pair" if "embed_text_pair" in made else "embed_text"].traced(text=tf.constant(OTHERS))
    products = predicted(model, list(zip(TEXTS, OTHERS, strict=True)), "prediction")
    np.testing.assert_allclose(tf.reduce_sum(first * second["embedding"], -1), products, **CLOSE)
    encoder = ExampleEncoder(tokenizer, 16)
    own = encoder.vectors_of(TEXTS[:3], model.config, 0)
    ids, mask, types = Sequences(own).rows(np.arange(3), 16)
    batch = {"input_ids": ids, "input_mask": mask, "token_type_ids": types}
    given = {spec.name: tf.constant(batch[spec.name]) for spec in made["embed"].inputs}
    assert len(given) == (3 if model.config.family.token_types else 2)
    vectors = made["embed"].traced(**given)["embedding"]
    if model.config.pool_prompt:
        np.testing.assert_allclose(vectors, first[:3], **CLOSE)
    pytest.importorskip("tf2onnx")
    onnx_file.write(tmp_path / "embed.onnx", made["embed"])
    found = onnx_file.load(tmp_path / "embed.onnx")(**{name: each.numpy() for name, each in given.items()})
    np.testing.assert_allclose(found["embedding"], vectors, **CLOSE)


def with_ending(tokenizer):
    """A tokenizer.json that puts the end token after each text."""
    library, end = Tokenizer.from_buffer(tokenizer.model), tokenizer.vocabulary.tokens[tokenizer.vocabulary.end_id]
    ids = [(end, tokenizer.vocabulary.end_id)]
    library.post_processor = processors.TemplateProcessing(single=f"$A {end}", special_tokens=ids)
    return library.to_str().encode()


@pytest.mark.parametrize(
    ("label", "line"),
    [
        *(("a, 'b' \"c\"", "a, 'b' \"c\""), ("back\\slash 中", "back\\slash 中"), ("a\nb", '"a\\nb"')),
        *(("a\rb", '"a\\rb"'), ("a\u2028b", '"a\\u2028b"'), ("a\x85b", '"a\\u0085b"'), ("", '""')),
        ('"a"', '"\\"a\\""'),
    ],
)
def test_a_class_is_one_line_of_labels_txt(label, line):
    assert exported_folder.one_line_of(label) == line
    assert len(line.splitlines()) == 1
