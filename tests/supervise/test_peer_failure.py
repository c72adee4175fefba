"""A rank hears that another is gone where nothing fails that it waits for."""

import shutil
import signal
import subprocess
import sys

import pytest

from tests.kit.ranks import ROOT, started_ranks

THROWER = """
#include <stdexcept>
#include <thread>
namespace gloo { struct IoException : std::runtime_error { using std::runtime_error::runtime_error; }; }
extern "C" void of_gloo() { std::thread([] { throw gloo::IoException("Connection closed by peer"); }).join(); }
extern "C" void of_another() { std::thread([] { throw std::runtime_error("of this test"); }).join(); }
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_what_gloo_throws_is_acted_on_and_nothing_else(tmp_path):
    source, library = tmp_path / "thrower.cc", tmp_path / "thrower.so"
    source.write_text(THROWER)
    subprocess.run(["g++", "-shared", "-fPIC", "-pthread", source, "-o", library], check=True)
    program = f"""
import ctypes, os, sys
from tftrain.supervise.peer_failure import on_uncaught_gloo_error
on_uncaught_gloo_error(lambda: (print("lost", flush=True), os._exit(80)))
ctypes.CDLL({str(library)!r})[sys.argv[1]]()
"""
    codes = {"of_gloo": (80, "lost\n"), "of_another": (-signal.SIGABRT, "")}
    for name, expected in codes.items():
        done = subprocess.run([sys.executable, "-c", program, name], cwd=ROOT, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == expected, done.stderr
    assert "of this test" in done.stderr


@pytest.mark.multirank
def test_a_collective_that_horovod_has_forgotten_is_not_waited_for():
    program = """
import os, time
from tftrain.parallel.launcher import launch_from_environment
from tftrain.supervise import peer_failure
from tftrain.parallel import start
from tftrain.parallel.pending_collectives import Collective
peer_failure.FORGOTTEN_SECONDS = 2
ranks = start.start(launch_from_environment(), 1)
if ranks.rank == 1:
    pending = ranks.pending.unfinished
    peer_failure.on_forgotten_collective(lambda: bool(pending()), lambda: (print("lost", flush=True), os._exit(80)))
    print("starts", flush=True)
    ranks.pending.around(Collective("all-reduce", "gradients", (0, 1)), [], lambda _: time.sleep(600))
time.sleep(600)
"""
    with started_ranks(2, ["-c", program]) as ranks:
        ranks.wait_for("starts", rank=1)
        ranks.processes[0].kill()
        assert ranks.codes([1], 60) == [80]
        assert "lost" in ranks.output(1)
