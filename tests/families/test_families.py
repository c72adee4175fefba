"""A family is one file of tftrain/families; elsewhere code asks a property of it."""

import ast
from pathlib import Path

import tftrain
from tftrain.families import FAMILIES

ROOT = Path(tftrain.__file__).parent
NAMES = {name for family in FAMILIES.values() for name in (family.name, *(each.name for each in family.types))}
# Files with such a word that is no property of a model.
OTHERS = {
    "bench/peers/task.py": "the models that other trainers are compared with",
    "finetune/messages.py": "a role of a conversation",
    "bench/published/formats.py": "the models of published tables",
}


def names_in(path):
    """The names of families among the strings of a file, without docstrings."""
    strings = (node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
    return NAMES.intersection(each for each in strings if isinstance(each, str))


def test_no_file_outside_of_families_names_one():
    paths = [path for path in ROOT.rglob("*.py") if ROOT / "families" not in path.parents]
    named = {str(path.relative_to(ROOT)) for path in paths if names_in(path)}
    assert named == OTHERS.keys()


def test_each_family_has_a_file_of_its_own():
    files = [path for path in (ROOT / "families").glob("*.py") if names_in(path)]
    assert {path.stem for path in files} == FAMILIES.keys()
