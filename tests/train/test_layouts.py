"""Losses, gradients and updates are the same however ranks divide the work; see `layouts` for what is compared."""

import pytest

from tests.distributed import run_ranks
from tests.train.layouts import CASES

# One of each kind; `python -m tests.train.layouts` has the rest.
CHOSEN = (
    "tp1-accumulate1-zero1-naive",
    "zero1-even-fused-accumulate",
    "tp2-zero1-even-fused",
    "tp2-accumulate4-zero2-even",
    "tp4-accumulate1-zero0",
    "tp2-zero1-greedy:2",
    "zero2-bf16-accumulate",
)


@pytest.mark.multirank
@pytest.mark.timeout(900)
def test_four_ranks_train_as_one_does_in_every_layout():
    assert set(CHOSEN) <= set(CASES)
    output = run_ranks(4, ["-m", "tests.train.layouts", *CHOSEN], seconds=800)
    for name in CHOSEN:
        assert f"{name} agrees" in output
