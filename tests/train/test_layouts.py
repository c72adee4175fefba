"""Losses, gradients and updates are the same however ranks divide the work; see `layouts` for what is compared."""

import pytest

from tests.distributed import run_ranks
from tests.train.layouts import CASES, sizes

# ZeRO, each size of a tensor parallel group, fused ops, accumulation, the sequence divided, several examples in a row.
# Then stages with the decoder, a fused update and halves of backward.
SHORT = (
    "tp2-accumulate4-zero2-greedy:1",
    "tp4-accumulate1-zero0",
    "dp2-tp2-sequence-zero1-fused-packed",
    "dp2-pp2-zero1-naive-fused-packed",
    "tp2-pp2-sequence-zero_bubble-gpt",
)
# The same in other combinations; `python -m tests.train.layouts` has the rest.
LONG = (
    "zero2-bf16-accumulate",
    "tp1-accumulate1-zero1-naive",
    "tp2-zero1-even-fused",
    "zero1-even-fused-accumulate",
    "tp2-accumulate4-zero2-even",
    "tp2-zero1-greedy:2",
    "tp2-xla-selective",
)

MESHES = sorted({sizes(case) for case in CASES.values() if case.parallel.pipeline_parallel_size > 1})


def check(ranks, names, seconds):
    """Every mesh has ranks of its own, because Gloo does not always connect so many again."""
    for mesh in sorted({sizes(CASES[name]) for name in names}):
        chosen = [name for name in names if sizes(CASES[name]) == mesh]
        output = run_ranks(ranks, ["-m", "tests.train.layouts", *chosen], seconds=seconds)
        for name in chosen:
            assert f"{name} agrees" in output


@pytest.mark.multirank
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("names", [SHORT, pytest.param(LONG, marks=pytest.mark.nightly)], ids=["short", "long"])
def test_four_ranks_train_as_one_does_in_every_layout(names):
    check(4, names, seconds=800)


@pytest.mark.multirank
@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mesh", MESHES, ids=lambda mesh: f"tp{mesh[0]}-pp{mesh[1]}")
def test_eight_ranks_with_stages_train_as_one_does(mesh):
    check(8, [name for name, case in CASES.items() if sizes(case) == mesh], seconds=3500)
