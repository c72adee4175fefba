"""What a block keeps, counted in the graph of the model: every tensor of forward that an op of backward reads."""

import pytest

from tests.plan.workloads import TFTRAIN, bytes_of
from tftrain.architecture.describe import describe
from tftrain.config.model import FUSED_OPS, ModelConfig
from tftrain.families import FAMILIES
from tftrain.plan import inventory
from tools import gpu_memory

ALIASES = ("Reshape", "Identity", "IdentityN", "StopGradient")
SAMPLES, LENGTH, WIDTH = 3, 32, 64
SIZES = {"hidden_size": WIDTH, "num_attention_heads": 4}
LLAMA = {**FAMILIES["llama"].defaults, **SIZES, "vocab_size": 64}


@pytest.mark.parametrize(
    ("implementation", "dtype", "activation", "rate"),
    [
        *(("fused", "float32", "gelu", 0.1), ("fused", "bfloat16", "geglu", 0.0), ("flash", "float32", "gelu", 0.1)),
        *(("flash", "bfloat16", "gelu", 0.0), ("reference", "float32", "gelu", 0.0)),
        *(("reference", "float32", "geglu", 0.1), ("reference", "bfloat16", "gelu", 0.1)),
        ("reference", "bfloat16", "geglu", 0.0),
    ],
)
def test_equals_what_backward_reads_in_the_graph_of_the_model(implementation, dtype, activation, rate):
    flash = implementation == "flash"  # beside the other fused ops
    config = ModelConfig(
        **SIZES,
        **dict.fromkeys(FUSED_OPS.values(), "fused" if flash else implementation),
        activation=activation,
        hidden_dropout_prob=rate,
        attention_probs_dropout_prob=rate,
        attn_impl="flash" if flash else "softmax",
    )
    assert_equal(config, dtype)


# GB of a block in the programs that XLA compiles for a GPU, as tools/gpu_memory.py prints them.
@pytest.mark.parametrize(
    ("row", "gb"),
    [
        *(("bert, plain", 1.242), ("bert, fused", 0.805), ("bert, flash", 0.537), ("bert, plain, no dropout", 1.141)),
        *(("gpt, plain", 1.242), ("gpt, flash", 0.537), ("llama, plain", 1.409), ("llama, flash", 0.604)),
        *(("modernbert, plain", 1.208), ("modernbert, flash", 0.671)),
    ],
)
def test_equals_what_xla_keeps_on_a_gpu(row, gb):
    assert gpu_memory.block_gb(gpu_memory.planned_bytes, row) == pytest.approx(gb, rel=0.03)


# GB of two blocks and the head, as the tool prints them.
@pytest.mark.parametrize(
    ("row", "gb", "error"),
    [
        *(("bert, flash", 1.677, 0.01), ("gpt, flash", 2.084, 0.03)),
        ("llama, flash", 2.386, 0.12),
        ("modernbert, flash", 2.193, 0.03),
    ],
)
def test_equals_what_xla_keeps_with_the_output_head(row, gb, error):
    assert gpu_memory.with_head_gb(gpu_memory.planned_bytes, row) == pytest.approx(gb, rel=error)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("core", "fused"), [("plain", ()), ("softmax", ()), ("flash", ()), ("flash", ("ln", "gelu"))])
def test_equals_what_backward_reads_of_a_block_with_shared_keys(core, fused, dtype):
    flags = {**LLAMA, "num_key_value_heads": 2, "intermediate_size": 160}
    flags |= dict.fromkeys(FUSED_OPS.values(), "reference") | {FUSED_OPS[op]: "fused" for op in fused}
    flags |= {"attn_impl": "flash" if core == "flash" else "softmax"}
    flags |= {"attn_softmax_impl": "reference" if core == "plain" else "fused"}
    assert_equal(ModelConfig("llama", **flags), dtype)


def test_cudnn_keeps_shared_keys_and_values_once():
    config = ModelConfig("llama", **LLAMA, num_key_value_heads=1)
    work = TFTRAIN._replace(model=describe(config), seq=LENGTH, micro_batch=SAMPLES, precision="bf16")
    flash, cudnn = (inventory.block(work._replace(core=core, fused=frozenset())) for core in ("flash", "cudnn"))
    assert bytes_of(cudnn) == bytes_of(flash)


def assert_equal(config, dtype):
    """Compares the inventory of a block with the graph of the model."""
    work = TFTRAIN._replace(
        model=describe(config),
        seq=LENGTH,
        micro_batch=SAMPLES,
        precision={"float32": "fp32", "bfloat16": "bf16"}[dtype],
        core=config.attn_impl,
        fused=frozenset(op for op, flag in FUSED_OPS.items() if getattr(config, flag) == "fused"),
        hidden_dropout=config.hidden_dropout_prob > 0,
        attention_dropout=config.attention_probs_dropout_prob > 0,
    )
    # A number or two for each row, such as a norm's mean, is not in the inventory.
    assert 0 <= saved_bytes(config, dtype) - bytes_of(inventory.block(work)) <= 16 * SAMPLES * LENGTH * 4


def saved_bytes(config, dtype):
    """Bytes of the forward pass's tensors, but for the weights, that the ops behind the gradients have as inputs."""
    import tensorflow as tf

    from tftrain.model.block import BlockContext, block_class
    from tftrain.model.parameters import Parameters
    from tftrain.ops.attention_mask import AttentionMask
    from tftrain.ops.dropout import DropoutKey

    spec = describe(config).block
    block = block_class(spec)(Parameters(dtype, 1, 0.02), spec, config, 4)
    sizes = {}

    @tf.function(autograph=False)
    def gradients(x, mask):
        key = DropoutKey(1, tf.constant(3, tf.int64), tf.constant(0, tf.int64))
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = block(x, BlockContext(AttentionMask(mask), key))
        forward = set(x.graph.get_operations())
        found = tape.gradient(y, [x, *block.trainable_variables])
        waiting, seen = [tensor.op for tensor in found], set()
        while waiting:
            op = waiting.pop()
            seen.add(op)
            for tensor in map(unaliased, op.inputs):
                if tensor.op not in forward:
                    waiting += [tensor.op] if tensor.op not in seen else []
                elif tensor.op.type not in ("Const", "ReadVariableOp") and tensor.dtype != tf.resource:
                    sizes[tensor.name] = tensor.dtype.size * (tensor.shape.num_elements() or 0)
        return found

    gradients.get_concrete_function(
        tf.TensorSpec([SAMPLES, LENGTH, WIDTH], dtype), tf.TensorSpec([SAMPLES, LENGTH], tf.int32)
    )
    return sum(sizes.values())


def unaliased(tensor):
    while tensor.op.type in ALIASES:
        tensor = tensor.op.inputs[0]
    return tensor
