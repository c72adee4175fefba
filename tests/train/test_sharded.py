"""Sharded weights (ZeRO-3) change neither losses nor updates; see `sharded` for what is compared."""

import pytest

from tests.distributed import run_ranks
from tests.train.sharded import CASES


def check(ranks, names, seconds=500):
    output = run_ranks(ranks, ["-m", "tests.train.sharded", *names], seconds=seconds)
    print(output)
    for name in names:
        assert f"{name} agrees" in output


@pytest.mark.multirank
def test_two_ranks_with_sharded_weights_train_as_with_whole_ones():
    check(2, ["bert", "llama"])


@pytest.mark.multirank
@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_every_lever_works_with_sharded_weights():
    check(2, [name for name, case in CASES.items() if "tp2" not in name and "host" not in name], 1000)


@pytest.mark.multirank
@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("ranks", "names"), [(4, ["tp2", "tp2-sequence-llama-full"]), (4, ["host"]), (8, ["host-tp2"])]
)
def test_tensor_parallel_ranks_and_hosts_divide_the_weights_further(ranks, names):
    check(ranks, names, 1000)
