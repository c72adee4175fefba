"""Settings of every test process: the CPU, the Keras 2 API, quiet TensorFlow."""

import os
from pathlib import Path

import pytest

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if "PYTEST_XDIST_WORKER" in os.environ:
    # As many test processes as cores: more threads would wait for each other.
    os.environ.update(TF_NUM_INTRAOP_THREADS="1", TF_NUM_INTEROP_THREADS="1")

ROOT = Path(__file__).parent
SLOW = (
    "bench",
    "checkpoint/test_layouts.py",
    "checkpoint/test_save.py",
    "ops",
    "test_run.py",
    "train/test_fused.py",
    "train/test_ramp.py",
    "train/test_saves.py",
    "train/test_step.py",
    "model/test_precision.py",
)


def pytest_collection_modifyitems(items):
    """Marks what compiles step after step, file by file, so that `make test-fast` stays fast, and groups for workers.

    One worker has all tests of several ranks, which would starve each other, from the beginning; a file is one group.
    """
    for item in items:
        place = item.path.relative_to(ROOT).as_posix()
        several = item.get_closest_marker("multirank")
        if place.startswith(SLOW) or several:
            item.add_marker(pytest.mark.slow)
        item.add_marker(pytest.mark.xdist_group("ranks" if several else place))
    items.sort(key=lambda item: item.get_closest_marker("multirank") is None)
