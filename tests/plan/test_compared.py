"""The plan of a loss that compares all samples of a global batch: the vectors, and one forward pass more."""

import pytest

from tests.plan.workloads import TFTRAIN
from tftrain.cli import flags
from tftrain.plan import memory, timeline, timing
from tftrain.plan.cluster import A100
from tftrain.plan.config import PlanConfig, workload
from tftrain.plan.system import Constants

BARE = Constants(reserve_gb=0.0, fragmentation=0.0, state_slack=0.0)
WORK = TFTRAIN._replace(dp=4, sequences=2, micro_batch=4, predictions=0, gpu=True)


@pytest.mark.parametrize("batches", [1, 2, 64, 4096])
@pytest.mark.parametrize("division", [{}, {"tp": 2}, {"pp": 2}, {"zero_stage": 3}], ids=str)
def test_the_vectors_and_a_forward_pass_come_to_the_plan_of_the_same_batch(batches, division):
    plain = WORK._replace(**division, global_batch=batches * WORK.micro_batch * WORK.dp)
    work = plain._replace(compares=True)
    one, other = memory.estimate(plain, BARE), memory.estimate(work, BARE)
    assert one.vectors == 0
    every = 4 * work.global_batch * work.sequences * work.model.width
    assert work.vector_bytes == every / work.dp
    if "pp" not in division:  # Else the first stage may be the fullest.
        assert every / work.dp <= other.vectors <= every + 2.5 * every / work.dp + memory.SCORES
    assert other.total == pytest.approx(one.total + other.vectors)
    before, after = timing.step(plain, A100, BARE), timing.step(work, A100, BARE)
    assert after.total == pytest.approx(before.total + after.first_pass)
    if batches > 1:  # The loss itself grows with the square of the batch.
        assert after.first_pass > 0.3 * (before.products - before.gradient_sums)
    if batches == 64:
        assert after.first_pass < 0.45 * before.total
    if "pp" not in division:
        assert max(each.held for each in timeline.of_step(work, A100, BARE)) <= 1.001 * other.total


def test_between_the_passes_vectors_of_all_ranks_count_beside_nothing_of_a_micro_batch():
    small = WORK._replace(compares=True, micro_batch=1, global_batch=4 * 4096)
    large = small._replace(global_batch=4 * 2**20)
    assert memory.estimate(small, BARE).vectors == small.vector_bytes  # hidden behind activations and gradients
    micro = memory.estimate(large, BARE)
    between = 6.5 * large.vector_bytes + memory.SCORES
    assert micro.vectors == pytest.approx(between - micro.activations - micro.gradients - micro.accumulation)
    assert memory.estimate(large._replace(gpu=False), BARE).vectors == pytest.approx(between)


def test_a_plan_of_pairs_needs_no_file_of_them():
    sizes = ["--vocab_size=1000", "--max_seq_length=64", "--micro_batch_size=4", "--global_batch_size=512"]
    work = workload(flags.parse(PlanConfig, ["plan", "--task=embedding", *sizes]), A100)
    assert (work.compares, work.sequences) == (True, 2)


@pytest.mark.parametrize(
    ("flags_of_loss", "scorings"), [("", 1), ("symmetric", 2), ("symmetric --matryoshka_dims=8,16", 6), ("cosent", 0)]
)
def test_the_loss_takes_as_long_as_its_scores(flags_of_loss, scorings):
    given = f"--embedding_loss={flags_of_loss}".split() if flags_of_loss else []
    sizes = ["--vocab_size=1000", "--max_seq_length=64", "--micro_batch_size=512", "--global_batch_size=4096"]
    work = workload(flags.parse(PlanConfig, ["plan", "--task=embedding", *sizes, *given]), A100)
    work = work._replace(dp=1, micro_batch=4096)  # nothing travels, and one pass
    assert work.scorings == scorings
    one, found = (timing.step(work._replace(scorings=each), A100, BARE).first_pass for each in (1, scorings))
    assert found == pytest.approx(scorings * one)
