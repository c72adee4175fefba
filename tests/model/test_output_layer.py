"""The output layer's cross-entropy: the same for chunks of any size, and without logits of all rows."""

import re

import numpy as np
import pytest
import tensorflow as tf

from tests.model.samples import half_unit, small_batch, small_config, tensor_bytes
from tftrain.architecture.architecture import rows_of_chunk
from tftrain.model import output_layer
from tftrain.model.bert import BertPretrainer
from tftrain.model.output_layer import output_cross_entropy
from tftrain.parallel.graph_collectives import operations
from tftrain.parallel.mesh import Group

N, WORDS, WIDTH = 13, 29, 8


def results(tensors, labels, weights, rows):
    """Returns entropies, what is correct, and the gradients of x, table and bias, if any."""
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        x, table, *bias = tensors
        entropy, correct = output_cross_entropy(x, table, labels, 0, Group(), "output", rows, *bias)
        loss = tf.reduce_sum(entropy * tf.cast(weights, entropy.dtype))
    return [entropy, correct, *tape.gradient(loss, tensors)]


def oracle(tensors, labels, weights):
    """The same in float64 NumPy."""
    x, table, *bias = (tf.cast(each, tf.float64).numpy() for each in tensors)
    logits = x @ table.T + sum(bias)
    total = np.log(np.exp(logits).sum(-1))
    dlogits = (np.exp(logits - total[:, None]) - np.eye(WORDS)[labels.numpy()]) * weights[:, None]
    gradients = [dlogits @ table, dlogits.T @ x, *([dlogits.sum(0)] if bias else [])]
    return [total - logits[np.arange(N), labels.numpy()], logits.argmax(-1) == labels.numpy(), *gradients]


def inputs(dtype, has_bias):
    random = np.random.default_rng(4)
    shapes = [(N, WIDTH), (WORDS, WIDTH), *([(WORDS,)] if has_bias else [])]
    tensors = [tf.constant(random.normal(size=shape), dtype) for shape in shapes]
    return tensors, tf.constant(random.integers(WORDS, size=N), tf.int32), random.normal(size=N)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("rows", [1, 4, 7, 100])
def test_the_size_of_a_chunk_changes_nothing(rows, dtype, has_bias):
    tensors, labels, weights = inputs(dtype, has_bias)
    # In 16 bits the logits are rounded, those of the largest magnitude most; results are relative to the largest one.
    tolerance = {"float64": 1e-12, "float32": 1e-5}.get(dtype, 8 * half_unit(dtype))
    found = results(tensors, labels, weights, rows)
    for ours, wanted in zip(found, oracle(tensors, labels, weights), strict=True):
        ours, size = tf.cast(ours, tf.float64), np.abs(wanted).max()
        np.testing.assert_allclose(ours, wanted, rtol=tolerance, atol=tolerance * size)


@pytest.mark.parametrize(("dtype", "has_bias"), [("bfloat16", True), ("float16", False)])
def test_a_gpu_pads_the_words_once_and_not_in_each_chunk(dtype, has_bias, monkeypatch):
    tensors, labels, weights = inputs(dtype, has_bias)
    on_cpu = results(tensors, labels, weights, 4)
    monkeypatch.setattr(output_layer.devices, "has_gpu", lambda: True)
    run = tf.function(lambda *tensors: results(tensors, labels, weights, 4), autograph=False)
    tolerance = 8 * half_unit(dtype)
    for ours, cpu, wanted in zip(run(*tensors), on_cpu, oracle(tensors, labels, weights), strict=True):
        assert (ours.shape, ours.dtype) == (cpu.shape, cpu.dtype)
        np.testing.assert_allclose(
            tf.cast(ours, tf.float64), wanted, rtol=tolerance, atol=tolerance * np.abs(wanted).max()
        )
    found = list(operations(run.get_concrete_function(*tensors).graph))
    assert {tuple(each.shape) for op in found if op.type == "MatMul" for each in op.inputs} >= {(32, WIDTH), (4, 32)}
    assert not [op for op in found if op.type == "MatMul" and any(WORDS in each.shape for each in op.inputs)]
    assert len([op for op in found if op.type == "Pad" and op.outputs[0].shape == [32, WIDTH]]) == 1


