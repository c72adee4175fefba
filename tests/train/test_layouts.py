"""Losses, gradients and updates are the same however ranks divide the work; see `layouts` for what is compared."""

import pytest

from tests.distributed import run_ranks
from tests.train.layouts import CASES

# Each stage of ZeRO, each strategy, each size of a tensor parallel group, fused ops, accumulation and bf16.
SHORT = (
    "tp1-accumulate1-zero1-naive",
    "tp2-zero1-even-fused",
    "tp2-accumulate4-zero2-greedy:1",
    "tp4-accumulate1-zero0",
    "zero2-bf16-accumulate",
)
# The same in other combinations; `python -m tests.train.layouts` has the rest.
LONG = ("zero1-even-fused-accumulate", "tp2-accumulate4-zero2-even", "tp2-zero1-greedy:2")


@pytest.mark.multirank
@pytest.mark.timeout(900)
@pytest.mark.parametrize("names", [SHORT, pytest.param(LONG, marks=pytest.mark.nightly)], ids=["short", "long"])
def test_four_ranks_train_as_one_does_in_every_layout(names):
    assert set(names) <= set(CASES)
    output = run_ranks(4, ["-m", "tests.train.layouts", *names], seconds=800)
    for name in names:
        assert f"{name} agrees" in output
