import math

import numpy as np
import pytest
import tensorflow as tf

from tests.ops.comparison import (
    DTYPES,
    assert_close,
    assert_refused,
    assert_same_in_every_way,
    dropout,
    everything,
    exact,
    filled,
    key_mask,
    normal,
    optimized_hlo,
)
from tftrain.ops import flash_attention as ops
from tftrain.ops.attention_mask import AttentionMask
from tftrain.ops.dropout import AxisRange, keep_mask, of_probabilities

SCALE = 0.25


def flash_attention(query, key, value, key_mask, scale, dropout=None, function=ops.flash_attention, **mask):
    if "sequence_ids" in mask:
        mask["sequences"] = mask.pop("sequence_ids")
    return function(query, key, value, AttentionMask(key_mask, **mask), scale, dropout)


def reference_flash_attention(*args, **more):
    return flash_attention(*args, function=ops.reference_flash_attention, **more)


def random_sequence_ids(batch, length):
    """Random lengths, other ones in each sample."""
    return tf.constant(np.cumsum(np.random.default_rng(7).random([batch, length]) < 5 / length, axis=1), tf.int32)


def with_gradients(function, query, key, value, dy, mask, **arguments):
    """The context, and the gradients of query, key and value."""
    return everything(lambda *inputs: function(*inputs, mask, **arguments), [query, key, value], dy)


def softmax_in_fp64(
    query, key, value, dy, mask, scale, keep, causal=False, sequence_ids=None, slopes=None, window=None
):
    """Context and gradients by NumPy in fp64; `keep` is the factor of each probability, [b, heads, S, S]."""
    query, key, value, dy = (exact(tensor).swapaxes(1, 2) for tensor in (query, key, value, dy))
    length = query.shape[2]
    distance = np.arange(length)[None, :] - np.arange(length)[:, None]
    scores = scale * query @ key.swapaxes(2, 3)
    if slopes is not None:
        scores += np.array(slopes)[:, None, None] * distance
    visible = (mask.numpy() > 0)[:, None, None, :]
    if causal:
        visible = visible & (distance <= 0)
    if window is not None:
        visible = visible & (abs(distance) <= window)
    if sequence_ids is not None:
        visible = visible & (sequence_ids.numpy()[:, None, :, None] == sequence_ids.numpy()[:, None, None, :])
    powers = np.where(visible, np.exp(scores - scores.max(-1, keepdims=True)), 0)
    sums = powers.sum(-1, keepdims=True)
    p = powers / np.where(sums == 0, 1, sums)
    g = keep * (dy @ value.swapaxes(2, 3))
    dscores = scale * p * (g - (p * g).sum(-1, keepdims=True))
    results = (p * keep) @ value, dscores @ key, dscores.swapaxes(2, 3) @ query, (p * keep).swapaxes(2, 3) @ dy
    return [result.swapaxes(1, 2) for result in results]


CASES = [  # custom_ops/kernels/flash_attention/flash_attention_test.cc has more.
    # b, S, heads, head_size, what else
    (2, 17, 3, 32, {"causal": True}),
    (2, 131, 2, 80, {"dropout": dropout(0.5), "sequence_ids": random_sequence_ids(2, 131)}),
    (1, 200, 1, 96, {"causal": True, "slopes": [0.0625], "dropout": dropout(0.1)}),
    (1, 33, 1, 256, {}),
    (2, 300, 2, 24, {"window": 37, "causal": True, "sequence_ids": random_sequence_ids(2, 300), "slopes": [0.1, 0.01]}),
    (1, 517, 1, 16, {"window": 130, "sequence_ids": random_sequence_ids(1, 517), "dropout": dropout(0.3)}),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("batch", "length", "heads", "size", "more"), CASES)
def test_context_and_gradients_are_those_of_fp64(batch, length, heads, size, more, dtype):
    # The plain error of one small draw may be half of that of another.
    squares = sum(squared_errors(draw, batch, length, heads, size, more, dtype) for draw in range(2))
    for factor, (error, allowed) in zip((1.5, 2, 2, 2), np.sqrt(squares), strict=True):
        assert error <= factor * allowed


def squared_errors(draw, batch, length, heads, size, more, dtype):
    """Returns the squares of the errors of context and gradients: the op's, and those of plain ops, [4, 2]."""
    tensors = [normal(4 * draw + seed, [batch, length, heads, size], dtype) for seed in range(4)]
    mask, scale = key_mask(batch, length), 1 / math.sqrt(size)
    keep = np.ones([batch, heads, length, length])
    drop = more.get("dropout")
    if drop is not None:
        keep = keep_mask(list(keep.shape), of_probabilities(drop)).numpy() * of_probabilities(drop).keep_scale
    numbers = {name: value for name, value in more.items() if name != "dropout"}
    expected = softmax_in_fp64(*tensors, mask, scale, keep, **numbers)
    actual = with_gradients(flash_attention, *tensors, mask, scale=scale, **more)
    plain = with_gradients(reference_flash_attention, *tensors, mask, scale=scale, **more)
    if dtype == "float32":
        for ours, exactly in zip(actual, expected, strict=True):
            assert_close(ours, exactly, (1e-5, 1e-5))
    pairs = zip(actual, plain, expected, strict=True)
    return np.array([[np.sum((exact(x) - exactly) ** 2) for x in (ours, theirs)] for ours, theirs, exactly in pairs])