@pytest.mark.parametrize(
    ("rows", "words", "chunks", "gpu_chunks"),
    [
        *((2464, 30_522, 9, 1), (16_384, 50_257, 99, 8), (16_384, 128_256, 253, 16), (1024, 250_880, 1, 1)),
        *((8, 8, 1, 1), (16_385, 50_257, 99, 7), (12_345, 50_257, 75, 5)),
    ],
)
def test_chunks_of_a_gpu_are_larger(rows, words, chunks, gpu_chunks):
    for gpu, expected in ((False, chunks), (True, gpu_chunks)):
        assert -(-rows // rows_of_chunk(rows, words, 1024, gpu)) == expected
        assert rows_of_chunk(rows, words, 1024, gpu) * words <= max(2 ** (27 if gpu else 23), 1024 * words)
        assert not gpu or expected == 1 or rows_of_chunk(rows, words, 1024, gpu) % 8 == 0


@pytest.mark.parametrize("options", [{"jit_compile": True}, {"input_signature": ...}], ids=str)
@pytest.mark.parametrize("rows", [4, 100])
def test_a_compiled_function_and_one_of_any_number_of_rows_give_the_same(rows, options):
    tensors, labels, weights = inputs("float32", has_bias=True)
    if "input_signature" in options:
        options = {"input_signature": [tf.TensorSpec([None, WIDTH]), *map(tf.TensorSpec, ([WORDS, WIDTH], [WORDS]))]}
    run = tf.function(lambda *tensors: results(tensors, labels, weights, rows), autograph=False, **options)
    for ours, wanted in zip(run(*tensors), results(tensors, labels, weights, 100), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("rows", "loops"), [(4, ["3", "4"]), (100, [])])
def test_xla_knows_how_often_each_loop_runs(rows, loops):
    tensors, labels, weights = inputs("float32", has_bias=True)
    run = tf.function(lambda *tensors: results(tensors, labels, weights, rows), autograph=False, jit_compile=True)
    text = run.experimental_get_compiler_ir(*tensors)(stage="optimized_hlo")
    assert sorted(re.findall(r' while\(.*"known_trip_count":{"n":"(\d+)"}', text)) == loops
    assert text.count(" while(") == len(loops)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_probability_that_fp32_rounds_to_0_has_a_cross_entropy(rows):
    x, table, labels = tf.ones([3, 1]), tf.constant([[-300.0], [300.0], [299.0]]), tf.constant([0, 1, 2])
    entropy, correct, dx, dtable = results([x, table], labels, [1.0, 1.0, 1.0], rows)
    of_best = np.log1p(np.exp(-1.0))
    np.testing.assert_allclose(entropy, [600 + of_best, of_best, 1 + of_best], rtol=1e-6)
    np.testing.assert_array_equal(correct, [0, 1, 0])
    second = 1 / (1 + np.e)
    np.testing.assert_allclose(dtable[:, 0], [-1, 3 * (1 - second) - 1, 3 * second - 1], rtol=1e-5, atol=1e-6)
    mean = 300 - second  # the table's rows weighted by their probabilities
    np.testing.assert_allclose(dx[:, 0], [mean + 300, mean - 300, mean - 299], rtol=1e-5, atol=1e-4)


def test_of_classes_with_equal_logits_the_lowest_is_best():
    table, labels = tf.constant([[0.0], [1.0], [1.0]]), tf.constant([1, 2, 0])
    for rows in (1, 3):
        _, correct = output_cross_entropy(tf.ones([3, 1]), table, labels, 0, Group(), "output", rows)
        np.testing.assert_array_equal(correct, [1, 0, 0])


@pytest.mark.parametrize("has_bias", [False, True])
def test_logits_of_all_rows_are_never_in_memory(has_bias):
    """2,048 rows and 250,880 words: 2.1 GB in fp32. No tensor of forward and backward has an eighth of that."""
    rows, words, width = 2048, 250_880, 64
    step = tf.function(lambda labels, *tensors: results(tensors, labels, tf.ones([rows]), None), autograph=False)
    shapes = [[rows, width], [words, width], *([[words]] if has_bias else [])]
    traced = step.get_concrete_function(tf.TensorSpec([rows], tf.int32), *map(tf.TensorSpec, shapes))
    assert max(tensor_bytes(traced.graph)) == words * width * 4  # the table and its gradient


def test_the_loss_of_masked_words_keeps_no_logits_of_all_of_them():
    """4 x 64 masked words of 250,880: 257 MB in fp32."""
    words = 250_880
    config = small_config(vocab_size=words, num_hidden_layers=1, hidden_size=12)
    model, batch = BertPretrainer(config, "float32", 1), small_batch(samples=4, predictions=64)

    @tf.function(autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(model.loss_terms(x, batch).mlm_entropy)
        return tape.gradient(loss, [x, *model.masked_lm.trainable_variables])

    traced = step.get_concrete_function(tf.TensorSpec([4, 19, 12]))
    assert max(tensor_bytes(traced.graph)) == 32 * words * 4  # the least rows of a chunk
