"""The planned memory over a step: what it begins and ends with, its peak, and the length of the step."""

import dataclasses

import pytest
from hypothesis import given

from tests.plan.workloads import GPT, bytes_of, workloads
from tftrain.plan import inventory, memory, timeline, timing
from tftrain.plan.cluster import A100
from tftrain.plan.system import Constants

BARE = Constants(reserve_gb=0.0, fragmentation=0.0, state_slack=0.0)


def test_forward_ends_with_all_saved_tensors_and_backward_with_all_gradients():
    found = timeline.of_step(GPT._replace(global_batch=GPT.micro_batch), A100, BARE)
    block, embedding, head = inventory.parts(GPT)
    state = (2 + 4 + 8) * inventory.weights(GPT)
    saved = GPT.model.layers * bytes_of(block) + bytes_of(embedding) + bytes_of(head)
    assert [each.held for each in found if each.phase == "forward"][-1] == pytest.approx(state + saved)
    assert [each.held for each in found if each.phase == "backward"][-1] == pytest.approx(state * (2 + 4 + 8 + 2) / 14)
    assert found[0].held == found[-1].held == pytest.approx(state)


@given(workloads())
def test_a_step_takes_what_its_parts_take_and_never_more_memory_than_the_plans_peak(work):
    work = work._replace(pp=1, tp=1)
    found = timeline.of_step(work, A100, BARE)
    times = [each.seconds for each in found]
    assert times == sorted(times)
    step = timing.step(work, A100, BARE)
    assert times[-1] == pytest.approx(step.total - step.recomputation, rel=0.35)
    assert max(each.held for each in found) <= 1.001 * memory.estimate(work, BARE).total
    phases = [each.phase for each in found]
    assert phases[0] == "forward"
    assert phases[-1] == "update"


def test_weights_that_are_gathered_block_by_block_make_the_passes_longer_and_not_the_update():
    work, slow = GPT._replace(dp=8, zero_stage=3), dataclasses.replace(A100, link_gbs=1)
    found = timeline.of_step(work, slow, BARE)
    update = [each.seconds for each in found if each.phase == "update"]
    assert update[-1] - update[0] == pytest.approx(timing.step(work, slow, BARE).update)
