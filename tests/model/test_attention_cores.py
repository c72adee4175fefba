"""Every attention core computes the same function of queries, keys, values, mask and dropout."""

import numpy as np
import pytest
import tensorflow as tf

from tests.model.samples import assert_close, dropout_key, loss_and_gradients, small_batch, small_config, small_model
from tftrain.model import attention_cores
from tftrain.model.attention_cores import CORES, AttentionMask
from tftrain.ops.dropout import AxisRange, dropout_at, keep_mask
from tftrain.ops.library import candidates

SHAPE = (3, 9, 2, 8)  # samples, tokens, heads, head_size
KEYS = np.array([[0] * 2 + [1] * 7, [1] * 5 + [0] * 4, [0] * 9], np.int32)


# cuDNN runs on GPUs only; tests/ops/test_cudnn_attention.py has what can be known without.
@pytest.fixture(params=[name for name in CORES if name != "cudnn"])
def core(request):
    if request.param != "reference" and not any(path.exists() for path in candidates()):
        pytest.skip("the ops are not built")
    return CORES[request.param]


def inputs():
    random = np.random.default_rng(1)
    return [random.normal(scale=2, size=SHAPE).astype(np.float32) for _ in range(3)]


def expected_context(query, key, value, factors, causal):
    """Attention in float64 NumPy; `factors` multiply the probabilities."""
    context = np.zeros(SHAPE)
    for sample, token, head in np.ndindex(SHAPE[:3]):
        tokens = KEYS[sample] > 0
        if causal:
            tokens = tokens & (np.arange(SHAPE[1]) <= token)
        if tokens.any():
            powers = np.exp(key[sample, tokens, head] @ query[sample, token, head] / np.sqrt(SHAPE[3]))
            probabilities = powers / powers.sum() * factors[sample, head, token, tokens]
            context[sample, token, head] = probabilities @ value[sample, tokens, head]
    return context


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [None, AxisRange(1, 4)])
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_the_context_is_that_of_numpy(core, rate, heads, causal):
    dropout = dropout_at(dropout_key(), rate, 6, heads)
    factors = np.ones([SHAPE[0], SHAPE[2], SHAPE[1], SHAPE[1]])
    if dropout is not None:
        factors = keep_mask(list(factors.shape), dropout).numpy() / (1 - round(rate * 65536) / 65536)
    wide = [array.astype(np.float64) for array in inputs()]
    context = core(*map(tf.constant, inputs()), AttentionMask(tf.constant(KEYS), causal), dropout)
    assert_close(context, expected_context(*wide, factors, causal), rtol=1e-5)


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("window", [0, 2, 8, 100])
def test_a_query_attends_to_the_keys_in_its_window(core, window, is_packed):
    """Context and gradients are those of NumPy's probabilities, and hidden keys change no bit of either."""
    sequences = np.array([[0] * 2 + [1] * 3 + [2] * 4, [1] * 5 + [0] * 4, [0] * 9], np.int32)
    mask = AttentionMask(tf.constant(KEYS), False, None, tf.constant(sequences) if is_packed else None, window=window)
    factors = (np.abs(np.arange(9) - np.arange(9)[:, None]) <= window) * np.ones([*SHAPE[:1], SHAPE[2], 1, 1])
    if is_packed:
        factors *= (sequences[:, :, None] == sequences[:, None])[:, None]
    factors *= KEYS[:, None, None]
    query, key, value = map(tf.constant, inputs())
    scores = np.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(SHAPE[3])
    powers = np.exp(scores) * factors
    probabilities = powers / np.maximum(powers.sum(-1, keepdims=True), 1e-300)
    with tf.GradientTape() as tape:
        tape.watch(value)
        context = core(query, key, value, mask, None)
    assert_close(context, np.einsum("bhqk,bkhd->bqhd", probabilities, value), rtol=1e-5)
    expected = np.einsum("bhqk,bqhd->bkhd", probabilities, query)
    assert_close(tape.gradient(context, value, output_gradients=query), expected, rtol=1e-5)
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
    tensors = list(map(tf.constant, inputs()))
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        context = core(*tensors, AttentionMask(tf.constant(KEYS), causal=True), None)[:, :4]
    query, key, value = tape.gradient(context, tensors, output_gradients=tensors[0][:, :4])
    for gradient in (query.numpy(), key.numpy(), value.numpy()):
        assert not gradient[:, 4:].any()
    # The first sample's tokens 0 and 1 are padding, so query 2 is the first with a key and query 3 the first with two.
    # The probability of a single key is 1, or one unit less where a processor divides by a reciprocal.
    assert not query.numpy()[0, :2].any()
    assert np.abs(query.numpy()[0, 2]).max() <= 4 * np.finfo(np.float32).eps * np.abs(query.numpy()).max()
    assert query.numpy()[0, 3].all()
    assert not value.numpy()[0, :2].any()
    assert value.numpy()[0, 2:4].all()


def test_gradients_of_padding_and_of_a_sample_without_tokens_are_zero(core):
    tensors = list(map(tf.constant, inputs()))
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        context = core(*tensors, AttentionMask(tf.constant(KEYS)), None)
    query, key, value = tape.gradient(context, tensors, output_gradients=tensors[0])
    for gradient in (key.numpy(), value.numpy()):
        assert not gradient[1, 5:].any()
        assert gradient[1, :5].all()
    assert not any(gradient.numpy()[2].any() for gradient in (query, key, value))


def test_slopes_are_added_to_the_scores(core):
    tensors, slopes = list(map(tf.constant, inputs())), (0.25, 0.01)
    plain = CORES["reference"]
    contexts = [
        each(*tensors, AttentionMask(tf.constant(KEYS), causal=True, slopes=some), None)
        for each, some in ((core, slopes), (plain, slopes), (plain, None))
    ]
    assert_close(contexts[0], contexts[1], rtol=2e-5)
    assert np.abs(contexts[1] - contexts[2]).max() > 0.01


@pytest.mark.skipif(not any(path.exists() for path in candidates()), reason="the ops are not built")
def test_a_step_calls_cudnn_in_each_layer_and_pass():
    model = small_model(small_config(attn_impl="cudnn", hidden_size=24), "bfloat16")
    step = tf.function(lambda batch: loss_and_gradients(model, batch)[:2]).get_concrete_function(small_batch())
    calls = [operation.type for operation in step.graph.get_operations() if "Cudnn" in operation.type]
    assert calls == ["TftrainCudnnAttention"] * 3 + ["TftrainCudnnAttentionGrad"] * 3
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
