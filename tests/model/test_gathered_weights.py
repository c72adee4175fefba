"""Variables without values: filled, read in forward, read again in backward, and released; nothing keeps a value."""

import numpy as np
import pytest
import tensorflow as tf

from tests.train.layouts import LLAMA, MODERN, ZERO_3, batches, case, token_batches
from tftrain.model.embedding import lookup
from tftrain.model.gathered_weights import ReadAgain, fill, release
from tftrain.parallel.mesh import Mesh
from tftrain.state.new_run import new_run
from tftrain.train.gradients import MicroBatch, Position
from tftrain.train.pipeline import PipelineGradients
from tftrain.train.sharded import ShardedModel


def test_a_variable_has_its_value_from_fill_to_release_and_its_shape_always():
    value = tf.random.stateless_normal([300, 400], [1, 2])
    variable = tf.Variable(tf.zeros([300, 400]))

    @tf.function(autograph=False)
    def filled_and_released():
        fill(variable, value)
        total = tf.reduce_sum(variable)
        release(variable)
        return total

    release(variable)
    assert variable.numpy().size == 0
    np.testing.assert_allclose(filled_and_released(), tf.reduce_sum(value), rtol=1e-6)
    assert (variable.numpy().size, variable.shape) == (0, [300, 400])
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.matmul(tf.ones([1, 300]), variable)


@pytest.mark.parametrize("jit", [False, True])
def test_products_and_look_ups_have_the_gradients_of_plain_ones(jit):
    kernel, x = (tf.Variable(tf.random.stateless_normal(shape, [3, 4])) for shape in ([5, 7], [6, 5]))
    upstream, ids = tf.random.stateless_normal([6, 7], [5, 6]), tf.constant([0, 4, 4, 1, 2, 4])

    @tf.function(jit_compile=jit, autograph=False)
    def gradients(again):
        with tf.GradientTape() as tape:
            y = ReadAgain().product(tf.identity(x), kernel) if again else tf.matmul(x, kernel)
            rows = lookup(kernel, ids, keep=not again)
            loss = tf.reduce_sum(y * upstream) + tf.reduce_sum(rows**2 * upstream)
        return [loss, *tape.gradient(loss, [x, kernel])]

    for found, expected in zip(gradients(True), gradients(False), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def without_reshapes(call):
    """Yields the tensors that a call of a function returns, as they were before reshapes; not small ones."""
    graph = call.graph._get_function(call.get_attr("f").name).graph
    for tensor in graph.outputs:
        while tensor.op.type in ("Reshape", "Identity"):
            tensor = tensor.op.inputs[0]
        if tensor.dtype.is_floating and tensor.shape.rank > 1:
            yield tensor


@pytest.mark.parametrize(
    ("model", "stages"), [({}, 1), (LLAMA, 1), (MODERN, 1), (LLAMA, 2)], ids=["bert", "llama", "modernbert", "pipeline"]
)
def test_backward_keeps_no_kernel_and_no_table(model, stages):
    """What backward keeps are outputs of the forward function; the heads run backward at once.

    A pipeline that XLA compiles keeps the table of its first stage.
    """
    division = {"pipeline_parallel_size": 2, "compute": {"jit_compile": "true"}} if stages > 1 else ZERO_3
    config = case(model={**model, "num_hidden_layers": stages}, **division)
    run = new_run(config.resolve(2), Mesh(0, 2, 0, 2, pipeline_parallel_size=stages))
    stage = (PipelineGradients if stages > 1 else ShardedModel)(run)._stage
    batch = next((token_batches if run.config.model.is_causal else batches)(1, samples=3))
    position = Position(tf.constant(1, tf.int64), tf.ones([2]), tf.ones([]))

    calls = []

    @tf.function(autograph=False)
    def both(x, upstream):
        gradients = []
        for chunk in [number for number, part in enumerate(stage.parts) if not part.heads]:
            made = stage.forward(chunk, x if chunk else None, MicroBatch(batch, tf.constant(0, tf.int64), position))
            calls.append(made.output.op)
            gradients += stage.backward(made, upstream).of_variables.values()
        return gradients

    both.get_concrete_function(*[tf.ones([3, 12, config.model.hidden_size])] * 2)
    variables = run.task.model.named_variables().items()
    weights = [each.shape for name, each in variables if name.endswith("kernel" if stages > 1 else "")]
    weights = [shape for shape in weights if shape.rank == 2]
    assert weights
    assert calls
    for forward in calls:
        assert "PartitionedCall" in forward.type
        kept = [tensor.name for tensor in without_reshapes(forward)]
        assert len(kept) == len(set(kept))
        assert not [output.shape for output in forward.outputs if output.shape in weights and output.shape[0] > 2]
