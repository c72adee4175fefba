"""The formulas of training logs: published TFLOPs to the last digit, and the exact count by hand."""

import pytest

from tests.plan.workloads import GPT as LARGE
from tests.plan.workloads import resized
from tftrain.architecture import flops
from tftrain.architecture.describe import describe
from tftrain.bench.published import rows
from tftrain.config.model import ModelConfig
from tftrain.plan.reported_flops import reported

SIZES = {"num_hidden_layers": 3, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 64}
ROWS = {row.name: row for row in rows.read_reference()}
GPT = resized(LARGE, **SIZES, vocab_size=50, max_position_embeddings=8)._replace(
    seq=8, predictions=8, micro_batch=1, global_batch=5
)


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        *(("gpt_contenders/06", "123.05"), ("gpt_contenders/07", "132.71"), ("gpt_contenders/01", "112.49")),
        *(("gpt_contenders/03", "130.34"), ("gpt_contenders/08", "121.45"), ("gpt_contenders/11", "134.11")),
        ("a64fx_30b/02", "1.10"),
    ],
)
def test_the_corrected_formula_gives_the_published_figures_to_the_last_digit(name, tflops):
    row = ROWS[name]
    found = reported(row.workload, "corrected") / (row.reference.sec_per_iteration * row.workload.ranks * 1e12)
    assert f"{found:.2f}" == tflops == f"{row.reference.tflops_per_gpu:.2f}"


def test_the_old_formula_gives_the_published_figures_but_for_the_norms():
    # The source counted every weight of the blocks on every rank that holds it: norms and biases tp times, 0.04 %.
    old = [row for row in ROWS.values() if row.formula == "old" and row.reference.sec_per_iteration]
    assert len(old) > 20
    for row in old:
        found = reported(row.workload, "old") / (row.reference.sec_per_iteration * row.workload.ranks * 1e12)
        assert found == pytest.approx(row.reference.tflops_per_gpu, rel=5e-4)


def test_a_decoder_is_the_sum_of_its_products():
    products = [(8, 16, 48), (8, 16, 16), (8, 16, 64), (8, 64, 16), *[(8, 8, 8), (8, 8, 8)] * 2]
    block = sum(2 * rows * inner * columns for rows, inner, columns in products)
    assert reported(GPT, "exact") == 3 * 5 * (3 * block + 2 * 8 * 16 * 50)


def test_an_encoder_counts_as_the_model_of_this_project():
    model = describe(ModelConfig(**SIZES, vocab_size=50))
    encoder = GPT._replace(model=model, predictions=2)
    assert reported(encoder, "exact") == 3 * 5 * flops.forward(model, 8, 2).total
