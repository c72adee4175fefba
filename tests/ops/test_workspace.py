"""Under XLA on a GPU, the workspace of an op's kernels is a result of its call. To compile for a GPU takes none."""

import re

import pytest
import tensorflow as tf

from tftrain.ops.library import library

X, COLUMN, ROW = (tf.ones(shape) for shape in ([96, 1024], [1024], [96]))
HEADS, TOKENS = tf.ones([2, 96, 4, 64]), [tf.ones([2, 96], tf.int32), tf.zeros([2], tf.int64)]
HALVES = tf.cast(HEADS, tf.bfloat16)
DROPOUT = {"drop_below": 256, "seed": 1, "site": 1}


def layer_norm(x, gamma, beta):
    return library().tftrain_layer_norm(x, gamma, beta, epsilon=1e-5)


def layer_norm_grad(dy, x, gamma, mean, rstd):
    return library().tftrain_layer_norm_grad(dy, x, gamma, mean, rstd)


def rms_norm_grad(dy, x, gamma, rstd):
    return library().tftrain_rms_norm_grad(dy, x, gamma, rstd)


def gelu_grad(dy, x, *bias):
    return library().tftrain_gelu_grad(dy, x, bias, approximate=0)


def geglu_grad(dy, gate, up, *biases):
    return library().tftrain_geglu_grad(dy, gate, up, biases, approximate=0)


def swiglu_grad(dy, gate, up, *biases):
    return library().tftrain_swiglu_grad(dy, gate, up, biases)


def bias_dropout_add_grad(dy, bias, position):
    return library().tftrain_bias_dropout_add_grad(dy, bias, position, **DROPOUT)


def flash_attention_grad(*inputs):
    *inputs, key_mask, position = inputs
    attributes = {**DROPOUT, "scale": 0.1, "causal": False, "first_head": 0, "total_heads": 4, "window": -1}
    is_atomic = inputs[0].dtype != tf.float32
    return library().tftrain_flash_attention_grad(*inputs, key_mask, position, [], [], atomic=is_atomic, **attributes)


def squared_norms(*tensors):
    return library().tftrain_squared_norms(tensors)


# The results on the host, and the bytes of the workspace that a GPU adds: 4 for each sum of each part or chunk, or for
# each query of each head, and for its gradient if that is added up atomically. Each of the 96 rows is a part;
# custom_ops/kernels/common/workspace.h has the bounds.
CALLS = [
    (layer_norm, [X, COLUMN, COLUMN], 3, 0),
    (layer_norm_grad, [X, X, COLUMN, ROW, ROW], 3, 96 * 1024 * 2 * 4),
    (rms_norm_grad, [X, X, COLUMN, ROW], 2, 96 * 1024 * 4),
    (gelu_grad, [X, X, COLUMN], 2, 96 * 1024 * 4),
    (gelu_grad, [X, X], 1, 0),
    (geglu_grad, [X, X, X, COLUMN, COLUMN], 4, 96 * 1024 * 2 * 4),
    (swiglu_grad, [X, X, X], 2, 0),
    (swiglu_grad, [X, X, X, COLUMN, COLUMN], 4, 96 * 1024 * 2 * 4),
    (bias_dropout_add_grad, [X, COLUMN, tf.zeros([2], tf.int64)], 2, 96 * 1024 * 4),
    (flash_attention_grad, [*[HEADS] * 5, tf.ones([2, 4, 96]), *TOKENS], 3, 2 * 96 * 4 * 4),
    (flash_attention_grad, [*[HALVES] * 5, tf.ones([2, 4, 96]), *TOKENS], 3, 2 * 96 * 4 * 65 * 4),
    (squared_norms, [X, COLUMN], 1, (97 * 1024 // 32768 + 2) * 4),
]


def results_of_call(op, arguments, platform):
    """Returns the shapes that the custom call results in, as XLA writes them."""
    compiler_ir = tf.function(op, jit_compile=True, autograph=False).experimental_get_compiler_ir(*arguments)
    shapes = re.search(r"= (.*) custom-call\(.*Tftrain", compiler_ir(stage="hlo", platform_name=platform))[1]
    return re.findall(r"\w+\[[\d,]*\]", shapes)


@pytest.mark.parametrize(("op", "arguments", "outputs", "workspace"), CALLS)
def test_a_call_on_a_gpu_ends_in_its_workspace(op, arguments, outputs, workspace):
    on_host, on_gpu = (results_of_call(op, arguments, platform) for platform in ("CPU", "GPU"))
    assert len(on_host) == outputs
    assert on_gpu == on_host + ([f"u8[{workspace}]"] if workspace else [])
