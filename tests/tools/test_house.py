"""The structure of tftrain/ stays readable: each figure has a limit and its reason."""

from pathlib import Path

import pytest

from tftrain.families import FAMILIES
from tools.house import House

ROOT = Path(__file__).parents[2]
LIMITS = {
    "package_lines": (53_928, "a small team must be able to read all of it"),
    "test_lines": (47_038, "tests are read too; a table of cases replaces similar functions"),
    "long_files": (0, "a file holds one idea and is read in a sitting"),
    "long_functions": (0, "a function fits on a screen"),
    "wide_functions": (0, "more arguments are an object that has no name yet"),
    "untyped_parameters": (0, "a type says what a name can't"),
    "config_signatures": (28, "who takes the whole configuration doesn't say what it needs"),
    "config_importers": (40, "a section is imported from its own file"),
    "loop_imports": (20, "what happens around a step is an observer, not a line of the loop"),
    "loop_longest": (40, "the loop is read beside the step"),
    "family_files": (12, "one more family is one more file: elsewhere code asks a property"),
    "shared_class_names": (10, "one word for one thing"),
}
CLOSURES = {  # files beside those of the families, of which each has one; lines of all
    "tftrain.model.decoder": (46, 5_650, "a model knows neither files nor formats"),
    "tftrain.train.step": (116, 13_350, "a step is followed without the rooms of checkpoints, data and reports"),
}


@pytest.fixture(scope="module")
def house():
    return House(ROOT)


@pytest.mark.parametrize("name", LIMITS)
def test_a_figure_is_within_its_limit(house, name):
    limit, reason = LIMITS[name]
    value = getattr(house, name)()
    assert (value if isinstance(value, int) else len(value)) <= limit, f"{reason}: {value}"


@pytest.mark.parametrize("name", CLOSURES)
def test_what_a_module_imports_in_the_end_is_within_its_limit(house, name):
    most_files, most_lines, reason = CLOSURES[name]
    files, lines = house.closure(name)
    assert files - len(FAMILIES) <= most_files, reason
    assert lines <= most_lines, reason
