"""Matrix products by shape: how many by hand, and together what a step takes for products."""

import pytest
from hypothesis import given

from tests.plan.workloads import BERT, GPT, workloads
from tftrain.plan import forecast, timing
from tftrain.plan.cluster import A100
from tftrain.plan.system import Constants


@given(workloads())
def test_they_take_together_what_a_step_takes_for_products(work):
    work = work._replace(pp=1)
    found = forecast.products_by_shape(work, A100, Constants())
    assert sum(shape.seconds for shape in found) == pytest.approx(timing.step(work, A100, Constants()).products)


@pytest.mark.parametrize(("mode", "projections", "scores"), [("none", 3, 3), ("selective", 3, 4), ("full", 4, 4)])
def test_their_numbers_by_hand(mode, projections, scores):
    # 12 layers, of which each of 2 ranks has 6 heads; 4 micro-batches of 4 x 128 tokens.
    work = BERT._replace(global_batch=16, tp=2, checkpointing=mode)
    found = {shape.product.name: shape for shape in forecast.products_by_shape(work, A100, Constants())}
    queries = found["queries, keys, values"]
    assert (queries.product.m, queries.product.k, queries.product.n) == (512, 768, 384)
    assert queries.count == 3 * projections * 12 * 4
    assert (found["scores"].product.batch, found["scores"].count) == (4 * 6, scores * 12 * 4)
    assert found["logits"].count == 3 * 4


def counts(work):
    return {each.product.name: each.count for each in forecast.products_by_shape(work, A100, Constants())}


def test_a_stage_of_a_pipeline_has_its_own_layers():
    whole, stage = (counts(GPT._replace(pp=pp)) for pp in (1, 4))
    assert stage["wide"] == whole["wide"] / 4
    assert stage["logits"] == whole["logits"]
