"""Huge pages: what a program asks the C library for, and that it is not asked twice."""

import subprocess
import sys

import pytest

from tftrain.host import huge_pages

PROGRAM = """
import os, sys
from tftrain.host import huge_pages
print("started", flush=True)
huge_pages.restart()
print(os.environ["GLIBC_TUNABLES"], sys.argv[1])
"""


def test_the_tunable_joins_others_and_keeps_what_was_decided():
    assert huge_pages.with_huge_pages({"A": "b"}) == {"A": "b", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    others = {"GLIBC_TUNABLES": "glibc.malloc.check=1"}
    assert huge_pages.with_huge_pages(others)["GLIBC_TUNABLES"] == "glibc.malloc.check=1:glibc.malloc.hugetlb=1"
    decided = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}
    assert huge_pages.with_huge_pages(decided) == decided


@pytest.mark.parametrize(
    ("setting", "offered"), [("always [madvise] never", True), ("always madvise [never]", False), (None, False)]
)
def test_only_a_kernel_that_waits_to_be_asked_is_asked(tmp_path, setting, offered):
    path = tmp_path / "enabled"
    if setting:
        path.write_text(setting)
    assert huge_pages.offered(path) is offered


@pytest.mark.skipif(not huge_pages.offered(), reason="this kernel gives no huge pages to those that ask")
def test_a_program_starts_again_once_with_its_arguments(tmp_path, monkeypatch):
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    output = subprocess.run([sys.executable, program, "given"], capture_output=True, text=True, check=True).stdout
    assert output.split("\n")[:3] == ["started", "started", "glibc.malloc.hugetlb=1 given"]
