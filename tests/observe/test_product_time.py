"""The products of an update: their operations against the formula, and their time against that of one of them."""

import pytest
from tensorflow.python.eager import context

from tests.plan.workloads import resized
from tftrain.architecture.flops import step
from tftrain.config.data import DataConfig
from tftrain.config.model import ModelConfig
from tftrain.config.parallel import BatchConfig
from tftrain.config.run import RunConfig
from tftrain.config.train import TrainConfig
from tftrain.observe import product_time
from tftrain.plan import forecast
from tftrain.plan.workload import from_config

SIZES = {"vocab_size": 120, "num_hidden_layers": 3, "hidden_size": 24, "num_attention_heads": 4}
LENGTH, PREDICTIONS, SAMPLES = 16, 5, 12


def workload(steps=1, **model):
    config = TrainConfig(
        model=ModelConfig(**SIZES, **model),
        data=DataConfig(synthetic_data=True, max_seq_length=LENGTH, max_predictions_per_seq=PREDICTIONS),
        batch=BatchConfig(global_batch_size=SAMPLES, grad_accum_steps=steps),
        run=RunConfig(output_dir="unused"),
    ).resolve(1)
    return config, from_config(config, 1)


@pytest.mark.parametrize("model", [{}, {"activation": "geglu"}, {"model_family": "gpt"}])
@pytest.mark.parametrize("steps", [1, 3])
def test_the_operations_of_the_listed_products_are_those_of_the_formula(model, steps):
    _, work = workload(steps, **model)
    found = sum(product.flops * (forward + 2 * backward) for product, forward, backward in forecast.step_products(work))
    assert found == step(work.model, LENGTH, PREDICTIONS, SAMPLES)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("largest", [2**24, 2**11])
def test_every_pass_of_every_product_counts_as_often_as_it_runs(monkeypatch, precision, largest):
    """With a clock that counts operations, the time is that of all operations of the step."""
    _, work = workload()
    monkeypatch.setattr(product_time, "LARGEST", largest)

    def operations(left, right, transposed):
        product = product_time.tf.matmul(left, right, *transposed)
        inner = left.shape[-2] if transposed[0] else left.shape[-1]
        return 2.0 * product.shape.num_elements() * inner

    monkeypatch.setattr(product_time, "_seconds", operations)
    expected = step(work.model, LENGTH, PREDICTIONS, SAMPLES)
    assert product_time.measure(work._replace(precision=precision)) == pytest.approx(expected, rel=1e-12)
    scores_and_context = 3 * 2 * 2 * SAMPLES * LENGTH**2 * SIZES["hidden_size"] * SIZES["num_hidden_layers"]
    assert product_time.measure(work, attending=0.25) == pytest.approx(expected - 0.75 * scores_and_context, rel=1e-12)


@pytest.mark.parametrize("transposed", [(False, False), (False, True), (True, False)])
def test_the_graph_that_is_timed_has_every_product(transposed):
    """After Grappler, which would compute equal products once and leave out those that nothing reads."""
    matrix = product_time.tf.ones([8, 8])
    context.context().enable_run_metadata()
    try:
        graph = product_time._back_to_back(matrix, matrix, transposed)
        assert graph(*[matrix] * 2 * product_time.IN_A_GRAPH).numpy() == 8 * product_time.IN_A_GRAPH
        found = context.context().export_run_metadata().function_graphs[-1].post_optimization_graph
    finally:
        context.context().disable_run_metadata()
    products = [node for node in found.node if "MatMul" in node.op]
    assert len(products) == product_time.IN_A_GRAPH
    assert sum(any(name.startswith("^") for name in node.input) for node in products) == len(products) - 1


def test_a_measurement_takes_time():
    _, work = workload()
    assert 0 < product_time.measure(resized(work, num_hidden_layers=1)) < 60
