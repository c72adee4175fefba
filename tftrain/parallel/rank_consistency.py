"""Rank consistency: before ranks act together, they compare their flags, environments and collectives.

If one host has another flagfile or environment, the run hangs or computes wrong numbers. So every rank sends digests
first. The ranks send the full texts only if the digests differ. The error names the ranks that differ and the values.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tftrain.config.fields import on_resume
from tftrain.host.text import listed
from tftrain.parallel import collectives
from tftrain.parallel.mesh import AgreedMeshError, Mesh

Facts = Mapping[str, str]

# Paths may differ between hosts. All ranks must agree on whether a path is given and on the content there.
NO_PATHS = ("auto", "none")
MAX_SHOWN = 8


def settings(sections: Iterable[Any]) -> Facts:
    """Returns the flags of a resolved configuration's sections that must be equal on all ranks: `--name` to value."""
    facts = {}
    for section in sections:
        kinds = on_resume(section)
        for field in dataclasses.fields(section):
            value = getattr(section, field.name)
            if (field.metadata["path"] or field.name == "mix") and value not in NO_PATHS:
                value = value and "a path"
            if kinds[field.name] != "host":
                facts[f"--{field.name}"] = str(value)
    return facts


def require_same(mesh: Mesh, facts: Mapping[str, Facts], name: str, host: str = "", most: int = MAX_SHOWN) -> None:
    """Raises an error unless the facts agree; every rank must call it, eagerly.

    Args:
        facts: this rank's facts, by the kind of group whose ranks must agree on them: world, data or tensor. The kinds
            are the same on every rank.
        name: of the collectives; unique.
        host: the name of this rank's host; the message names hosts if they are not all the same.
        most: the most facts of a rank that the message names.

    Raises:
        AgreedMeshError: some ranks disagree; on every rank. The message names the ranks, the facts and the values.
    """
    if mesh.size == 1:
        return
    digests = {kind: hashlib.sha256(json.dumps(facts[kind]).encode()).hexdigest() for kind in facts}
    every, groups = collectives.gather_values(mesh.world, digests, f"consistency.{name}.digests"), mesh.groups
    if all(len({every[rank][kind] for rank in ranks}) == 1 for kind in facts for ranks in groups[kind]):
        return
    own = host, {kind: dict(facts[kind]) for kind in facts}
    hosts, messages = zip(*collectives.gather_values(mesh.world, own, f"consistency.{name}.texts"), strict=True)
    words = "; ".join(differences(messages, groups, most, hosts if len(set(hosts)) > 1 else None))
    raise AgreedMeshError(f"the ranks disagree: {words}; start all with the same flags, environment, packages and data")


def differences(
    messages: Sequence[Mapping[str, Facts]],
    groups: Mapping[str, list[tuple[int, ...]]],
    most: int,
    hosts: Sequence[str] | None = None,
) -> list[str]:
    """Returns one clause for each way in which ranks differ from the first rank of their group.

    Args:
        messages: the facts of each rank, by kind of group.
        hosts: the name of each rank's host; None if they share one.
    """
    clauses: dict[str, list[int]] = {}
    for kind in messages[0]:
        for first, *others in groups[kind]:
            expected, where = messages[first][kind], _named([first], hosts)
            for rank in others:
                actual = messages[rank][kind]
                names = [name for name in {**expected, **actual} if expected.get(name) != actual.get(name)]
                shown = [
                    f"{name} is {actual.get(name, 'missing')}, but {expected.get(name, 'missing')} on {where}"
                    for name in names[:most]
                ]
                if shown:
                    more = [f"and {len(names) - most} more"] if most < len(names) and most > 1 else []
                    clauses.setdefault(", ".join(shown + more), []).append(rank)
    return [f"on {_named(ranks, hosts)} {words}" for words, ranks in clauses.items()]


def _named(ranks: Sequence[int], hosts: Sequence[str] | None) -> str:
    words = f"{'ranks' if len(ranks) > 1 else 'rank'} {listed(ranks, MAX_SHOWN)}"
    if hosts is None:
        return words
    return f"{words} ({listed(list(dict.fromkeys(hosts[rank] for rank in ranks)), MAX_SHOWN)})"
