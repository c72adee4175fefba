"""Settings of every test process: the CPU, the Keras 2 API, quiet TensorFlow."""

import fcntl
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


def pytest_collection_modifyitems(config, items):
    """Marks what compiles step after step, file by file, for `make test-fast`; skips what needs quiet."""
    for item in items:
        place = item.path.relative_to(ROOT).as_posix()
        if place.startswith(SLOW) or item.get_closest_marker("multirank"):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("quiet") and "quiet" not in config.option.markexpr:
            item.add_marker(pytest.mark.skip(reason="compares seconds: run it by hand with -m quiet"))


@pytest.fixture(autouse=True)
def _one_set_of_ranks_at_a_time(request, tmp_path_factory):
    """Several ranks starve each other on few cores: the tests that start them wait for those of other workers."""
    if request.node.get_closest_marker("multirank") is None:
        yield
        return
    with (tmp_path_factory.getbasetemp().parent / "ranks.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
