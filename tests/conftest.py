"""Settings of every test process: the CPU, the Keras 2 API, quiet TensorFlow."""

import ast
import dataclasses
import functools
import gc
import json
import os
import re
import sys
from pathlib import Path

# Before TensorFlow is imported, which would load Keras 3 too.
os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# scikit-learn, which some tests import, sets these. `ForkServer.can_fork` would find another environment from there on.
os.environ.update({"KMP_DUPLICATE_LIB_OK": "True", "KMP_INIT_AT_FORK": "FALSE"})
if "PYTEST_XDIST_WORKER" in os.environ:
    # As many test processes as cores: more threads would wait for each other.
    os.environ.update(dict.fromkeys(("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OPENBLAS_NUM_THREADS"), "1"))
    # Imports leave no garbage: a quarter of their time.
    gc.disable()

import hypothesis
import pytest
from xdist.scheduler import LoadFileScheduling

from tests.kit.data_sets import corpus, prepare_config, prepared, prepared_causal, prepared_packed, prepared_static
from tests.kit.servers import proxy, quick, s3, s3_server
from tftrain.host import log

__all__ = ["corpus", "prepare_config", "prepared", "prepared_causal", "prepared_packed", "prepared_static"]
__all__ += ["proxy", "quick", "s3", "s3_server"]

# Properties hold however busy the machine is.
hypothesis.settings.register_profile("tests", deadline=None)
hypothesis.settings.load_profile("tests")

ROOT = Path(__file__).parent
# Mostly compile.
SLOW_ROOMS = {"bench", "fuzz", "ops"}
# Files whose cases share nothing: the last value in a test's brackets names what its worker makes.
DIVIDED = ("tests/test_family_programs.py",)
BY_HAND = {
    "gpu_build": "needs the fused ops with their GPU kernels: run it with `make test-gpu`",
    "quiet": "compares seconds: `make test-quiet` runs it",
}


@pytest.fixture(autouse=True)
def log_of_one_rank():
    """Sets up the log of a run with one rank, for tests that call the loop or its parts themselves."""
    log.configure(rank=0)


def pytest_collection_modifyitems(config, items):
    """Marks slow rooms and tests with several ranks, and skips what runs by hand; long files come first."""
    for item in items:
        if item.path.parent.name in SLOW_ROOMS or item.get_closest_marker("multirank"):
            item.add_marker(pytest.mark.slow)
        for marker, reason in BY_HAND.items():
            if item.get_closest_marker(marker) and marker not in config.option.markexpr:
                item.add_marker(pytest.mark.skip(reason=reason))
    # A long file at the end would keep one worker busy while the other has nothing left. A file stays in one piece, or
    # what its tests share would be made again.
    ranks = [[not item.get_closest_marker(name) for name in ("multirank", "slow")] for item in items]
    of_file = {}
    for item, rank in zip(items, ranks, strict=True):
        of_file[item.path] = min(of_file.get(item.path, rank), rank)
    items.sort(key=lambda item: of_file[item.path])


def pytest_collection_finish():
    """Spares the collector what is imported, and most graphs: a tenth of the time of tests that trace some.

    Leaves out the curves of runs, if there are any.
    """
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    if "tftrain.observe.plot" in sys.modules:
        from tests.kit import pictures

        pictures.leave_out()


@pytest.fixture
def drawn_pictures():
    """Draws the curves of a run, as `pictures` says."""
    from tests.kit import pictures

    with pictures.drawn():
        yield


@functools.cache
def _rank_tests(path):
    """Returns the names of the tests of a file that start ranks; a file that is marked has one, the empty name."""
    marks = ((node, getattr(node, "decorator_list", [node])) for node in ast.parse(path.read_text()).body)
    return {
        getattr(node, "name", "") for node, own in marks if "pytest.mark.multirank" in " ".join(map(ast.unparse, own))
    }


@functools.cache
def _forks_one_rank(path):
    return bool(re.search(r'ranks\(1,|"started"', path.read_text()))


class FewRankServers(LoadFileScheduling):
    """Deals out file by file; all tests that start ranks to one worker, and all files that start a single rank to one.

    Ranks of two tests at once would starve each other on few cores, and every rank server loads TensorFlow.
    """

    def _split_scope(self, nodeid):
        file, (test, _, case) = super()._split_scope(nodeid), nodeid.split("::")[1].partition("[")
        if file in DIVIDED:
            return f"{file} {case.rpartition('-')[2]}"
        if {"", test} & _rank_tests(ROOT.parent / file):
            return "ranks"
        return "one rank" if _forks_one_rank(ROOT.parent / file) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Replaces the scheduler of `--dist=loadfile`."""
    return FewRankServers(config, log) if config.getvalue("dist") == "loadfile" else None


RAMP = (
    *("--num_hidden_layers=1", "--global_batch_size=8", "--micro_batch_size=2", "--batch_rampup=4:4:12"),
    *("--max_steps=5", "--warmup_steps=2", "--eval_every=-1"),
)


@pytest.fixture(scope="session")
def ramped(tmp_path_factory):
    """A run past the end of the ramp, with a checkpoint after the second update, in the middle of the ramp."""
    from tests.kit.runs import train_alone

    folder = tmp_path_factory.mktemp("ramped")
    train_alone(*RAMP, f"--output_dir={folder}", "--checkpoint_every=2")
    return folder


@pytest.fixture(scope="session")
def ramped_on_two(tmp_path_factory):
    """The same run on two ranks; rank 1 holds 300 MB of unused memory. Returns the folder and the output."""
    from tests.kit.ranks import run_ranks
    from tests.kit.runs import SMALL
    from tftrain.plan.cluster import CLUSTERS

    folder = tmp_path_factory.mktemp("ramped_on_two")
    program = (
        "import os, sys; from tftrain import run; "
        "ballast = b'x' * (300_000_000 if os.environ['HOROVOD_RANK'] == '1' else 1); sys.exit(run.main(sys.argv))"
    )
    (folder / "machine.json").write_text(json.dumps(dataclasses.asdict(CLUSTERS["a64fx"])))
    given = (f"--output_dir={folder}", f"--machine_file={folder}/machine.json")
    return folder, run_ranks(2, ["-c", program, *SMALL, *RAMP, *given])
