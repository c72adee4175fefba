"""The count of operations against the matrix products in the graph of the model."""

import math

import pytest
import tensorflow as tf

from tests.model.samples import outputs, small_batch, small_config
from tftrain.architecture.describe import describe
from tftrain.architecture.flops import forward, step
from tftrain.config.model import ModelConfig
from tftrain.model.bert import BertPretrainer


def test_a_step_of_bert_base_is_about_six_operations_a_weight_and_token():
    # 6 N D (arXiv 2001.08361) holds where attention's own products and the head over few positions are small:
    # N is the weights of the blocks. At S = 128 attention adds 4 S^2 H / (24 S H^2) = 2.8 %, the head 4.4 %.
    model = describe(ModelConfig(vocab_size=30522))
    assert forward(model, 128, 20).blocks / (2 * 128 * 84_934_656) == pytest.approx(1 + 128 / (6 * 768), rel=1e-12)
    assert step(model, 128, 20, 1) == pytest.approx(6 * 128 * 84_934_656 * 1.07, rel=0.01)


@pytest.mark.parametrize("activation", ["gelu", "geglu"])
def test_equals_the_products_in_the_graph_of_the_model(activation):
    config, batch = small_config(activation=activation), small_batch()
    model = BertPretrainer(config, "float32", 1)
    samples, length, predictions = *batch["input_ids"].shape, batch["masked_lm_ids"].shape[1]
    graph = tf.function(lambda: outputs(model, batch), autograph=False).get_concrete_function().graph
    # The model looks token types up by a product with one-hot rows; a look-up is not work of the model.
    look_up = 2 * samples * length * config.type_vocab_size * config.hidden_size
    expected = forward(describe(config), length, predictions).total
    assert graph_flops(graph) - look_up == samples * expected
    assert step(describe(config), length, predictions, samples) == 3 * samples * expected


def graph_flops(graph):
    """Two operations for each element of a matrix product and each term of its sum."""
    products = [op for op in graph.get_operations() if op.type in ("MatMul", "BatchMatMulV2", "Einsum")]
    return sum(2 * op.outputs[0].shape.num_elements() * inner_size(op) for op in products)


def inner_size(op):
    first = op.inputs[0].shape
    if op.type == "MatMul":
        return first[0 if op.get_attr("transpose_a") else 1]
    if op.type == "BatchMatMulV2":
        return first[-2 if op.get_attr("adj_x") else -1]
    inputs, output = op.get_attr("equation").decode().split("->")
    return math.prod(size for letter, size in zip(inputs.split(",")[0], first, strict=True) if letter not in output)
