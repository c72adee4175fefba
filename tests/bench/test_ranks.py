"""Table ranks: the seconds until lines appear, and the memory of processes that share pages."""

import os
import subprocess
import sys

import pytest

from tftrain.bench import ranks
from tftrain.bench.config import BenchConfig
from tftrain.bench.ranks import RANKS, command
from tftrain.bench.worker import MeasureError

# A child that holds 40 MB, and beside it one that has the same 40 MB from its parent.
SHARES = """
import os, sys, time
block = os.urandom(40_000_000)
for _ in range(2):
    if os.fork() == 0:
        time.sleep(2)
        os._exit(0)
print("one", flush=True)
time.sleep(0.6)
print("two", flush=True)
os.wait(), os.wait()
"""


def measure(program, awaited, limit=20):
    return ranks.measure([sys.executable, "-c", program], dict(os.environ), awaited, limit)


def test_shared_pages_count_once():
    (first, second), memory = measure(SHARES, ["one", "two"])
    assert second - first == pytest.approx(0.6, abs=0.3)
    # The parent has its third of the pages, and is not a rank.
    assert 20e6 < memory.total < 55e6
    # Each rank has a third too; the first has a half until the second is there, and `largest` may be read then.
    assert memory.total / 2 <= memory.largest < 30e6


def test_a_line_that_does_not_come_is_an_error_as_is_a_code():
    with pytest.raises(MeasureError, match="did not print 'two'"):
        measure("print('one')", ["one", "two"])
    with pytest.raises(MeasureError, match="exit code 3"):
        measure("raise SystemExit(3)", [])


def test_a_process_that_has_ended_has_no_memory():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert ranks.memory_of([process.pid]) == (0, 0, 0)
    assert ranks.memory_of([os.getpid()]).total > 1e6


def test_forked_ranks_differ_from_programs_in_one_option():
    rows = {row.name: command(row, "/folder", BenchConfig()) for row in RANKS.rows}
    programs, forked = rows["64/dp_tp2_zero1/programs"], rows["64/dp_tp2_zero1/forked"]
    assert [arg for arg in forked if arg != "--fork_ranks"] == programs
