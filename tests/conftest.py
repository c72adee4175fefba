"""Settings of every test process: the CPU, the Keras 2 API, quiet TensorFlow."""

import functools
import os
from pathlib import Path

import pytest
from xdist.scheduler import LoadFileScheduling

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
    """Marks what compiles step after step, file by file, for `make test-fast`; skips what needs quiet; ranks first."""
    for item in items:
        place = item.path.relative_to(ROOT).as_posix()
        if place.startswith(SLOW) or item.get_closest_marker("multirank"):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("quiet") and "quiet" not in config.option.markexpr:
            item.add_marker(pytest.mark.skip(reason="compares seconds: run it by hand with -m quiet"))
    items.sort(key=lambda item: not _starts_ranks(item.path))


@functools.cache
def _starts_ranks(path):
    return "pytest.mark.multirank" in path.read_text()


class OneWorkerForRanks(LoadFileScheduling):
    """File by file. Several ranks starve each other on few cores: one worker runs all files with tests that start some.

    They come first, since they take the longest.
    """

    def _split_scope(self, nodeid):
        file = super()._split_scope(nodeid)
        return "ranks" if _starts_ranks(ROOT.parent / file) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Deals out `--dist=loadfile`."""
    return OneWorkerForRanks(config, log) if config.getvalue("dist") == "loadfile" else None
