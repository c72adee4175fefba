"""Activation checkpointing (Chen et al., arXiv 1604.06174): backward recomputes activations instead of storing them.

Full: forward stores the input of each block, and backward runs the block again, which is about a third more work.
Selective (Korthikanti et al., arXiv 2205.05198): backward recomputes only the attention core. Its tensors of
heads x S x S elements take much memory and are cheap to compute.

`tf.recompute_grad` has no effect under XLA: forward and recomputation are the same expressions of the same inputs, so
common-subexpression elimination merges them, and the activations stay in memory. This module passes the inputs of the
recomputation through an optimization barrier, together with the upstream gradient. The recomputation then has other
operands, which exist only when backward reaches this layer. Outside XLA, control dependencies have the same effect. (An
IdentityN over all inputs would not work: Grappler removes it if it has few inputs.) The dropout key passes through the
barrier too. The masks depend only on the key, so without the barrier they would stay in memory. Forward and
recomputation draw the masks from the same key, so their results are equal.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla


class Checkpointing(NamedTuple):
    """What backward recomputes."""

    mode: str = "none"  # or selective, or full
    jit: bool = False  # whether XLA compiles the gradients: XLA and graph mode need different barriers

    def block(self, block: Callable[..., tf.Tensor], x: tf.Tensor, *context: Any) -> tf.Tensor:
        """Applies a block to x; in mode full, backward recomputes it."""
        return recompute(block, [x], context, self.jit) if self.mode == "full" else block(x, *context)

    def attention_core(
        self, core: Callable[..., tf.Tensor], query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, *context: Any
    ) -> tf.Tensor:
        """Applies an attention core; in mode selective, backward recomputes it."""
        if self.mode == "selective":
            return recompute(core, [query, key, value], context, self.jit)
        return core(query, key, value, *context)


KEEP_ALL = Checkpointing()


def recompute(
    function: Callable[..., tf.Tensor], inputs: Sequence[tf.Tensor], context: tuple[Any, ...], jit: bool
) -> tf.Tensor:
    """Returns function(*inputs, *context); for backward only `inputs` and `context` stay in memory.

    Args:
        function: must compute the same result in every run. It may read variables, which get their gradients as usual.
        inputs: float tensors of any shape, which have gradients.
        context: further arguments without gradients: nested structures of tensors, numbers and None.
        jit: whether XLA compiles the computation.

    Returns:
        The function's one tensor.
    """
    context_tensors = [item for item in tf.nest.flatten(context) if tf.is_tensor(item)]

    @tf.custom_gradient
    def forward(*inputs):
        def gradient(upstream: tf.Tensor, variables: Sequence[tf.Variable] = ()):
            upstream, *again = _barrier([upstream, *inputs, *context_tensors], jit)
            inputs_again, tensors_again = again[: len(inputs)], iter(again[len(inputs) :])
            context_again = tf.nest.map_structure(
                lambda item: next(tensors_again) if tf.is_tensor(item) else item, context
            )
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch([*inputs_again, *variables])
                output = function(*inputs_again, *context_again)
            gradients = tape.gradient(output, [*inputs_again, *variables], output_gradients=upstream)
            # custom_gradient expects a second list if and only if the function reads variables.
            return (gradients[: len(inputs)], gradients[len(inputs) :]) if variables else gradients

        return function(*inputs, *context), gradient

    return forward(*inputs)


def _barrier(tensors: list[tf.Tensor], jit: bool) -> list[tf.Tensor]:
    """Returns copies that no graph optimizer merges with the tensors, made only after all tensors are computed."""
    if jit:
        return xla.optimization_barrier(*tensors)
    with tf.control_dependencies(tensors):
        return [tf.identity(tensor) for tensor in tensors]
