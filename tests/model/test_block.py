"""A block is its formula, with the norms before or after the sub-layers, whichever op adds the branches."""

import pytest
import tensorflow as tf

from tests.model.samples import assert_close, small_config
from tftrain.architecture.describe import describe
from tftrain.model.block import BlockContext, block_class
from tftrain.model.layers import Dense
from tftrain.model.parameters import Parameters
from tftrain.model.weight_gradients import Deferred, kernel_gradients, tap
from tftrain.ops.attention_mask import AttentionMask

WIDTH = 21


def made(**changes):
    """Returns a block, the function of its attention, its feed-forward layer, and an input."""
    config = small_config(**changes)
    spec = describe(config).block
    block = block_class(spec)(Parameters("float32", 1, 0.2), spec, config, 4)
    for number, layer in enumerate(block.submodules):
        if isinstance(layer, Dense):
            layer.bias.assign(tf.random.stateless_normal(layer.bias.shape, [number, 3]))
    mask = AttentionMask(tf.constant([[1, 1, 1, 0], [1, 1, 1, 1]]))
    return block, mask, tf.random.stateless_normal([2, 4, WIDTH], [1, 2])


def sublayers(block, mask):
    """Returns attention and feed-forward layer with the biases that the block adds by itself."""

    def biased(y, layer):
        return y if layer.later_bias is None else y + layer.later_bias

    return (
        lambda x: biased(block.attention(x, BlockContext(mask)), block.attention.output_projection),
        lambda x: biased(block.feed_forward(x), block.feed_forward.down),
    )


@pytest.mark.parametrize("dropout_add_impl", ["reference", "fused"])
@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_a_block_is_its_formula(norm_position, dropout_add_impl):
    block, mask, x = made(norm_position=norm_position, dropout_add_impl=dropout_add_impl)
    attention, feed_forward = sublayers(block, mask)
    if norm_position == "pre":
        h = x + attention(block.attention_norm(x))
        expected = h + feed_forward(block.feed_forward_norm(h))
    else:
        h = block.attention_norm(x + attention(x))
        expected = block.feed_forward_norm(h + feed_forward(h))
    assert_close(block(x, BlockContext(mask)), expected, rtol=1e-5)


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_deferred_gradients_of_kernels_are_those_of_backward_at_once(norm_position):
    block, mask, x = made(norm_position=norm_position)
    kernels = [layer.kernel for layer in block.submodules if isinstance(layer, Dense)]

    @tf.function(autograph=False)
    def gradients(is_deferred):
        taps = [tap(kernel.dtype) for kernel in kernels]
        deferred = Deferred(kernels, taps) if is_deferred else None
        with tf.GradientTape() as tape:
            tape.watch([x, *taps])
            total = tf.reduce_sum(tf.square(block(x, BlockContext(mask, None, deferred))))
        found = tape.gradient(total, [x, *kernels, *taps])
        of_x, of_kernels, upstream = found[0], found[1 : len(kernels) + 1], found[len(kernels) + 1 :]
        if is_deferred:
            assert of_kernels == [None] * len(kernels)
            of_kernels = kernel_gradients(deferred.inputs, upstream)
        return [of_x, *of_kernels]

    assert len(kernels) == 6
    for now, later in zip(gradients(False), gradients(True), strict=True):
        assert_close(later, now, rtol=1e-6)
