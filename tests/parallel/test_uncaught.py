"""An exception that nobody catches ends the process as it should: Gloo's with our words, others by SIGABRT."""

import shutil
import signal
import subprocess
import sys

import pytest

from tests.distributed import ROOT

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
from tftrain.parallel.uncaught import on_uncaught_gloo
on_uncaught_gloo(lambda: (print("lost", flush=True), os._exit(80)))
ctypes.CDLL({str(library)!r})[sys.argv[1]]()
"""
    codes = {"of_gloo": (80, "lost\n"), "of_another": (-signal.SIGABRT, "")}
    for name, expected in codes.items():
        done = subprocess.run([sys.executable, "-c", program, name], cwd=ROOT, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == expected, done.stderr
    assert "of this test" in done.stderr
