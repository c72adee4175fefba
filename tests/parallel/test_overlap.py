"""Gradients travel while backward still computes others."""

import pytest

from tests.distributed import run_ranks


@pytest.mark.multirank
def test_the_first_bucket_is_summed_while_backward_computes():
    output = run_ranks(2, ["-m", "tests.parallel.two_ranks_overlap"])
    assert output.count("the first bucket travels early") == 2
