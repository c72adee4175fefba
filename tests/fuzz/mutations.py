"""Ways of damaging bytes and JSON, all drawn from one random generator."""

import copy
import struct
from typing import Any

import numpy as np

_SIZES = [0, 1, 7, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1]
_VALUES = [
    *(None, True, False, 0, 1, -1, 5, 2**31, 2**32 + 5, 2**63, 10**30, 10**4000, 0.5, -0.0, 1e308),
    *(float("nan"), float("inf"), "", "0", "x" * 100_000, "a\nb", "\0", "\ud800", "\x1b[2J", "../precious"),
    *("/etc/passwd", "link/precious", "out", ".", "..", "pipe", "manifest.json", [], {}, [[]], [None], {"": 0}, "BOOL"),
]


def mutate(rng: np.random.Generator, content: bytes) -> bytes:
    """Returns the content with one kind of damage as a rule, with more now and then."""
    for _ in range(int(rng.geometric(0.6))):
        content = _KINDS[rng.integers(len(_KINDS))](rng, content)
    return content


def _place(rng: np.random.Generator, content: bytes) -> int:
    """Returns a place in the content, half of the time near its beginning, where headers are."""
    return int(rng.integers(min(64, len(content)) + 1 if rng.random() < 0.5 else len(content) + 1))


def _flip_bits(rng, content):
    changed = bytearray(content)
    for _ in range(int(rng.geometric(0.3)) if changed else 0):
        changed[rng.integers(len(changed))] ^= 1 << rng.integers(8)
    return bytes(changed)


def _truncate(rng, content):
    return content[: _place(rng, content)]


def _overwrite(rng, content):
    at, noise = _place(rng, content), rng.bytes(int(rng.integers(1, 9)))
    return content[:at] + noise + content[at + len(noise) :]


def _edit_length(rng, content):
    at, form = _place(rng, content), str(rng.choice(["<Q", "<I", ">I", "<H", "<B"]))
    number = struct.pack("<Q", _SIZES[rng.integers(len(_SIZES))])[: struct.calcsize(form)]
    return content[:at] + (number[::-1] if form[0] == ">" else number) + content[at + len(number) :]


def _splice(rng, content):
    begin, end = sorted((_place(rng, content), _place(rng, content)))
    at = _place(rng, content)
    return content[:at] + content[begin:end] + content[at + int(rng.integers(2)) * (end - begin) :]


def _delete(rng, content):
    begin = _place(rng, content)
    return content[:begin] + content[begin + int(rng.integers(1, 30)) :]


def _append(rng, content):
    return content + rng.bytes(int(rng.integers(1, 100)))


_KINDS = (_flip_bits, _truncate, _overwrite, _edit_length, _splice, _delete, _append)


def mutate_json(rng: np.random.Generator, value: Any, names: tuple[str, ...] = ()) -> Any:
    """Returns parsed JSON with a part removed, renamed, doubled, or replaced by an odd value; with more now and then.

    Args:
        rng: draws.
        value: is not changed itself.
        names: further odd values, such as file names that mean something to the reader.
    """
    value = copy.deepcopy(value)
    for _ in range(int(rng.geometric(0.7))):
        parts = list(_containers(value))
        if not parts:
            break
        part = parts[rng.integers(len(parts))]
        keys = list(part) if isinstance(part, dict) else range(len(part))
        key = keys[rng.integers(len(keys))]
        kind = rng.integers(10)
        if kind == 0:
            del part[key]
        elif kind == 1 and isinstance(part, dict):
            part[str(_odd(rng, names))] = part.pop(key)
        elif kind == 2 and isinstance(part, list):
            part.append(copy.deepcopy(part[key]))
        elif kind == 3 and isinstance(part[key], int):
            part[key] += int(rng.choice([-1, 1, 2**32]))
        else:
            part[key] = _odd(rng, names)
    return value


def _odd(rng, names):
    allowed = [*_VALUES, *names]
    return copy.deepcopy(allowed[rng.integers(len(allowed))])


def _containers(value):
    """Yields every object and list that is not empty."""
    if isinstance(value, dict | list) and value:
        yield value
        for part in value.values() if isinstance(value, dict) else value:
            yield from _containers(part)
