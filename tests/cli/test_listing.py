"""`python -m tftrain` lists the programs."""

from pathlib import Path

import tftrain
from tftrain.__main__ import PROGRAMS, listing


def test_every_program_has_a_line_that_says_what_it_does():
    root = Path(tftrain.__file__).parent
    packages = {path.parent.name for path in root.glob("*/__main__.py")}
    modules = {path.stem for path in root.glob("*.py") if '__name__ == "__main__"' in path.read_text()}
    assert packages | modules - {"__main__", "rank_server"} == set(PROGRAMS)
    lines = listing().splitlines()[2:]
    assert [line.split()[2] for line in lines] == [f"tftrain.{name}" for name in PROGRAMS]
    assert all(len(line.split()) > 5 and "`" not in line for line in lines)
