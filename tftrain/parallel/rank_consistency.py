"""Agreement: ranks that must do the same compare what they are about to do, before they do it.

Another flagfile or another environment on one of many hosts ends in a hang, or in numbers that mean nothing. So every
rank sends digests first. The ranks send the texts only if digests differ, and the error names the ranks that differ and
the values.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence

import numpy as np

from tftrain.config import TrainConfig
from tftrain.fields import sections
from tftrain.parallel import collectives
from tftrain.parallel.mesh import Mesh, MeshError

Facts = Mapping[str, str]

# A host may have its files elsewhere: whether a path is given must be the same, and what lies there, but not its name.
PATHS = ("data_dir", "train_files", "eval_files", "output_dir", "resume")
NO_PATHS = ("auto", "none")
# How a host works with its processors changes no result and no collective.
OF_THE_HOST = ("cpu_threads", "data_readers", "huge_pages", "machine_file")
MAX_SHOWN = 8


def settings(config: TrainConfig) -> Facts:
    """Returns the flags that must be the same on all ranks, `--name` to value, of a resolved configuration."""
    facts = {}
    for section in sections(config):
        for field in dataclasses.fields(section):
            value = getattr(section, field.name)
            if field.name in PATHS and value not in NO_PATHS:
                value = value and "a path"
            if field.name not in OF_THE_HOST:
                facts[f"--{field.name}"] = str(value)
    return facts


def require_same(mesh: Mesh, facts: Mapping[str, Facts], name: str, most: int = MAX_SHOWN) -> None:
    """Does nothing if ranks that must agree do; every rank must call it, eagerly.

    Args:
        mesh: the ranks.
        facts: this rank's, by the kind of group whose ranks must agree on them: world, data or tensor. Every rank has
            the same kinds.
        name: of the collectives; unique.
        most: facts of a rank that the message names at most.

    Raises:
        MeshError: on every rank alike, if any two disagree. It names the ranks, the facts and the values.
    """
    if mesh.size == 1:
        return
    texts = [json.dumps(facts[kind]).encode() for kind in facts]
    digests = b"".join(hashlib.sha256(text).digest() for text in texts)
    every = collectives.gather_bytes(mesh.world, digests, f"agreement.{name}.digests")
    rows = {rank: np.frombuffer(row, np.uint8).reshape(len(facts), -1) for rank, row in enumerate(every)}
    groups = mesh.groups
    if all(
        (rows[rank][index] == rows[ranks[0]][index]).all()
        for index, kind in enumerate(facts)
        for ranks in groups[kind]
        for rank in ranks
    ):
        return
    text = json.dumps({kind: dict(facts[kind]) for kind in facts})
    told = [json.loads(row) for row in collectives.gather_texts(mesh.world, text, f"agreement.{name}.texts")]
    told_apart = "; ".join(differences(told, groups, most))
    raise MeshError(f"the ranks disagree: {told_apart}; start all with the same flags, environment, packages and data")


def differences(
    told: Sequence[Mapping[str, Facts]], groups: Mapping[str, list[tuple[int, ...]]], most: int
) -> list[str]:
    """Returns one clause for every way in which ranks differ from their group's first.

    Args:
        told: what each rank said, by kind of group.
        groups: by kind.
        most: facts of a clause at most.
    """
    clauses: dict[str, list[int]] = {}
    for kind in told[0]:
        for first, *others in groups[kind]:
            expected = told[first][kind]
            for rank in others:
                found = told[rank][kind]
                names = [name for name in {**expected, **found} if expected.get(name) != found.get(name)]
                shown = [
                    f"{name} is {found.get(name, 'missing')}, but {expected.get(name, 'missing')} on rank {first}"
                    for name in names[:most]
                ]
                if shown:
                    more = [f"and {len(names) - most} more"] if most < len(names) and most > 1 else []
                    clauses.setdefault(", ".join(shown + more), []).append(rank)
    return [f"on {'ranks' if len(ranks) > 1 else 'rank'} {_listed(ranks)} {words}" for words, ranks in clauses.items()]


def _listed(ranks):
    more = f" and {len(ranks) - MAX_SHOWN} more" if len(ranks) > MAX_SHOWN else ""
    return ", ".join(map(str, ranks[:MAX_SHOWN])) + more
