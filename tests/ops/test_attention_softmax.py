import math

import numpy as np
import pytest
import tensorflow as tf

from tests.ops.comparison import (
    DTYPES,
    assert_close,
    assert_not_much_worse,
    assert_refused,
    assert_same_in_every_way,
    dropout,
    everything,
    filled,
    gradients,
    key_mask,
    normal,
    optimized_hlo,
)
from tftrain.ops.attention_mask import AttentionMask
from tftrain.ops.attention_softmax import attention, reference_attention_context
from tftrain.ops.dropout import AxisRange, keep_mask, of_probabilities, op_arguments
from tftrain.ops.library import library

SCALE = 0.25


def padded(shape):
    """The mask of the keys of scores."""
    return key_mask(shape[0], shape[3], first=2)


def attention_softmax(scores, key_mask, scale, causal=False):
    """The op alone, without dropout. Its numbers: custom_ops/kernels/attention_softmax/attention_softmax_test.cc."""
    attributes, position = op_arguments(None)
    heads = {"first_head": 0, "total_heads": 0 if scores.shape.rank is None else scores.shape[1] or 0, "dropouts": 0}
    given = {"position": position, "scale": scale, "causal": causal, **heads, **attributes}
    return library().tftrain_attention_softmax(scores=scores, key_mask=key_mask, **given).probabilities


def attention_context(scores, key_mask, values, scale, dropout=None, causal=False):
    """The attention that has these scores: each is the product of a query with one of the identity's rows."""
    identity = tf.eye(scores.shape[-1], batch_shape=scores.shape[:2], dtype=scores.dtype)
    return attention(scores, identity, values, AttentionMask(key_mask, causal), scale, dropout)


def reference(scores, key_mask, values, scale, dropout, causal):
    return reference_attention_context(scores, values, AttentionMask(key_mask, causal), scale, dropout)


