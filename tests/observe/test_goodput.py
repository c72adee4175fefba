"""Goodput: each second counts once, over all starts of a run, and steps that are lost count as repeated."""

import subprocess
import sys
import time

import pytest

from tftrain.observe import goodput
from tftrain.observe.goodput import Goodput, Start
from tftrain.observe.ledger import Ledger


class Clock:
    """Stands for the module `time` in the ledger: it advances when a test says so."""

    now = 1000.0

    CLOCK_BOOTTIME = time.CLOCK_BOOTTIME

    def time(self):
        return 5e8 + self.now

    def clock_gettime(self, _):
        return self.now

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def test_a_second_counts_for_the_innermost_kind(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("tftrain.observe.ledger.time", clock)
    ledger = Ledger()
    ledger.restart(5)
    with ledger.spend("compile"):
        clock.sleep(2)
        with ledger.spend("data"):
            clock.sleep(4)
    clock.sleep(8)
    assert ledger.seconds() == {"start": 5, "compile": 2, "data": 4, "other": 8}
    assert clock.time() - ledger.began == 5 + 2 + 4 + 8


def test_a_process_began_when_it_was_started():
    program = "from tftrain.observe.ledger import Ledger; print(Ledger().began)"
    before = time.time()
    began = float(subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True).stdout)
    assert before - 0.1 <= began <= time.time()


def test_an_error_ends_its_kind():
    ledger = Ledger()
    with pytest.raises(KeyError), ledger.spend("steps"):
        raise KeyError
    time.sleep(0.01)
    assert ledger.seconds()["other"] >= 0.01


def start(began, first, step, steps, **seconds):
    return Start(began, first, step, {"start": 4.0, "steps": steps, **seconds})


def test_steps_that_a_later_start_takes_again_are_repeated():
    """The second start goes back to step 60 of 100, the third to step 50: the first keeps 50, the second none of 30."""
    starts = [start(0, 0, 100, 200.0, checkpoints=6.0), start(220, 60, 90, 60.0), start(300, 50, 120, 140.0)]
    seconds = goodput.totals(starts)
    assert seconds["repeated"] == pytest.approx(200 * 50 / 100 + 60)
    assert seconds["steps"] == pytest.approx(100 + 140)
    assert seconds["down"] == pytest.approx((220 - 210) + (300 - 284))
    assert sum(seconds.values()) == pytest.approx(300 + 144)
    assert list(seconds) == [kind for kind in goodput.KINDS if kind in seconds]
    assert goodput.words(starts) == (
        "goodput 54.1% of 0:07:24 since the first of 3 starts; repeated 36.0%, down 5.9%, start 2.7%, checkpoints 1.4%"
    )


def test_a_start_that_is_stopped_loses_nothing():
    seconds = goodput.totals([start(0, 0, 10, 20.0), start(30, 10, 12, 4.0)])
    assert "repeated" not in seconds
    assert seconds["down"] == 6


def test_the_starts_of_a_run_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(goodput, "SECONDS", 0.0)
    Goodput(tmp_path, Ledger(), 0).note(7)
    Goodput(tmp_path, Ledger(), 5).note(9)
    assert [(each.first, each.step) for each in goodput.read(tmp_path)] == [(0, 7), (5, 9)]


def test_a_damaged_or_missing_file_costs_no_step(tmp_path, caplog):
    (tmp_path / goodput.NAME).write_text('[{"began": 1}]')
    with pytest.raises(ValueError, match=r"goodput\.json: .*first"):
        goodput.read(tmp_path)
    record = Goodput(tmp_path / "gone", Ledger(), 0)
    record.note(2, at_once=True)
    assert caplog.text.count("goodput can't be written: No such file") == 1
    Goodput(tmp_path, Ledger(), 2)
    assert "the goodput of earlier starts is lost" in caplog.text
