"""Lists of hosts and their slots, from `--hosts` or `--hostfile`, as the launchers of the field write them.

A line of a file, or a part between commas, is one of: `node1`, `node1:16`, `node1 16`, `node1 slots=16 max_slots=32`;
with a range, `node[01-16]-ib`, and with a user of ssh, `alice@node1`. A host without a number has one slot, and one
that occurs again has the sum, as in the files of Open MPI, MPICH, DeepSpeed, PBS and Slurm.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from tftrain.config.fields import ConfigError, Problem
from tftrain.files import lines

MAX_BYTES = 1 << 20
MOST_HOSTS = 1 << 16
_NAME = re.compile(r"(?:([\w.-]+)@)?(\w[\w.-]*(?:\[[\d,-]+\][\w.-]*)?)(?::(\d{1,6}))?")
_ENTRY = re.compile(r"(?:[^,\[]|\[[^\]\[]*\]|\[)+")  # Commas inside of brackets belong to a range.
_SLOTS = ("slots", "cpu", "cpus", "procs")
_IGNORED = ("max_slots", "max-slots")
_ELSEWHERE = {"port": "--ssh_port, or Port in ~/.ssh/config", "user": "alice@node1, or User in ~/.ssh/config"}


class Listed(NamedTuple):
    """A host of a list."""

    name: str
    slots: int
    user: str | None = None  # for ssh, if one is given


def of_flag(text: str) -> list[Listed]:
    """Returns the hosts of `--hosts`; raises a ConfigError that names what is wrong."""
    return _of_entries("hosts", text, _ENTRY.findall(text), "node1:16,node2:16")


def of_file(path: str) -> list[Listed]:
    """Returns the hosts of `--hostfile`; raises a ConfigError that names what is wrong."""
    try:
        entries = lines.of_file(path, "expected a text file", MAX_BYTES)
    except ValueError as error:
        raise ConfigError([Problem("hostfile", path, str(error))]) from error
    return _of_entries("hostfile", path, entries, "lines as `node1 slots=16`")


def _of_entries(flag: str, value: str, entries: Iterable[str], expected: str) -> list[Listed]:
    found: dict[str, Listed] = {}
    for entry in filter(None, map(str.strip, entries)):
        try:
            listed = _read(entry)
        except ValueError as error:
            words = str(error) if repr(entry) in str(error) else f"{entry!r}: {error}"
            raise ConfigError([Problem(flag, value, f"{words}; expected {expected}")]) from None
        for each in listed:
            before = found.get(each.name)
            found[each.name] = each._replace(slots=each.slots + (before.slots if before else 0))
        if len(found) > MOST_HOSTS:
            raise ConfigError([Problem(flag, value, f"more than {MOST_HOSTS} hosts")])
    if not found:
        raise ConfigError([Problem(flag, value, f"it names no host; expected {expected}")])
    return list(found.values())


def _read(entry: str) -> list[Listed]:
    """Returns the hosts of one entry; raises a ValueError that names the word to change."""
    first, *words = "=".join(part.strip() for part in entry.split("=")).split()
    if not (match := _NAME.fullmatch(first)):
        raise ValueError(f"{first!r} is not a host with its slots")
    user, names, slots = match.groups()
    for word in words:
        key, _, number = word.rpartition("=")
        if key in _ELSEWHERE:
            raise ValueError(f"{word!r} can't be given here; use {_ELSEWHERE[key]}")
        if key in _IGNORED:
            continue
        if (key and key not in _SLOTS) or not re.fullmatch(r"\d{1,6}", number) or slots:
            raise ValueError(f"{word!r} is unknown here; remove it")
        slots = number
    if slots and not int(slots):
        raise ValueError("it has no slots; remove the host")
    return [Listed(name, int(slots or 1), user) for name in _expand(names)]


def _expand(names: str) -> list[str]:
    """Returns the names that a range stands for: `node[08-10,12]` is node08, node09, node10 and node12."""
    before, bracket, rest = names.partition("[")
    if not bracket:
        return [names]
    ranges, _, after = rest.partition("]")
    found = []
    for each in ranges.split(","):
        first, _, last = each.partition("-")
        last = last or first
        if not (first.isdigit() and last.isdigit()) or not 0 <= int(last) - int(first) < MOST_HOSTS:
            raise ValueError(f"{each!r} is not a range of numbers")
        found += [f"{before}{number:0{len(first)}}{after}" for number in range(int(first), int(last) + 1)]
    return found
