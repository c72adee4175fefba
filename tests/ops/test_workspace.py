"""Under XLA on a GPU, the workspace of an op's kernels is a result of its call. To compile for a GPU takes none."""

import re

import pytest
import tensorflow as tf

from tftrain.ops.library import library

X, COLUMN, ROW = (tf.ones(shape) for shape in ([96, 1024], [1024], [96]))
HEADS = tf.ones([2, 96, 4, 64])
HALVES = tf.cast(HEADS, tf.bfloat16)
DROPOUT = {"drop_below": 256, "seed": 1, "site": 1}
# The statistics, the mask of the keys and the position of the dropout; neither sequences nor slopes.
REST = [tf.ones([2, 4, 96]), tf.ones([2, 96], tf.int32), tf.zeros([2], tf.int64), [], []]
FLASH = {**DROPOUT, "scale": 0.1, "causal": False, "first_head": 0, "total_heads": 4, "window": -1}


# The results on the host, and the bytes of the workspace that a GPU adds: 4 for each sum of each part or chunk, or for
# each query of each head, and for its gradient if that is added up atomically. Each of the 96 rows is a part;
# custom_ops/kernels/common/workspace.h has the bounds.
CALLS = [
    ("layer_norm", [X, COLUMN, COLUMN], {"epsilon": 1e-5}, 3, 0),
    ("layer_norm_grad", [X, X, COLUMN, ROW, ROW], {}, 3, 96 * 1024 * 2 * 4),
    ("rms_norm_grad", [X, X, COLUMN, ROW], {}, 2, 96 * 1024 * 4),
    ("gelu_grad", [X, X, [COLUMN]], {"approximate": 0}, 2, 96 * 1024 * 4),
    ("gelu_grad", [X, X, []], {"approximate": 0}, 1, 0),
    ("geglu_grad", [X, X, X, [COLUMN, COLUMN]], {"approximate": 0}, 4, 96 * 1024 * 2 * 4),
    ("swiglu_grad", [X, X, X, []], {}, 2, 0),
    ("swiglu_grad", [X, X, X, [COLUMN, COLUMN]], {}, 4, 96 * 1024 * 2 * 4),
    ("bias_dropout_add_grad", [X, COLUMN, tf.zeros([2], tf.int64)], DROPOUT, 2, 96 * 1024 * 4),
    ("flash_attention_grad", [*[HEADS] * 5, *REST], {**FLASH, "atomic": False}, 3, 2 * 96 * 4 * 4),
    ("flash_attention_grad", [*[HALVES] * 5, *REST], {**FLASH, "atomic": True}, 3, 2 * 96 * 4 * 65 * 4),
    ("squared_norms", [[X, COLUMN]], {}, 1, (97 * 1024 // 32768 + 2) * 4),
]


def results_of_call(op, arguments, attributes, platform):
    """Returns the shapes that the custom call results in, as XLA writes them."""

    def call(*tensors):
        given = tf.nest.pack_sequence_as(arguments, tensors)
        return getattr(library(), f"tftrain_{op}")(*given, **attributes)

    compiled = tf.function(call, jit_compile=True, autograph=False)
    text = compiled.experimental_get_compiler_ir(*tf.nest.flatten(arguments))(stage="hlo", platform_name=platform)
    return re.findall(r"\w+\[[\d,]*\]", re.search(r"= (.*) custom-call\(.*Tftrain", text)[1])


@pytest.mark.parametrize(("op", "arguments", "attributes", "outputs", "workspace"), CALLS)
def test_a_call_on_a_gpu_ends_in_its_workspace(op, arguments, attributes, outputs, workspace):
    on_host, on_gpu = (results_of_call(op, arguments, attributes, platform) for platform in ("CPU", "GPU"))
    assert len(on_host) == outputs
    assert on_gpu == on_host + ([f"u8[{workspace}]"] if workspace else [])
