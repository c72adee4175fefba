"""Levers that must change no results, drawn at random and crossed with each other and with layouts."""

import pytest

from tests.train import crossings


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("crossings") / "data"
    crossings.write_data(folder)
    return folder


@pytest.mark.multirank
@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(8))
def test_levers_on_any_two_layouts_train_as_one_plain_rank(data, tmp_path, seed):
    assert not crossings.problems_of(crossings.draw(seed, data), tmp_path)


def test_a_difference_is_named():
    expected = {(1, "loss"): 5.0, (6, "loss"): 4.0, (6, "grad_norm"): 0.5}
    assert crossings.differences(expected, expected, 0) == []
    found = {(1, "loss"): 5.1, (6, "grad_norm"): 1.0}
    assert crossings.differences(found, expected, 1) == [
        "step 6: loss is None, 4.0 on one rank",
        "step 6: grad_norm is 1.0, 0.5 on one rank",
    ]
