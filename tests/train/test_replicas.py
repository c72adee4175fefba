"""Variables that tensor parallel ranks hold whole are equal to the last bit, although their gradients are not."""

import pytest

from tests.kit.ranks import run_ranks
from tests.train.replicas import CASES

SHORT, *LONG = CASES


@pytest.mark.nightly
@pytest.mark.multirank
@pytest.mark.parametrize("names", [[SHORT], LONG], ids=["short", "long"])
def test_replicas_stay_equal_although_each_rank_rounds_in_its_own_way(names):
    output = run_ranks(4, ["-m", "tests.train.replicas", *names], seconds=400)
    for name in names:
        assert f"{name}: replicas are equal" in output
