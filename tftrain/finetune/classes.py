"""Names of classes: how they are read, which of a model's classes a name means, and their order."""

import functools
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tftrain.files.errors import DataError
from tftrain.files.strict_json import shown
from tftrain.host.text import listed

_PLACEHOLDER = "LABEL_"  # transformers names the classes LABEL_0, LABEL_1 and so on where nobody else does
_INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff"
_MOST_DIGITS = 4300  # Python's int() reads no longer texts.


def class_name(value: Any, what: str) -> str:
    """Returns the class that a field means: a text in Unicode's form NFC without surrounding spaces, or a plain value.

    Raises a DataError if the field has no class; the message begins with `what`.
    """
    if isinstance(value, bool):
        return str(value).lower()
    name = cleaned(str(value)) if isinstance(value, str | int | float) else ""
    if not name:
        raise DataError(f"{what} is {shown(value)}; expected a label")
    return name


@functools.lru_cache(maxsize=1 << 14)
def cleaned(name: str) -> str:
    """Returns a name in the form NFC, without spaces and invisible characters at its ends."""
    while (shorter := name.strip().strip(_INVISIBLE)) != name:
        name = shorter
    return unicodedata.normalize("NFC", name)


def meant(names: Iterable[str], labels: Sequence[str]) -> dict[str, str]:
    """Returns the model's class of each name that means one.

    That is the class with this name; else the only one that is equal but for case, form and surrounding spaces; else,
    where the model's classes or the names are placeholders, such as LABEL_0, or 0, the one with this number.
    """
    names, found = list(dict.fromkeys(names)), {}
    forms: list[Callable[[str], Any]] = [str, cleaned, lambda name: cleaned(name).casefold()]
    if are_placeholders(labels) or any(name.startswith(_PLACEHOLDER) for name in names):
        forms.append(_number)
    for form in forms:
        classes = defaultdict(list)
        for label in dict.fromkeys(labels):
            classes[form(label)].append(label)
        for name in names:
            if name not in found and form(name) is not None and len(classes[form(name)]) == 1:
                found[name] = classes[form(name)][0]
    return found


def head_rows(names: Sequence[str], labels: Sequence[str]) -> list[int] | None:
    """Returns for each of `names` the number of the class of a trained head that it means; None: of other classes.

    New names for as many placeholders keep their order.
    """
    found = meant(names, labels)
    if len(names) == len(labels) == len(set(found.values())):
        return [labels.index(found[name]) for name in names]
    if len(names) == len(labels) and not found and are_placeholders(labels):
        return list(range(len(labels)))
    return None


def are_placeholders(labels: Sequence[str]) -> bool:
    """Whether classes have no names: LABEL_0, LABEL_1 and so on."""
    return bool(labels) and list(labels) == [f"{_PLACEHOLDER}{number}" for number in range(len(labels))]


def _number(name: str) -> int | None:
    digits = name.removeprefix(_PLACEHOLDER).removesuffix(".0")
    return int(digits) if _is_whole(digits) and not digits.startswith("-") else None


def _is_whole(name: str) -> bool:
    return name.isascii() and name.removeprefix("-").isdecimal() and len(name) <= _MOST_DIGITS


def ordered(labels: Iterable[str]) -> tuple[str, ...]:
    """Returns classes in their order: numbers by their value, other texts by their characters."""
    labels = sorted(labels)
    return tuple(sorted(labels, key=lambda label: int(label)) if all(map(_is_whole, labels)) else labels)


def doubts(labels: Sequence[str], examples: int, task: str) -> Iterator[str]:
    """Yields what is odd about the classes of a training file with this number of examples, a line each."""
    numbers = [float(label) for label in labels if re.fullmatch(r"-?[0-9]+([.][0-9]+)?", label)]
    if len(set(numbers)) < len(numbers):
        yield f"some of the classes {listed(labels, 10)} are the same number; write it in one way"
    elif len(numbers) == len(labels) and any(number % 1 for number in numbers):
        yield f"the classes are numbers, such as {labels[0]}; --task=regression predicts a number"
    elif len(labels) > 2 and 2 * len(labels) > examples and task == "classification":
        yield f"{len(labels)} classes for {examples} examples; --label_column names the column of the class"
    if task == "multi_label" and (joined := [label for label in labels if re.search("[,;\uff0c\u3001]", label)]):
        yield f"the class {joined[0]!r} may be several; --label_separator says what separates classes"
