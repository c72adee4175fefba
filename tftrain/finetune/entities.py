"""Which words are an entity: the schemes of tags that files have, as tags with B-, I-, E- and S-, which seqeval reads.

BIO has B- for the first word of an entity and I- for the others. BIOES has E- for the last word and S- for an only one,
BILOU L- and U-; BMES has M- for a word inside. IO has classes alone: neighbours of one class are an entity.
"""

import itertools
import re
from collections.abc import Sequence

_OUTSIDE = {"O", "o"}
_UNSAID = {"_", "X", "PAD", "[CLS]", "[SEP]", "[PAD]", "<pad>"}  # no entities beside classes with a prefix
_PREFIXED = re.compile(r"([BIESLUMWbieslumw])[-_](.+)")
_SUFFIXED = re.compile(r"(.+)[-_]([BIESLUMW])")
_SAME = {"L": "E", "U": "S", "M": "I", "W": "S"}


class Scheme:
    """The scheme of the classes of a model.

    A class whose prefix begins no entity, such as person-other or E-mail, is one without prefix.

    Attributes:
        name: of the scheme, in a line of the log.
        has_entities: whether there are entities; parts of speech, where every word has its class, are none.
    """

    def __init__(self, labels: Sequence[str]):
        inside = [label for label in labels if label not in _OUTSIDE]
        parsed = {label: _parsed(label) for label in inside}
        if inside and all(re.fullmatch("[BIESLUMW]", label) for label in inside):  # Entities have no types.
            parsed = {label: (label, "_") for label in inside}
        begun = {kind for prefix, kind in filter(None, parsed.values()) if prefix in "BISUW"}
        self._parts = {label: part for label, part in parsed.items() if part and part[1] in begun}
        self._outside = _OUTSIDE | _UNSAID if self._parts else _OUTSIDE
        alone = [label for label in inside if label not in self._parts and label not in self._outside]
        self.has_entities = bool(self._parts) or 0 < len(inside) < len(labels)
        letters = {prefix for prefix, _ in self._parts.values()}
        names = ("BILOU", letters & set("LU")), ("BMES", letters & set("MW")), ("BIOES", letters & set("ES"))
        self.name = next((name for name, found in names if found), "BIO")
        if not self.has_entities:
            self.name = "no entities: f1, precision and recall are means over the classes"
        elif alone:
            listed = ", ".join(alone[:5])
            mixed = f"{self.name}, and IO for the classes without prefix: " if self._parts else "IO: "
            self.name = f"{mixed}neighbours of one class are an entity ({listed})"

    def tags(self, classes: Sequence[str]) -> list[str]:
        """Returns the tags of a sentence's words, as seqeval reads them; the classes themselves without entities."""
        if not self.has_entities:
            return list(classes)
        return [self._tag(each, before) for before, each in itertools.pairwise(["O", *classes])]

    def _tag(self, name: str, before: str) -> str:
        if name in self._outside:
            return "O"
        if name in self._parts:
            prefix, kind = self._parts[name]
            return f"{_SAME.get(prefix, prefix)}-{kind}"
        return f"{'I' if name == before else 'B'}-{name}"


def _parsed(label: str) -> tuple[str, str] | None:
    """Returns prefix and type of a class such as B-PER or PER-B."""
    if match := _PREFIXED.fullmatch(label):
        return match[1].upper(), match[2]
    match = _SUFFIXED.fullmatch(label)
    return (match[2], match[1]) if match else None
