"""Every attention core computes the same function of queries, keys, values, mask and dropout."""

import re

import numpy as np
import pytest
import tensorflow as tf

from tests.model.samples import (
    NEEDS_OPS,
    assert_close,
    dropout_key,
    loss_and_gradients,
    small_batch,
    small_config,
    small_model,
)
from tftrain.model import attention_cores
from tftrain.model.attention_cores import CORES, AttentionMask, plain_softmax
from tftrain.ops.dropout import AxisRange, dropout_at, keep_mask, of_probabilities

SHAPE = (3, 9, 2, 8)  # samples, tokens, heads, head_size
KEYS = np.array([[0] * 2 + [1] * 7, [1] * 5 + [0] * 4, [0] * 9], np.int32)


# cuDNN runs on GPUs only; tests/ops/test_cudnn_attention.py has what can be known without.
@pytest.fixture(params=["reference", *(pytest.param(name, marks=NEEDS_OPS) for name in ("fused", "flash"))])
def core(request):
    return CORES[request.param]


def inputs():
    random = np.random.default_rng(1)
    return [tf.constant(random.normal(scale=2, size=SHAPE), tf.float32) for _ in range(3)]


def gradients(core, mask, queries=SHAPE[1]):
    """Returns the gradients of query, key and value from the first queries; what flows back is the query."""
    tensors = inputs()
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        context = core(*tensors, mask, None)[:, :queries]
    found = tape.gradient(context, tensors, output_gradients=tensors[0][:, :queries])
    return [gradient.numpy() for gradient in found]


def probabilities(attended):
    """The softmax in float64 NumPy over the keys that a query attends to, [b, heads, queries, keys]."""
    query, key, _ = (np.asarray(each, np.float64) for each in inputs())
    powers = np.exp(np.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(SHAPE[3])) * attended
    return powers / np.maximum(powers.sum(-1, keepdims=True), 1e-300)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [None, AxisRange(1, 4)])
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_the_context_is_that_of_numpy(core, rate, heads, causal):
    dropout, factors = dropout_at(dropout_key(), rate, 6, heads), 1.0
    if dropout is not None:
        factors = keep_mask([3, 2, 9, 9], of_probabilities(dropout)).numpy() / (1 - round(rate * 256) / 256)
    context = core(*inputs(), AttentionMask(tf.constant(KEYS), causal), dropout)
    expected = probabilities(KEYS[:, None, None] * (np.tri(9) if causal else 1)) * factors
    assert_close(context, np.einsum("bhqk,bkhd->bqhd", expected, inputs()[2]), rtol=1e-5)
    assert not context[2].numpy().any(), "a sample without keys"


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("window", [0, 2, 8, 100])
def test_a_query_attends_to_the_keys_in_its_window(core, window, is_packed):
    """Context and gradients are those of NumPy's probabilities, and hidden keys change no bit of either."""
    sequences = np.array([[0] * 2 + [1] * 3 + [2] * 4, [1] * 5 + [0] * 4, [0] * 9], np.int32)
    mask = AttentionMask(tf.constant(KEYS), False, None, tf.constant(sequences) if is_packed else None, window=window)
    attended = KEYS[:, None, None] * (np.abs(np.arange(9) - np.arange(9)[:, None]) <= window)
    if is_packed:
        attended = attended * (sequences[:, :, None] == sequences[:, None])[:, None]
    query, key, value = inputs()
    context, expected = core(query, key, value, mask, None), probabilities(attended)
    assert_close(context, np.einsum("bhqk,bkhd->bqhd", expected, value), rtol=1e-5)
    assert_close(gradients(core, mask)[2], np.einsum("bhqk,bqhd->bkhd", expected, query), rtol=1e-5)
    far = tf.constant(np.where(np.arange(9)[:, None, None] > window, 7.0, 0.0), tf.float32)
    again = core(query, key + far, value + far, mask, None)
    assert np.array_equal(again[:, 0], context[:, 0])


def test_heads_that_share_keys_and_values_equal_heads_with_copies_of_them(core):
    """Context and gradients; that of a shared head is the sum over its copies."""
    random, shared = np.random.default_rng(2), 2
    query = tf.constant(random.normal(size=(3, 9, 6, 8)), tf.float32)
    few = [tf.constant(random.normal(size=(3, 9, shared, 8)), tf.float32) for _ in range(2)]
    mask, dropout = AttentionMask(tf.constant(KEYS), causal=True), dropout_at(dropout_key(), 0.3, 6, None)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([query, *few])
        many = [tf.repeat(each, 3, axis=2) for each in few]
        context, expected = core(query, *few, mask, dropout), CORES["reference"](query, *many, mask, dropout)
    assert_close(context, expected, rtol=1e-5)
    for tensor in (query, *few):
        assert_close(*(tape.gradient(each, tensor, output_gradients=query) for each in (context, expected)), rtol=1e-4)


def test_a_causal_query_has_no_gradient_from_the_keys_behind_it(core):
    query, key, value = gradients(core, AttentionMask(tf.constant(KEYS), causal=True), queries=4)
    assert not any(gradient[:, 4:].any() for gradient in (query, key, value))
    # The first sample's tokens 0 and 1 are padding, so query 2 is the first with a key and query 3 the first with two.
    # The probability of a single key is 1, or one unit less where a processor divides by a reciprocal.
    assert not query[0, :2].any()
    assert np.abs(query[0, 2]).max() <= 4 * np.finfo(np.float32).eps * np.abs(query).max()
    assert query[0, 3].all()
    assert not value[0, :2].any()
    assert value[0, 2:4].all()


