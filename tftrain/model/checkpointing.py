"""Activation checkpointing (Chen et al., arXiv 1604.06174): backward computes again what forward did not keep.

Full: each block keeps its input, and backward runs the block once more: about a third more work. Selective (Korthikanti
et al., arXiv 2205.05198): only the attention core, whose tensors of heads x S x S elements are large and cheap.

`tf.recompute_grad` does not do this under XLA: forward and recomputation are the same expressions of the same inputs,
so common-subexpression elimination makes them one again, and the activations stay. Here the recomputation sees its
inputs through an optimization barrier, together with the gradient that comes from above: other operands, which exist
only when backward has come this far. Outside XLA control dependencies do the same; an IdentityN over all of them would
not, since Grappler removes it where it has few inputs. What the dropout masks depend on goes through the barrier too,
or the masks, which depend on nothing else, would stay. They are drawn from the same key, so the second run equals the
first.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla


class Checkpointing(NamedTuple):
    """What is computed again in backward.

    Attributes:
        mode: none, selective or full.
        jit: whether the gradients are compiled by XLA; the barrier of one world is of no use in the other.
    """

    mode: str = "none"
    jit: bool = False

    def block(self, block: Callable[..., tf.Tensor], x: tf.Tensor, *context: Any) -> tf.Tensor:
        """Applies a block to x; it is recomputed in backward if all of them are, see `recompute`."""
        return recompute(block, [x], context, self.jit) if self.mode == "full" else block(x, *context)

    def attention_core(
        self, core: Callable[..., tf.Tensor], query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, *context: Any
    ) -> tf.Tensor:
        """Applies an attention core; it is recomputed in backward if cores alone are."""
        if self.mode == "selective":
            return recompute(core, [query, key, value], context, self.jit)
        return core(query, key, value, *context)


KEEP_ALL = Checkpointing()


def recompute(
    function: Callable[..., tf.Tensor], inputs: Sequence[tf.Tensor], context: tuple[Any, ...], jit: bool
) -> tf.Tensor:
    """Returns function(*inputs, *context), of which only `inputs` and `context` are kept for backward.

    Args:
        function: may read variables, whose gradients come out as ever; must give the same in every run.
        inputs: float tensors, any shape; they have gradients.
        context: further arguments without gradients: nested structures of tensors, numbers and None.
        jit: whether XLA compiles this.

    Returns:
        The function's one tensor.
    """
    context_tensors = [item for item in tf.nest.flatten(context) if tf.is_tensor(item)]

    @tf.custom_gradient
    def forward(*inputs):
        def gradient(upstream, variables=()):
            upstream, *again = _barrier([upstream, *inputs, *context_tensors], jit)
            inputs_again, tensors_again = again[: len(inputs)], iter(again[len(inputs) :])
            context_again = tf.nest.map_structure(
                lambda item: next(tensors_again) if tf.is_tensor(item) else item, context
            )
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch([*inputs_again, *variables])
                output = function(*inputs_again, *context_again)
            found = tape.gradient(output, [*inputs_again, *variables], output_gradients=upstream)
            # custom_gradient wants a second list exactly where the function reads variables.
            return (found[: len(inputs)], found[len(inputs) :]) if variables else found

        return function(*inputs, *context), gradient

    return forward(*inputs)


def _barrier(tensors: list[tf.Tensor], jit: bool) -> list[tf.Tensor]:
    """Returns the tensors such that no optimizer sees through, and none is there before the first one is."""
    if jit:
        return xla.optimization_barrier(*tensors)
    with tf.control_dependencies(tensors):
        return [tf.identity(tensor) for tensor in tensors]
