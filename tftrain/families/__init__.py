"""The model families by name, one file a family."""

from typing import Any

from tftrain.families import bert, distilbert, gpt, llama, modernbert, roberta
from tftrain.families.family import Family

FAMILIES = {each.FAMILY.name: each.FAMILY for each in (bert, gpt, llama, modernbert, roberta, distilbert)}
DEFAULT = bert.FAMILY
# The families whose table of positions begins with rows for no position.
COUNTING = tuple(name for name, family in FAMILIES.items() if family.first_position)
# The types of transformers that only their name tells from others of their family, by family.
ALIKE = {
    name: types
    for name, family in FAMILIES.items()
    if len(types := tuple(each.name for each in family.types if each.flags == family.types[-1].flags)) > 1
}


def described() -> str:
    """Returns what the families are, for help."""
    return "; ".join(f"{name}: {family.description}" for name, family in FAMILIES.items())


def listed(objective: str) -> str:
    """Returns the names of the families that are pre-trained on an objective, for a message."""
    return " or ".join(name for name, family in FAMILIES.items() if family.objective == objective)


def taking(flag: str, value: Any, objective: str) -> str:
    """Returns the names of the families that take a value of a flag, if there are some those of an objective."""
    families = [name for name, family in FAMILIES.items() if value in family.values.get(flag, (value,))]
    same = [name for name in families if FAMILIES[name].objective == objective]
    return " or ".join(same or families)


__all__ = ["ALIKE", "COUNTING", "DEFAULT", "FAMILIES", "Family", "described", "listed", "taking"]
