"""What one pipeline stage computes for one micro-batch: forward, backward, or the two halves of backward.

Each part of the model is a compiled function. Its forward pass keeps the activations for its backward pass, which
computes nothing again unless activation checkpointing says so.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tftrain.model.gathered_weights import ReadAgain
from tftrain.model.part import ModelPart
from tftrain.model.weight_gradients import Deferred, kernel_gradients, tap
from tftrain.ops.dropout import DropoutKey
from tftrain.tasks.task import Task
from tftrain.train.device_batches import decoded
from tftrain.train.gradients import MicroBatch

# A compiled part is not inlined: else a step's graph would have its layers once for each micro-batch.
AS_CALL = {"_noinline": True}


class Forward(NamedTuple):
    """The forward pass of one part over one micro-batch."""

    # Activations, [b, S, H]. Of the part with the heads, the loss times the loss scale; or the outputs [b, ...], if the
    # task compares samples.
    output: tf.Tensor
    sums: tf.Tensor | None  # the task's sums, of the part with the heads; else None
    # What the task predicts, of the part with the heads if no backward follows, and if the task has a scorer.
    outputs: tf.Tensor | None
    tape: tf.GradientTape | None  # that has recorded the pass; None if no backward follows
    inputs: tf.Tensor | None  # activations of the part before, [b, S, H]; None for the part with the embedding
    taps: list[tf.Tensor]  # see `weight_gradients`; empty unless backward is in two halves
    kernel_inputs: list[tf.Tensor]  # for each tap, what its kernel is multiplied with


class Backward(NamedTuple):
    """The backward pass of one part over one micro-batch, or the first half of it."""

    of_inputs: tf.Tensor | None  # gradient of the activations of the part before; None for the part with the embedding
    of_variables: dict[int, tf.Tensor]  # index in `CompiledStage.variables` -> gradient
    # What `CompiledStage.backward_weights` needs for the kernels' gradients.
    kernel_inputs: list[tf.Tensor]
    upstream: list[tf.Tensor]


class CompiledStage:
    """The compiled parts of this rank.

    Attributes:
        task: with this rank's parts of the model.
        parts: of this rank, in the order of the layers; the schedule calls them chunks.
        variables: of all parts, a copy of the token embedding last.
    """

    def __init__(self, task: Task, parts: Sequence[ModelPart], jit: bool, products: ReadAgain | None = None):
        """Traces nothing yet; `jit`: whether XLA compiles the parts. Without `products`, layers use the kernels."""
        self._products = products
        self.parts, self.task, self.variables = list(parts), task, list(task.model.held_variables().values())
        self._kernels = [task.model.kernels(part) for part in self.parts]
        indices = {variable.ref(): index for index, variable in enumerate(self.variables)}
        self._indices_of_kernels = [[indices[kernel.ref()] for kernel in kernels] for kernels in self._kernels]
        compiled = functools.partial(tf.function, jit_compile=jit, autograph=False, experimental_attributes=AS_CALL)
        self._functions = [compiled(functools.partial(self._run, chunk)) for chunk in range(len(self.parts))]
        self._kernel_gradients = compiled(kernel_gradients)

    def forward(self, chunk: int, inputs: tf.Tensor | None, micro: MicroBatch, in_halves: bool = False) -> Forward:
        """Runs the part number `chunk`; if `in_halves`, backward will be in two halves.

        `inputs` are activations of the part before, [b, S, H]; for the part with the embedding None, or the rows that
        it looks up in the token embedding, whose gradient is then that of the inputs.
        """
        taps = [tap(kernel.dtype) for kernel in self._kernels[chunk]] if in_halves else []
        call = functools.partial(self._functions[chunk], inputs, micro, taps)
        if not micro.trains:
            output, sums, outputs = call()
            return Forward(output, sums, outputs if self.parts[chunk].heads else None, None, inputs, taps, [])
        tape = tf.GradientTape(watch_accessed_variables=False)
        with tape:
            tape.watch([*([] if inputs is None else [inputs]), *self.variables, *taps])
            output, sums, kernel_inputs = call()
        return Forward(output, sums, None, tape, inputs, taps, kernel_inputs)

    def backward(self, forward: Forward, upstream: tf.Tensor | None) -> Backward:
        """Runs a part backward, or the first half of it if the forward pass was made for halves.

        `upstream` is the gradient of the part's output; None if that is the loss.
        """
        sources = [*([] if forward.inputs is None else [forward.inputs]), *self.variables, *forward.taps]
        gradients = forward.tape.gradient(forward.output, sources, output_gradients=upstream)
        of_inputs = None if forward.inputs is None else gradients.pop(0)
        of_variables = {index: each for index, each in enumerate(gradients[: len(self.variables)]) if each is not None}
        return Backward(of_inputs, of_variables, forward.kernel_inputs, gradients[len(self.variables) :])

    def backward_weights(self, chunk: int, backward: Backward) -> dict[int, tf.Tensor]:
        """Runs the second half of backward: index in `variables` -> gradient, for the kernels of a part."""
        gradients = self._kernel_gradients(backward.kernel_inputs, backward.upstream)
        return dict(zip(self._indices_of_kernels[chunk], gradients, strict=True))

    def _run(self, chunk: int, inputs: tf.Tensor | None, micro: MicroBatch, taps: list[tf.Tensor]) -> tuple:
        """Returns output and sums of `Forward`, and its kernel inputs; or its outputs, if no backward follows."""
        batch, position = decoded(micro.features), micro.position
        key = None if position is None else DropoutKey(self.task.config.run.seed, position.step, micro.first_sample)
        part, deferred = self.parts[chunk], Deferred(self._kernels[chunk], taps) if taps else self._products
        if part.embedding and inputs is not None:
            batch, inputs = {**batch, "token_rows": inputs}, None
        result = self.task.run_part(part, inputs, batch, key, deferred)
        kernel_inputs = deferred.inputs if taps else []
        if not part.heads:
            return result, None, kernel_inputs
        sums = self.task.vector(result)
        if not micro.trains:
            return tf.zeros([]), sums, result.get("outputs")
        if self.task.compares_samples:
            return result["outputs"], sums, kernel_inputs
        return self.task.loss(result, position.loss_weights) * position.scale, sums, kernel_inputs
