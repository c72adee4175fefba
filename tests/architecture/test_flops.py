"""The count of operations against matrix products written out by hand and against those of a traced model."""

import pytest

from tftrain.architecture.describe import describe
from tftrain.architecture.flops import forward, step
from tftrain.config.model import ModelConfig


def products(model, v, s, p):
    """Every matrix product of a forward pass over one sample, as (rows, inner, columns)."""
    h, i, heads = model.hidden_size, model.feed_forward_size, model.num_attention_heads
    found = []
    for _ in range(model.num_hidden_layers):
        found += [(s, h, h)] * 4
        found += [(s, h // heads, s), (s, s, h // heads)] * heads
        found += [(s, h, i), (s, i, h)]
        found += [(s, h, i)] if model.activation == "geglu" else []
    return [*found, (1, h, h), (1, h, 2), (p, h, h), (p, h, v)]


@pytest.mark.parametrize("activation", ["gelu", "geglu"])
def test_equals_the_sum_over_the_products_of_a_forward_pass(activation):
    model = ModelConfig(
        vocab_size=101,
        num_hidden_layers=3,
        hidden_size=24,
        num_attention_heads=4,
        intermediate_size=40,
        activation=activation,
    )
    expected = sum(2 * rows * inner * columns for rows, inner, columns in products(model, 101, 19, 5))
    assert forward(describe(model), 19, 5).total == expected
    assert step(describe(model), 19, 5, 7) == 3 * 7 * expected


def test_a_step_of_bert_base_is_about_six_operations_a_weight_and_token():
    # 6 N D (arXiv 2001.08361) holds where attention's own products and the head over few positions are small:
    # N is the weights of the blocks. At S = 128 attention adds 4 S^2 H / (24 S H^2) = 2.8 %, the head 4.4 %.
    model = describe(ModelConfig(vocab_size=30522))
    assert forward(model, 128, 20).blocks / (2 * 128 * 84_934_656) == pytest.approx(1 + 128 / (6 * 768), rel=1e-12)
    assert step(model, 128, 20, 1) == pytest.approx(6 * 128 * 84_934_656 * 1.07, rel=0.01)


@pytest.mark.parametrize("activation", ["gelu", "geglu"])
def test_equals_the_products_in_the_graph_of_the_model(activation):
    tf = pytest.importorskip("tensorflow")
    from tests.model.samples import outputs
    from tftrain.model.bert import BertPretrainer

    config = ModelConfig(
        vocab_size=61,
        num_hidden_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=16,
        activation=activation,
        ln_impl="reference",
        attn_softmax_impl="reference",
    )
    model = BertPretrainer(config, "float32", 1)
    samples, length, predictions = 3, 16, 4
    shapes = {"input_ids": length, "input_mask": length, "segment_ids": length, "masked_lm_positions": predictions}
    batch = {name: tf.TensorSpec([samples, width], tf.int32) for name, width in shapes.items()}
    run = tf.function(lambda batch: outputs(model, batch), autograph=False)
    graph = run.get_concrete_function(batch).graph
    # The model looks token types up by a product with one-hot rows; a look-up is not work of the model.
    look_up = 2 * samples * length * config.type_vocab_size * config.hidden_size
    assert graph_flops(graph) - look_up == samples * forward(describe(config), length, predictions).total


def graph_flops(graph):
    """Two operations for each element of a matrix product and each term of its sum."""
    total = 0
    for op in graph.get_operations():
        if op.type in ("MatMul", "BatchMatMulV2", "Einsum"):
            total += 2 * op.outputs[0].shape.num_elements() * inner_size(op)
    return total


def inner_size(op):
    first = op.inputs[0].shape
    if op.type == "MatMul":
        return first[0 if op.get_attr("transpose_a") else 1]
    if op.type == "BatchMatMulV2":
        return first[-2 if op.get_attr("adj_x") else -1]
    inputs, output = op.get_attr("equation").decode().split("->")
    letters = inputs.split(",")[0]
    size = 1
    for letter, extent in zip(letters, first, strict=True):
        size *= extent if letter not in output else 1
    return size
