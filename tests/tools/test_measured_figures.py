"""Figures of pages are what the commands print now; an hour, so it is in a file of its own."""

import sys

import pytest

from tools import figures


# `test_planned_figures_are_those_of_the_planner` in test_figures.py is the shorter one.
@pytest.mark.nightly
@pytest.mark.timeout(3 * 3600)
def test_measured_figures_are_those_of_the_commands(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["", "--check", f"--from={tmp_path}"])
    assert figures.main() == 0
