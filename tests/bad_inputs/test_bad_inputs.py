"""Each row of table.txt: bad input ends with its exit code and one line that names it and says what to do.

A row has four columns: the program, its arguments, the exit code and the line on standard error. It pins the flag, its
value and the decisive words: a line that ends with " ..." is the beginning of a longer one. Words in braces are files
and folders that `places.make` writes.
"""

import shutil
from pathlib import Path

import pytest

from tests.bad_inputs import places
from tests.kit import programs
from tftrain.host import hardware

TABLE = Path(__file__).with_name("table.txt")
ROWS = [tuple(cell.strip() for cell in line.split(" | ")) for line in TABLE.read_text().splitlines() if " | " in line]


@pytest.fixture(scope="module")
def made(prepared, prepared_static, tmp_path_factory):
    return places.make(tmp_path_factory.mktemp("bad_inputs"), prepared, prepared_static)


def case(row):
    program, args, *_ = row
    return pytest.param(*row, id=f"{program} {args}", marks=[pytest.mark.slow] if program == "started" else [])


@pytest.mark.parametrize(("program", "args", "code", "line"), [case(row) for row in ROWS])
def test_bad_input_ends_with_one_line_that_names_it(program, args, code, line, made, monkeypatch):
    monkeypatch.setattr(hardware, "has_driver", lambda: False)
    monkeypatch.setattr(hardware, "host_memory_gb", lambda: 24.0)
    found = programs.outcome(program, args, int(code), made)
    whole = line.removesuffix(" ...")
    # Before a failure there may be warnings, such as one for each checkpoint that can't be used.
    lines = found[1] if code == "2" else found[1][-1:]
    shown = [each[: len(whole)] if whole != line else each for each in lines]
    assert (found[0], shown) == (int(code), [whole])
    left = list(Path(made["out"]).glob("*"))
    shutil.rmtree(made["out"], ignore_errors=True)
    assert program == "started" or not left, "a program that is refused leaves no file"


def test_the_table_is_long_and_repeats_nothing():
    assert len(ROWS) >= 200
    assert len({row[:2] for row in ROWS}) == len(ROWS)
