"""cuDNN's attention as far as it can be known without a GPU: the calls that XLA gets, and the check before a run."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tftrain.ops import cudnn_attention as module
from tftrain.ops.attention_mask import AttentionMask
from tftrain.ops.cudnn_attention import cudnn_attention, refusal
from tftrain.ops.flash_attention import reference_flash_attention

BATCH, LENGTH, HEADS, SIZE = 2, 6, 3, 8
SHAPE = (BATCH, LENGTH, HEADS, SIZE)
LENGTHS = tf.constant([6, 4])


def with_gradients(query, key, value):
    with tf.GradientTape() as tape:
        tape.watch([query, key, value])
        context = cudnn_attention(query, key, value, LENGTHS, 0.25, causal=True)
    return context, *tape.gradient(context, [query, key, value])


def calls(function, *arguments):
    """Returns, for each call of cuDNN: its name, the shapes with layouts of results and operands, its configuration."""
    compiled = tf.function(function, jit_compile=True, autograph=False).experimental_get_compiler_ir(*arguments)
    lines = re.findall(r".*__cudnn.*", compiled(stage="hlo", platform_name="GPU"))
    found = []
    for line in lines:
        results, operands, name, config = re.search(
            r"= \((.*)\) custom-call\((.*)\), custom_call_target=\"([^\"]*)\".*backend_config=(\{.*\})", line
        ).groups()
        shapes = [re.findall(r"\w+\[[\d,]*\](?:\{[\d,]*\})", text) for text in (results, operands)]
        found.append((name, *shapes, json.loads(config)["cudnn_fmha_backend_config"]))
    return found


@pytest.fixture(scope="module", params=[tf.float16, tf.bfloat16])
def forward_and_backward(request):
    forward, backward = calls(with_gradients, *[tf.zeros(SHAPE, request.param)] * 3)
    return {tf.float16: "f16", tf.bfloat16: "bf16"}[request.param], forward, backward


def test_the_calls_have_the_operands_and_results_of_cudnn(forward_and_backward):
    dtype, (name, results, operands, _), (gradient, gradients, of_gradient, _) = forward_and_backward
    tensor, statistics, lengths = f"{dtype}[2,6,3,8]{{3,2,1,0}}", "f32[2,3,6]{2,1,0}", "s32[2]{0}"
    result = f"{dtype}[2,3,6,8]{{3,1,2,0}}"  # in memory the same as `tensor`
    assert (name, gradient) == ("__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward")
    assert operands == [tensor] * 3 + [lengths] * 2
    assert results == [result, statistics, "u8[0]{0}"]
    assert of_gradient == [tensor] * 3 + [statistics] + [tensor] * 2 + [lengths] * 2
    assert gradients == [result] * 3 + ["u8[0]{0}"]


def test_the_configuration_says_what_is_computed(forward_and_backward):
    dtype, *found = forward_and_backward
    for _, _, _, config in found:
        assert config["fmha_scale"] == 0.25
        assert config["mask_type"] == "PADDING_CAUSAL"
        assert config["is_flash_attention"]
        assert config["algorithm"]["is_cudnn_frontend"]
        assert "dropout_rate" not in config
        scores = config["intermediate_tensor_shape"]
        assert (scores["element_type"], scores["dimensions"]) == (dtype.upper(), ["2", "3", "6", "6"])


def product(numbers, left, right):
    """XLA's dot: batch dimensions first, then the others of the left operand and of the right one."""
    names = {}
    for kind in ("contracting", "batch"):
        of_left, of_right = (map(int, numbers[f"{side}_{kind}_dimensions"]) for side in ("lhs", "rhs"))
        for i, (one, other) in enumerate(zip(of_left, of_right, strict=True)):
            names["left", one] = names["right", other] = f"{kind[0]}{i}"
    letters = {}

    def labels(side, array):
        keys = [names.get((side, dim), f"{side}{dim}") for dim in range(array.ndim)]
        return "".join(letters.setdefault(key, chr(97 + len(letters))) for key in keys), keys

    (first, left_keys), (second, right_keys) = labels("left", left), labels("right", right)
    batch = [key for key in left_keys if key.startswith("b")]
    free = [key for key in [*left_keys, *right_keys] if key.startswith(("left", "right"))]
    return np.einsum(f"{first},{second}->{''.join(letters[key] for key in [*batch, *free])}", left, right)


