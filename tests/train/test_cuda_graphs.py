"""--cuda_graphs: what a run says that has none; `test_run` has what XLA is told."""

import pytest

from tftrain.train.introduction import graphs_note


@pytest.mark.parametrize(
    ("wanted", "may_have", "cuda", "expected"),
    [
        *((True, True, version, "") for version in ((12, 3), (13, 0), None)),
        *((True, False, (12, 2), ""), (False, True, (12, 2), "")),
        (False, False, None, "--cuda_graphs=false has no effect: XLA does not compile the step for a GPU"),
        (True, True, (12, 2), "the driver supports CUDA 12.2, they need 12.3 (driver 545 or newer)"),
        (True, True, (11, 8), "the driver supports CUDA 11.8"),
    ],
)
def test_a_run_without_the_graphs_that_it_names_says_why(wanted, may_have, cuda, expected):
    note = graphs_note(wanted, may_have, cuda)
    assert expected in note
    assert bool(note) == bool(expected)
