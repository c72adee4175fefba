"""Gradients travel while backward still computes others."""

import pytest

from tests.kit.ranks import run_ranks


@pytest.mark.multirank
@pytest.mark.parametrize("layouts", ["last", pytest.param("all", marks=pytest.mark.nightly)])
def test_the_first_bucket_is_summed_while_backward_computes(layouts):
    output = run_ranks(2, ["-m", "tests.parallel.two_ranks_overlap", layouts])
    assert output.count("the first bucket travels early") == 2