def test_the_dimension_numbers_are_those_of_attention(forward_and_backward):
    """Attention and its gradients, computed with these numbers in float64, are those that TensorFlow derives."""
    _, (*_, forward), (*_, backward) = forward_and_backward
    random = np.random.default_rng(3)
    query, key, value, dcontext = (random.normal(size=SHAPE) for _ in range(4))
    keys = tf.cast(tf.sequence_mask(LENGTHS, LENGTH), tf.int32)
    with tf.GradientTape() as tape:
        inputs = [tf.constant(array) for array in (query, key, value)]
        tape.watch(inputs)
        expected = reference_flash_attention(*inputs, AttentionMask(keys, causal=True), 0.25, None)
    gradients = tape.gradient(expected, inputs, tf.constant(dcontext))

    attended = np.tril(np.ones([LENGTH, LENGTH], bool)) & (keys.numpy() > 0)[:, None, None, :]
    scores = np.where(attended, 0.25 * product(forward["bmm1_dot_dimension_numbers"], query, key), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    context = product(forward["bmm2_dot_dimension_numbers"], weights, value)
    dweights = product(backward["bmm2_grad_gemm2_dot_dimension_numbers"], dcontext, value)
    dscores = 0.25 * weights * (dweights - (weights * dweights).sum(-1, keepdims=True))
    found = [
        context,
        product(backward["bmm1_grad_gemm2_dot_dimension_numbers"], dscores, key),
        product(backward["bmm1_grad_gemm1_dot_dimension_numbers"], dscores, query),
        product(backward["bmm2_grad_gemm1_dot_dimension_numbers"], weights, dcontext),
    ]
    for heads_first, right in zip(found, [expected, *gradients], strict=True):
        np.testing.assert_allclose(heads_first.transpose(0, 2, 1, 3), right, rtol=1e-10, atol=1e-12)


def test_without_a_causal_mask_only_padding_is_hidden():
    call = calls(lambda x: cudnn_attention(x, x, x, LENGTHS, 1.0), tf.zeros(SHAPE, tf.float16))
    assert [config["mask_type"] for *_, config in call] == ["PADDING"]


def test_key_heads_go_to_cudnn_as_they_are():
    query, few = tf.zeros([2, 6, 4, 8], tf.float16), tf.zeros([2, 6, 2, 8], tf.float16)
    forward, backward = calls(with_gradients, query, few, few)
    of_query, of_key = "f16[2,6,4,8]{3,2,1,0}", "f16[2,6,2,8]{3,2,1,0}"
    assert forward[2][:3] == [of_query, of_key, of_key]
    assert backward[1][:3] == ["f16[2,4,6,8]{3,1,2,0}", *["f16[2,2,6,8]{3,1,2,0}"] * 2]
    assert forward[3]["intermediate_tensor_shape"]["dimensions"] == ["2", "4", "6", "6"]


def by_reference(factor=1.0):
    """Returns what stands for the library: its call of cuDNN is plain TensorFlow, with the context times `factor`."""

    def call(query, key, value, query_lengths, key_lengths, scale, causal):
        tf.debugging.assert_positive(key_lengths)
        tf.debugging.assert_equal(query_lengths, tf.shape(query)[1])
        keys = tf.cast(tf.sequence_mask(key_lengths, query.shape[1]), tf.int32)
        return factor * reference_flash_attention(query, key, value, AttentionMask(keys, causal), scale, None), None

    return lambda: SimpleNamespace(tftrain_cudnn_attention=call)


@pytest.fixture
def gpu(monkeypatch):
    refusal.cache_clear()
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [kind])
    yield
    refusal.cache_clear()


def test_a_row_without_keys_is_finite_and_its_gradients_are_zero_if_nothing_reads_it(monkeypatch):
    monkeypatch.setattr(module, "library", by_reference())
    inputs = [tf.cast(tf.random.stateless_normal(SHAPE, [seed, 0]), tf.float16) for seed in range(3)]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        context = cudnn_attention(*inputs, tf.constant([5, 0]), 0.25)
        read = context[0]
    assert np.all(np.isfinite(context))
    for gradient in tape.gradient(read, inputs):
        assert np.all(gradient[1] == 0)
        assert np.any(gradient[0] != 0)


@pytest.mark.parametrize(
    ("shape", "causal", "dtype"),
    [((128, 1, 64), False, "float16"), ((77, 3, 128), True, "bfloat16"), ((1, 1, 8), True, "float16")],
)
def test_16_bit_attention_is_not_refused(gpu, monkeypatch, shape, causal, dtype):
    monkeypatch.setattr(module, "library", by_reference())
    assert refusal(shape, causal, dtype) == ""


@pytest.mark.parametrize("factor", [1.1, float("nan")])
def test_wrong_results_are_refused(gpu, monkeypatch, factor):
    monkeypatch.setattr(module, "library", by_reference(factor))
    expected = "for rows of 96 tokens with heads of 64 elements in float16, cuDNN differs from plain TensorFlow"
    assert refusal((96, 1, 64), False, "float16").startswith(expected)


@pytest.mark.parametrize(
    ("error", "before", "reason"),
    [
        (tf.errors.InternalError(None, None, "no cuDNN graph\nat ..."), "cuDNN does not take", "no cuDNN graph"),
        (
            tf.errors.NotFoundError(None, None, "DNN library is not found."),
            "cuDNN does not",
            "DNN library is not found.",
        ),
        (tf.errors.UnimplementedError(None, None, ""), "cuDNN does not take", "UnimplementedError"),
        (ValueError(" \n"), "cuDNN does not take", "ValueError"),
        (tf.errors.InvalidArgumentError(None, None, "No registered 'X'"), "cuDNN does not", "No registered 'X'"),
        (tf.errors.ResourceExhaustedError(None, None, "OOM\nat ..."), "there is no memory to compare", "OOM"),
    ],
)
def test_what_cudnn_refuses_is_said(gpu, monkeypatch, error, before, reason):
    def refuse(**_):
        raise error

    monkeypatch.setattr(module, "library", lambda: SimpleNamespace(tftrain_cudnn_attention=refuse))
    said = refusal((96, 1, 40), True, "bfloat16")
    assert said.startswith(before)
    assert " rows of 96 tokens with heads of 40 elements in bfloat16" in said
    assert said.endswith(f": {reason}")


def test_without_a_gpu_cudnn_is_refused():
    refusal.cache_clear()
    assert "runs on GPUs only" in refusal((96, 1, 64), False, "float16")


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_wide_numbers_are_refused(dtype):
    with pytest.raises(TypeError, match="query: expected fp16 or bf16, got float"):
        cudnn_attention(*[tf.zeros(SHAPE, dtype)] * 3, LENGTHS, 1.0)