@pytest.mark.parametrize(
    ("shape", "causal", "key"),
    [
        ((2, 3, 8, 8), False, {}),
        ((3, 2, 5, 7), False, {"step": 4}),
        ((1, 1, 1, 1000), False, {"site": 10}),
        ((2, 3, 19, 19), True, {"first_sample": 41, "seed": 5}),
    ],
    ids=str,
)
def test_masks_are_those_of_plain_dropout(shape, causal, key):
    keep = keep_mask(list(shape), of_probabilities(dropout(0.3, **key))).numpy()
    # With values that are the identity, the context is the dropped probabilities.
    identity, keys = tf.eye(shape[3], batch_shape=shape[:2]), tf.ones([shape[0], shape[3]], tf.int32)
    found = attention_context(tf.zeros(shape), keys, identity, 1.0, dropout(0.3, **key), causal) > 0
    np.testing.assert_array_equal(found, np.tril(keep) if causal else keep)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_context_and_gradients_are_those_of_the_reference_in_fp64(dtype, rate, causal):
    shape = (3, 2, 33, 33)
    mask = padded(shape)

    def of(function, scores, values, dy):
        return everything(lambda s, v: function(s, mask, v, SCALE, dropout(rate), causal), [scores, values], dy)

    def in_three_ways(draw):
        scores = normal(3 * draw + 1, shape, dtype, 0, 4)
        values, dy = (normal(3 * draw + seed, [3, 2, 33, 16], dtype) for seed in (2, 3))
        expected = of(reference, *(tf.cast(tensor, tf.float64) for tensor in (scores, values, dy)))
        return of(attention_context, scores, values, dy), of(reference, scores, values, dy), expected

    # The largest error of one small draw may be half of that of another.
    draws = [in_three_ways(draw) for draw in range(3)]
    for results in zip(*(zip(*draw, strict=True) for draw in draws), strict=True):
        actual, composed, expected = (tf.concat(each, 0) for each in zip(*results, strict=True))
        if dtype == "float32":
            assert_close(actual, expected.numpy(), (5e-5, 1e-5))
        # The matrix products round as well; next to them the composition is the measure.
        assert_not_much_worse(actual, composed, expected.numpy(), dtype, 2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_graph_and_xla_give_the_same_as_eager(dtype, causal):
    shape = [2, 3, 20, 20]
    scores, mask = normal(1, shape, dtype), padded(shape)
    identity = tf.eye(20, batch_shape=shape[:2], dtype=dtype)

    def run(scores, step):
        drop = dropout(0.2, step=step)
        return everything(lambda s: attention_context(s, mask, identity, SCALE, drop, causal), [scores], scores)

    assert_same_in_every_way(run, scores, tf.constant(8, tf.int64))


@pytest.mark.parametrize("causal", [False, True])
def test_the_compiled_program_calls_the_ops_and_keeps_one_tensor_of_the_scores_size(causal):
    shape = [2, 2, 16, 16]
    scores, values = normal(1, shape, "float32"), normal(2, [2, 2, 16, 8], "float32")

    def function(scores, values):
        return attention_context(scores, padded(shape), values, SCALE, dropout(0.1), causal)

    hlo = optimized_hlo(lambda *given: gradients(function, list(given), None), scores, values)
    for target in ("TftrainAttentionSoftmax", "TftrainAttentionSoftmaxGrad"):
        (call,) = [line for line in hlo.splitlines() if f'custom_call_target="{target}"' in line]
        assert f"causal = {str(causal).lower()}" in call


@pytest.mark.parametrize("shape", [None, [None, 2, None, 8], [3, 2, 8, None]])
def test_shapes_are_inferred_from_what_is_known(shape):
    @tf.function(input_signature=[tf.TensorSpec(shape), tf.TensorSpec([None, 8], tf.int32)], autograph=False)
    def function(scores, mask):
        return attention_softmax(scores, mask, SCALE)

    inferred = function.get_concrete_function().output_shapes.as_list()
    assert inferred == [*([None, None, None] if shape is None else shape[:3]), 8]


GOOD = {"scores": ([2, 3, 4, 5], "float32"), "key_mask": ([2, 5], "int32"), "values": ([2, 3, 5, 2], "float32")}
BAD = [
    *(("scores", [2, 3, 4, 5], "float64"), ("scores", [2, 3, 4, 5], "int32"), ("scores", [2, 4, 5], "float32")),
    *(("key_mask", [2, 5], "int64"), ("key_mask", [2, 5], "float32"), ("key_mask", [2, 5], "bool")),
    *(("key_mask", [5], "int32"), ("key_mask", [2, 4], "int32"), ("key_mask", [1, 5], "int32")),
]


@pytest.mark.parametrize(("name", "shape", "dtype"), BAD)
def test_a_wrong_tensor_is_refused_by_name(name, shape, dtype):
    def function(scores, key_mask, values):
        if len(shape) == 3:  # such scores are no product of queries and keys
            return attention_softmax(scores, key_mask, SCALE)
        return attention_context(scores, key_mask, values, SCALE)

    assert_refused(rf"\b{name} (is|has)\b", function, **filled(GOOD, **{name: (shape, dtype)}))


@pytest.mark.parametrize("function", [attention_softmax, attention_context])
def test_a_causal_mask_is_refused_if_there_are_more_keys_than_queries(function):
    tensors = filled(GOOD)
    if function is attention_softmax:
        del tensors["values"]
    words = r"scores has shape \[2, 3, 4, 5\], expected as many queries as keys"
    assert_refused(words, lambda **tensors: function(**tensors, scale=SCALE, causal=True), **tensors)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("rate", {"dropout": dropout(1.0)}),
        ("rate", {"dropout": dropout(-0.1)}),
        ("rate", {"dropout": dropout(math.nan)}),
        ("site", {"dropout": dropout(0.1, site=1 << 16)}),
        ("scale", {"scale": math.inf}),
        ("first_head", {"dropout": dropout(0.1, heads=AxisRange(1, 3))}),
    ],
)
def test_a_number_out_of_range_is_refused_by_name(name, change):
    function = lambda **tensors: attention_context(**tensors, **{"scale": SCALE} | change)  # noqa: E731
    assert_refused(rf"\b{name} is\b", function, **filled(GOOD))