def test_gradients_of_padding_and_of_a_sample_without_tokens_are_zero(core):
    query, key, value = gradients(core, AttentionMask(tf.constant(KEYS)))
    for gradient in (key, value):
        assert not gradient[1, 5:].any()
        assert gradient[1, :5].all()
    assert not any(gradient[2].any() for gradient in (query, key, value))


def test_slopes_are_added_to_the_scores(core):
    contexts = [
        each(*inputs(), AttentionMask(tf.constant(KEYS), causal=True, slopes=slopes), None)
        for each, slopes in ((core, (0.25, 0.01)), (CORES["reference"], (0.25, 0.01)), (CORES["reference"], None))
    ]
    assert_close(contexts[0], contexts[1], rtol=2e-5)
    assert np.abs(contexts[1] - contexts[2]).max() > 0.01


def test_a_row_without_tokens_and_weight_changes_no_number(monkeypatch):
    """Losses and gradients are bitwise the same whatever finite context its core gives it: cuDNN gives it a token's."""
    batch = small_batch() | {"example_weights": tf.constant([1.0, 1, 1, 1, 0])}
    kept = batch["example_weights"][:, None]
    batch["input_mask"] *= tf.cast(kept, tf.int32)
    batch["masked_lm_weights"] *= kept

    def numbers(noise):
        def core(query, key, value, mask, dropout):
            has_key = tf.reduce_any(mask.keys > 0, axis=1)[:, None, None, None]
            return tf.where(has_key, plain_softmax(query, key, value, mask, dropout), noise * value)

        monkeypatch.setitem(CORES, "reference", core)
        loss, gradients = loss_and_gradients(small_model(small_config()), batch)
        return [loss, *map(tf.convert_to_tensor, gradients.values())]

    for one, other in zip(numbers(0.0), numbers(7.0), strict=True):
        np.testing.assert_array_equal(one, other)


@NEEDS_OPS
def test_a_step_calls_cudnn_in_each_layer_and_pass():
    model = small_model(small_config(attn_impl="cudnn", hidden_size=24), "bfloat16")
    step = tf.function(lambda batch: loss_and_gradients(model, batch)[:2], autograph=False).get_concrete_function(
        small_batch()
    )
    calls = [operation.type for operation in step.graph.get_operations() if "Cudnn" in operation.type]
    assert calls == ["TftrainCudnnAttention"] * 2 + ["TftrainCudnnAttentionGrad"] * 2
    shapes = {tuple(tensor.shape) for op in step.graph.get_operations() for tensor in op.outputs if tensor.shape.rank}
    assert (5, 19, 3, 8) in shapes
    assert not [shape for shape in shapes if shape.count(19) > 1]


def test_cudnn_counts_the_keys_of_each_row(monkeypatch):
    calls = []
    monkeypatch.setattr(attention_cores, "cudnn_attention", lambda *arguments: calls.append(arguments))
    query = tf.zeros(SHAPE, tf.float16)
    keys = tf.constant([[1] * 9, [1] * 5 + [0] * 4, [0] * 9])
    CORES["cudnn"](query, query, query, AttentionMask(keys, causal=True), None)
    *_, lengths, scale, causal = calls[0]
    assert (lengths.numpy().tolist(), lengths.dtype, causal) == ([9, 5, 0], tf.int32, True)
    assert scale == pytest.approx(8**-0.5)


@pytest.mark.parametrize(
    ("mask", "dropout"),
    [
        ({}, dropout_at(dropout_key(), 0.1, 6)),
        ({"slopes": (0.5, 0.25)}, None),
        ({"sequences": tf.constant(KEYS)}, None),
        ({"window": 3}, None),
    ],
)
def test_cudnn_refuses_what_the_configuration_forbids(mask, dropout):
    query = tf.zeros(SHAPE, tf.float16)
    with pytest.raises(ValueError, match="no dropout, no slopes, no packed rows and no window"):
        CORES["cudnn"](query, query, query, AttentionMask(tf.constant(KEYS), **mask), dropout)


@NEEDS_OPS
@pytest.mark.parametrize("is_packed", [False, True])
def test_a_core_reads_no_argument_of_a_compiled_step(is_packed):
    """XLA would record its call into a CUDA graph again in each step, because the address of the argument changes."""
    batch = {name: feature for name, feature in small_batch(length=16).items() if not name.startswith("masked")}
    batch |= {"sequence_ids": batch["input_mask"]} if is_packed else {}
    model = small_model(small_config(attn_impl="flash", num_hidden_layers=2, hidden_size=24))
    compiled = tf.function(lambda given: model.hidden_states(given), jit_compile=True, autograph=False)
    program = compiled.experimental_get_compiler_ir(batch)(stage="optimized_hlo")
    entry = program[program.rindex("\nENTRY ") :]
    arguments = set(re.findall(r"(%\S+) = s32\S+ parameter\(", entry))
    calls = [set(re.findall(r"%[\w.-]+", given)) for given in re.findall(r" custom-call\((.*?)\), custom_call", entry)]
    assert len(arguments) >= 2
    assert len(calls) >= 2
    assert not [arguments & call for call in calls if arguments & call]