@pytest.mark.parametrize("dtype", DTYPES)
def test_graph_and_xla_give_the_same_as_eager(dtype):
    tensors = [normal(seed, [2, 70, 3, 24], dtype) for seed in range(4)]
    mask, sequence_ids = key_mask(2, 70), random_sequence_ids(2, 70)

    def run(query, key, value, dy, step):
        more = {"scale": SCALE, "dropout": dropout(0.2, step=step), "causal": True, "sequence_ids": sequence_ids}
        return with_gradients(flash_attention, query, key, value, dy, mask, **more)

    assert_same_in_every_way(run, *tensors, tf.constant(8, tf.int64))


def test_the_compiled_program_calls_the_ops_and_has_nothing_of_the_scores_size():
    tensors = [normal(seed, [2, 512, 2, 16], "float32") for seed in range(4)]
    mask = tf.ones([2, 512], tf.int32)
    hlo = optimized_hlo(
        lambda *x: with_gradients(flash_attention, *x, mask, scale=SCALE, dropout=dropout(0.1)), *tensors
    )
    for target in ("TftrainFlashAttention", "TftrainFlashAttentionGrad"):
        assert hlo.count(f'custom_call_target="{target}"') == 1
    assert "512,512" not in hlo


@pytest.mark.parametrize(
    ("dtype", "deterministic", "atomic"),
    [("bfloat16", False, True), ("float16", False, True), ("bfloat16", True, False), ("float32", False, False)],
)
def test_gradients_of_queries_are_atomic_sums_only_of_16_bits_and_without_op_determinism(
    monkeypatch, dtype, deterministic, atomic
):
    monkeypatch.setattr(ops, "is_op_determinism_enabled", lambda: deterministic)
    tensors = [normal(seed, [2, 8, 2, 8], dtype) for seed in range(4)]
    run = tf.function(
        lambda *x: with_gradients(flash_attention, *x, tf.ones([2, 8], tf.int32), scale=SCALE), autograph=False
    )
    graph = run.get_concrete_function(*tensors).graph
    (gradient,) = (op for op in graph.get_operations() if op.type == "TftrainFlashAttentionGrad")
    assert gradient.get_attr("atomic") is atomic


@pytest.mark.parametrize("shape", [None, [None, None, 2, 8], [3, None, 2, 8]])
def test_shapes_are_inferred_from_what_is_known(shape):
    @tf.function(input_signature=[tf.TensorSpec(shape), tf.TensorSpec([None, 5], tf.int32)], autograph=False)
    def function(x, mask):
        return flash_attention(x, x, x, mask, SCALE, dropout(0.1, heads=AxisRange(0, 2)))

    inferred = function.get_concrete_function().output_shapes.as_list()
    assert inferred == ([None, 5, None, None] if shape is None else [shape[0], 5, 2, 8])


GOOD = dict.fromkeys(("query", "key", "value"), ([2, 5, 3, 16], "float32")) | {
    "key_mask": ([2, 5], "int32"),
    "sequence_ids": ([2, 5], "int32"),
}
BAD = [
    *(("query", [2, 5, 3, 16], "float64"), ("key", [2, 5, 3, 16], "bfloat16"), ("value", [2, 5, 3, 16], "float16")),
    *(("key", [2, 5, 48], "float32"), ("value", [2, 4, 3, 16], "float32"), ("key", [2, 5, 2, 16], "float32")),
    *(("value", [2, 5, 1, 16], "float32"), ("key_mask", [2, 5], "int64"), ("key_mask", [1, 5], "int32")),
    *(("sequence_ids", [2, 5], "int64"), ("sequence_ids", [2, 4], "int32")),
]


@pytest.mark.parametrize(("name", "shape", "dtype"), BAD)
def test_a_wrong_tensor_is_refused_by_name(name, shape, dtype):
    tensors = filled(GOOD, **{name: (shape, dtype)})
    assert_refused(rf"\b{name} (is|has)\b", lambda **given: flash_attention(**given, scale=SCALE), **tensors)


@pytest.mark.parametrize(
    ("words", "change"),
    [
        ("rate is", {"dropout": dropout(1.0)}),
        ("site is", {"dropout": dropout(0.1, site=1 << 16)}),
        ("scale is", {"scale": math.inf}),
        ("window is -2, expected", {"window": -2}),
        ("first_head is", {"dropout": dropout(0.1, heads=AxisRange(1, 3))}),
        ("slopes has shape", {"slopes": [0.5, 0.25]}),
        ("the head size is 12, expected a multiple of 8 up to 256", dict.fromkeys(("query", "key", "value"), 12)),
        ("the head size is 264, expected a multiple of 8 up to 256", dict.fromkeys(("query", "key", "value"), 264)),
    ],
)
def test_a_number_out_of_range_is_refused(words, change):
    tensors = filled(GOOD)
    change = {key: tf.ones([2, 5, 3, value]) if key in tensors else value for key, value in change.items()}
    with pytest.raises(tf.errors.InvalidArgumentError, match=words):
        flash_attention(**{"scale": SCALE} | tensors | change)
