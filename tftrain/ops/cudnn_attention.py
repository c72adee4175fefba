"""cuDNN's fused attention, from inside XLA on a GPU.

XLA turns a call of this op into a cuDNN graph, as it does for `jax.nn.dot_product_attention(implementation="cudnn")`.
The op exists in steps that XLA compiles for a GPU, and nowhere else. What cuDNN accepts depends on its version, on the
device and on the shapes, so a run tries it before it begins: `refusal`. No tensor of S x S elements is kept; see
`ops.flash_attention` for the memory.
"""

import functools
from collections.abc import Callable, Sequence

import tensorflow as tf

from tftrain.ops.attention_mask import AttentionMask
from tftrain.ops.flash_attention import reference_flash_attention
from tftrain.ops.library import library
from tftrain.ops.tensors import checked

_ROUNDING = {tf.float16: 2.0**-11, tf.bfloat16: 2.0**-8}  # half a unit in the last place of 1


def cudnn_attention(
    query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, key_lengths: tf.Tensor, scale: float, causal: bool = False
) -> tf.Tensor:
    """Returns softmax(scale * query key') value for each head, in a function with jit_compile on a GPU.

    Args:
        query: [b, S, heads, head_size], fp16 or bf16; head_size a multiple of 8 up to 128.
        key, value: like `query`, or with a divisor of its heads; nothing is copied for them.
        key_lengths: int32 [b], how many tokens of each row are keys: its first ones.
        scale: factor of the scores.
        causal: whether a query attends only to its own position and to those before it.

    Returns:
        [b, S, heads, head_size], of query's dtype. A row without keys attends to its first token, because cuDNN does
        not say what it would give: nothing may read the context of such a row, so that its gradients are zero.

    Raises:
        TypeError: a dtype is not as above.
        tf.errors.InvalidArgumentError: the function is not compiled by XLA for a GPU.
    """
    query = tf.convert_to_tensor(query)
    if query.dtype not in _ROUNDING:
        raise TypeError(f"query: expected fp16 or bf16, got {query.dtype.name}")
    key, value = (checked(name, given, query.dtype, "as query") for name, given in (("key", key), ("value", value)))
    key_lengths = checked("key_lengths", key_lengths, tf.int32)
    context, _log_sum_exp = library().tftrain_cudnn_attention(
        query=query,
        key=key,
        value=value,
        query_lengths=tf.fill(tf.shape(key_lengths), tf.shape(query)[1]),
        key_lengths=tf.maximum(key_lengths, 1),
        scale=scale,
        causal=causal,
    )
    return context


@tf.RegisterGradient("TftrainCudnnAttention")
def _cudnn_attention_gradient(
    op: tf.Operation, dcontext: tf.Tensor, _dlog_sum_exp: tf.Tensor
) -> tuple[tf.Tensor | None, ...]:
    names = ("query", "key", "value", "query_lengths", "key_lengths")
    context, log_sum_exp = op.outputs
    gradients = library().tftrain_cudnn_attention_grad(
        log_sum_exp=log_sum_exp,
        dcontext=dcontext,
        context=context,
        **dict(zip(names, op.inputs, strict=True)),
        **{name: op.get_attr(name) for name in ("scale", "causal")},
    )
    return *gradients, None, None


@functools.cache
def refusal(shape: tuple[int, int, int], causal: bool, dtype: str) -> str:
    """Runs cuDNN's attention, forward and backward, on this process's GPU, and compares it with plain TensorFlow.

    Args:
        shape: tokens of a row, heads of queries that share a head of keys, and head size.
        causal: see `cudnn_attention`.
        dtype: "float16" or "bfloat16".

    Returns:
        "" if it can be used, else why not: there is no GPU, cuDNN or XLA refuses the call, or a result differs by more
        than rounding.
    """
    length, _group, size = shape
    if not tf.config.list_logical_devices("GPU"):
        return "it runs on GPUs only, and there is none"
    what = f"rows of {length} tokens with heads of {size} elements in {dtype}"
    try:
        difference = _difference(shape, causal, tf.as_dtype(dtype))
    except (tf.errors.OpError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if isinstance(error, tf.errors.ResourceExhaustedError):
            return f"there is no memory to compare cuDNN with plain TensorFlow for {what}: {reason}"
        return f"cuDNN does not take {what} on this GPU: {reason}"
    if difference <= 1:
        return ""
    return f"for {what}, cuDNN differs from plain TensorFlow by {difference:.2g} times what rounding explains"  # or NaN


def _difference(shape: tuple[int, int, int], causal: bool, dtype: tf.DType) -> float:
    """Returns the largest error of context and gradients over the bound of rounding, in random rows.

    One row is full and one is padded. They have few heads, because plain TensorFlow computes them too.
    """
    length, group, size = shape
    lengths = tf.constant([length, max(1, length * 3 // 5)])
    heads = [group, 1, 1, group]
    *inputs, dcontext = (
        tf.cast(tf.random.stateless_normal([2, length, each, size], [seed, 0]), dtype)
        for seed, each in enumerate(heads)
    )
    scale = size**-0.5
    mask = AttentionMask(tf.cast(tf.sequence_mask(lengths, length), tf.int32), causal)
    results = _with_gradients(lambda *parts: cudnn_attention(*parts, lengths, scale, causal), inputs, dcontext, True)
    wide = [tf.cast(tensor, tf.float32) for tensor in (*inputs, dcontext)]
    reference = functools.partial(reference_flash_attention, mask=mask, scale=scale, dropout=None)
    expected = _with_gradients(reference, wide[:3], wide[3], False)
    # Results are sums of numbers that were rounded to dtype once or twice. Of one key, the query's gradient is zero.
    bound = 16 * _ROUNDING[dtype]
    errors = [
        tf.reduce_max(tf.abs(tf.cast(result, tf.float32) - right))
        / (bound * tf.maximum(tf.reduce_max(tf.abs(right)), bound))
        for result, right in zip(results, expected, strict=True)
    ]
    return float(tf.reduce_max(tf.stack(errors)))


def _with_gradients(
    attention: Callable[..., tf.Tensor], inputs: Sequence[tf.Tensor], dcontext: tf.Tensor, compiled: bool
) -> tuple[tf.Tensor, ...]:
    """Returns the context, and the gradients of the three inputs."""

    @tf.function(jit_compile=compiled, autograph=False)
    def run(*parts: tf.Tensor) -> tuple[tf.Tensor, ...]:
        with tf.GradientTape() as tape:
            tape.watch(parts)
            context = attention(*parts)
        return context, *tape.gradient(context, parts, dcontext)

    return run(*inputs)
