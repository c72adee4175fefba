"""--cuda_graphs: what XLA is told, and what a run says that has none."""

import os

import pytest

from tftrain import run
from tftrain.config.compute import ComputeConfig
from tftrain.train.introduction import graphs_note

OWN = "--xla_gpu_enable_command_buffer=FUSION"


@pytest.mark.parametrize(
    ("given", "wanted", "expected"),
    [
        ("", True, ""),
        (OWN, True, OWN),
        ("", False, run.NO_CUDA_GRAPHS),
        (OWN, False, f"{OWN} {run.NO_CUDA_GRAPHS}"),  # the last one counts
    ],
)
def test_xla_is_told_before_tensorflow_starts(monkeypatch, given, wanted, expected):
    monkeypatch.setattr(os, "environ", {"XLA_FLAGS": given})
    monkeypatch.setattr(run.hardware, "has_driver", lambda: False)
    run.prepare_process(ComputeConfig(cuda_graphs=wanted), may_restart=False)
    assert os.environ["XLA_FLAGS"] == expected


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
