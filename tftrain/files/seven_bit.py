"""Text that looks like UTF-8 and is in another encoding: of seven bits, or UTF-16 without a byte order mark."""

import re

# Escapes of ISO 2022 that choose a set of characters; those of terminals are others.
_ISO_2022 = re.compile(r"\x1b\$(?:[@AB]|\)([ACG])|\([A-Z])|\x1b\([BIJ]")
_OTHERS = {"HZ": re.compile(r"~\{(?:[!-w][!-~])+~\}"), "UTF-7": re.compile(r"\+[A-Za-z0-9+/]{3,}")}
_MANY_NULS, _FOREIGN_SHARE = 1 / 8, 1 / 10
_BEGINNING = 1 << 16


def encoding(text: str) -> str | None:
    """Returns which encoding a text is in that was decoded as UTF-8, and what to do; None if it is UTF-8."""
    found = None
    if "\0" in text and text.count("\0") > _MANY_NULS * len(text):
        found = "UTF-16LE" if text[1::2].count("\0") > text[::2].count("\0") else "UTF-16BE"
    elif "\x1b" in text and (match := _ISO_2022.search(text)):
        found = {"C": "ISO-2022-KR", "A": "ISO-2022-CN", "G": "ISO-2022-CN"}.get(match[1], "ISO-2022-JP")
    elif text.isascii():
        beginning = text if len(text) <= _BEGINNING else text[:_BEGINNING].rpartition("\n")[0]
        found = next((name for name, mark in _OTHERS.items() if mark.search(beginning) and _is(beginning, name)), None)
    tool = "Python's codec hz" if found == "HZ" else f"iconv -f {found} -t UTF-8"  # GNU's iconv lacks HZ.
    return found and f"{found}, not UTF-8; convert it with {tool}"


def _is(text: str, codec: str) -> bool:
    """Whether a text of ASCII can be decoded, and many characters are others then."""
    try:
        decoded = text.encode().decode(codec)
    except ValueError:
        return False
    return sum(character.isalpha() and character > "\x7f" for character in decoded) > _FOREIGN_SHARE * len(decoded)
