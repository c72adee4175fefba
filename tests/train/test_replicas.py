"""Variables that tensor parallel ranks hold whole are equal to the last bit, although their gradients are not."""

import pytest

from tests.distributed import run_ranks

# Parts of buckets; micro-batches are reduced one by one.
SHORT = ("tp2-accumulate4-zero2-even",)
# Whole state, whole tensors of owners, sparse rows, and other combinations.
LONG = (
    "tp2-sparse-accumulate",
    "tp2-zero1-greedy:2",
    "tp2-accumulate1-zero0",
    "tp2-zero1-even-fused",
    "tp2-accumulate1-zero1-naive",
    "tp2-zero2-fp16-accumulate",
)


@pytest.mark.multirank
@pytest.mark.parametrize("names", [SHORT, pytest.param(LONG, marks=pytest.mark.nightly)], ids=["short", "long"])
def test_replicas_stay_equal_although_each_rank_rounds_in_its_own_way(names):
    output = run_ranks(4, ["-m", "tests.train.replicas", *names], seconds=400)
    for name in names:
        assert f"{name}: replicas are equal" in output
