"""A cluster in a JSON file: the measured figures of this machine, or a user's own machine for `--cluster=FILE.json`.

    {"like": "a100_80gb", "memory_gb": 47.5, "memory_gbs": 864, "link_gbs": 32, "network_gbs": 12.5}

The fields are those of `Cluster`; `like` names the listed cluster from which the missing fields come. Files of earlier
versions state in `unit` how many bytes their GB of memory have.
"""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from tftrain.config.fields import ConfigError, Problem
from tftrain.host.text import reason
from tftrain.host.units import GB, GB_PER_GIB, GIB
from tftrain.plan.cluster import CARDS, CLUSTERS, Cluster

SUFFIX = ".json"
POSITIVE = ("memory_gb", "peak_fp32", "peak_16bit", "memory_gbs", "per_node", "network_gbs", "aligned")
COUNTS = ("multiprocessors", "per_node", "aligned")


def read(path: Path, flag: str, wanted: str) -> Cluster:
    """Reads a cluster from a file that a flag names.

    Raises a ConfigError if the file can't be read, or does not describe a cluster. Its message says that `wanted` was
    expected.
    """
    try:
        return _cluster(json.loads(path.read_text()), path.stem)
    except (OSError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ConfigError([Problem(flag, str(path), f"expected {wanted}: {reason(error)}")]) from error


def _cluster(content: Any, name: str) -> Cluster:
    """Returns the cluster with a file's fields; `name` is its name if the fields have none."""
    if not isinstance(content, dict):
        raise TypeError("its value is not an object with fields")
    fields = {"name": name} | content
    like = fields.pop("like", None)
    if like is not None and like not in list(CLUSTERS):  # `in CLUSTERS` fails on a list, which has no hash
        raise ValueError(f"like={like!r} is none of {', '.join(CLUSTERS)}")
    unit = fields.pop("unit", GB)
    known = [field.name for field in dataclasses.fields(Cluster)]
    if unknown := [field for field in fields if field not in known]:
        raise ValueError(f"{', '.join(map(repr, unknown))} is none of like, {', '.join(known)}")
    fields = (dataclasses.asdict(CLUSTERS[like]) if like else {}) | fields
    needed = [field.name for field in dataclasses.fields(Cluster) if field.default is dataclasses.MISSING]
    if missing := [field for field in needed if field not in fields]:
        raise ValueError(f"without `like` it needs {', '.join(missing)} too")
    for field in ("name", "card"):
        if not isinstance(fields.get(field, ""), str):
            raise TypeError(f"{field}={fields[field]!r} is not a name")
    if fields.get("card", "") not in ("", *CARDS):
        raise ValueError(f"card={fields['card']!r} is none of {', '.join(CARDS)}")
    for field, value in fields.items():
        if field not in ("name", "card", "curve"):
            _check(field, value)
    if unit not in (GB, GIB):
        raise ValueError(f"unit={unit!r} is neither {GB} nor {GIB}; without it, memory_gb is in 1e9 bytes")
    if unit == GIB and "memory_gb" in content:
        fields["memory_gb"] *= GB_PER_GIB
    if fields["per_node"] > 1 and not fields["link_gbs"]:
        raise ValueError("link_gbs is 0, though a node has several devices")
    return Cluster(**fields | {"curve": tuple(_point(each) for each in fields.get("curve", ()))})


def _check(field: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{field}={value!r} is not a number of at least 0")
    if field in POSITIVE and not value:
        raise ValueError(f"{field} is 0")
    if field in COUNTS and not isinstance(value, int):
        raise ValueError(f"{field}={value!r} is not a whole number")


def _point(pair: Any) -> tuple[float, float]:
    size, rate = map(float, pair)
    if not (0 < size < math.inf and 0 < rate < math.inf):
        raise ValueError(f"curve has {pair!r}; expected a size and a rate above 0")
    return size, rate
