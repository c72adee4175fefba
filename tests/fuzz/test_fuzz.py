"""The fuzzer in short; the long form is `python -m tests.fuzz`."""

import re

import pytest

from tests.fuzz import harness
from tests.fuzz.targets import TARGETS
from tests.kit.ranks import run_ranks


@pytest.mark.parametrize("cases", [5, pytest.param(40, marks=pytest.mark.nightly)])
def test_damaged_files_are_refused_cleanly_or_right(cases):
    # A process of its own: one in which TensorFlow has run must not fork.
    output = run_ranks(1, ["-m", "tests.fuzz", f"--cases={cases * len(TARGETS)}", "--seed=0"], seconds=500)
    counts = {
        name: [int(count) for count in found]
        for name, *found in re.findall(r"^(\w+) +(\d+) refused, (\d+) accepted, (\d+) failed", output, re.M)
    }
    assert list(counts) == list(TARGETS)
    assert all(sum(found) == cases for found in counts.values())
    # Any damage of an index can be made good.
    assert all(refused > 0 or name == "index" for name, (refused, _, _) in counts.items()), counts
    assert sum(accepted for _, accepted, _ in counts.values()) > cases


class _Broken(harness.Target):
    """Fails in another way in each case."""

    name, clean = "broken", (ValueError,)

    def damage(self, rng, folder):
        (folder / "number").write_text(str(rng.integers(5)))
        return "the file"

    def use(self, folder):
        import ctypes
        import time

        kind = int((folder / "number").read_text())
        if kind == 0:
            ctypes.string_at(0)
        elif kind == 1:
            bytearray(2 * harness.MEMORY)
        elif kind == 2:
            raise ValueError("something else\nin two lines")
        elif kind == 3:
            (folder.parent / "precious").write_text("no more")
        elif kind == 4:
            time.sleep(harness.SECONDS + 60)


@pytest.mark.nightly
def test_every_way_to_fail_is_found_and_repeats(monkeypatch):
    monkeypatch.setattr(harness, "SECONDS", 3)
    results = list(harness.run(_Broken(), 1, range(16)))
    words = (
        *("SIGSEGV", "unclean MemoryError", "that is not one line", "outside of the folder was changed"),
        "no end after",
    )
    assert all(any(word in result.outcome for word in words) for result in results), results
    assert all(any(word in result.outcome for result in results) for word in words), results
    again = next(iter(harness.run(_Broken(), 1, [7])))
    assert again.outcome.split("\n")[0] == results[7].outcome.split("\n")[0]
