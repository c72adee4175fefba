"""The map of a Precompiled normalizer: sentencepiece's characters and what becomes of them, as bytes.

Its format is that of sentencepiece's normalizer.cc: the size of a trie of darts-clone (github.com/s-yata/darts-clone),
its units of 32 bits, and the strings, each of which ends with a zero byte; a leaf is the place of a string.
"""

import numpy as np

_LEAF, _LABEL, _VALUE = 1 << 8, (1 << 31) | 0xFF, (1 << 31) - 1


def parts(content: bytes) -> tuple[np.ndarray, bytes]:
    """Returns the units of the trie, int64, and the strings; a ValueError if a text could lead out of them."""
    size = int.from_bytes(content[:4], "little")
    if len(content) < 8 or not size or size % 4 or size > len(content) - 4:
        raise ValueError(f"a map of {len(content)} bytes whose trie has {size}")
    units, strings = np.frombuffer(content, "<u4", size // 4, 4).astype(np.int64), content[4 + size :]
    strings.decode()  # The library aborts if they are not UTF-8.
    if not strings.endswith(b"\0"):
        raise ValueError("its last string has no end")
    inner = units >> 31 == 0
    inner[0] = True
    bases = (np.arange(len(units)) ^ _offsets(units))[inner]
    leaves = bases[(units[inner] & _LEAF) > 0]
    if (bases | 0xFF).max(initial=0) >= len(units) or (units[leaves] & _VALUE).max(initial=0) >= len(strings):
        raise ValueError("its trie leads out of its units or strings")
    return units, strings


def entries(content: bytes, longest: int) -> dict[str, str]:
    """Returns what the map replaces by what, for keys of at most `longest` bytes."""
    units, strings = parts(content)
    labels, found = np.arange(1, 256), {}
    keys, bases = [b""], np.array([_offsets(units[:1])[0]])
    for _ in range(longest):
        children = bases[:, np.newaxis] ^ labels
        rows, columns = np.nonzero(units[children] & _LABEL == labels)
        nodes = children[rows, columns]
        keys = [keys[row] + bytes([labels[column]]) for row, column in zip(rows, columns, strict=True)]
        bases = nodes ^ _offsets(units[nodes])
        for index in np.flatnonzero(units[nodes] & _LEAF):
            begin = int(units[bases[index]] & _VALUE)
            found[keys[index]] = strings[begin : strings.find(b"\0", begin)]
    texts = ((key, key.decode("utf-8", "ignore"), value.decode("utf-8", "replace")) for key, value in found.items())
    # A key that ends inside a character has no text.
    return {text: value for key, text, value in texts if text.encode() == key}


def _offsets(units: np.ndarray) -> np.ndarray:
    return (units >> 10) << ((units & (1 << 9)) >> 6)
