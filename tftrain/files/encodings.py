"""Which encoding a text is in that is not UTF-8, or that only looks like it, and how to convert it."""

import codecs
import re

# Escapes of ISO 2022 that choose a set of characters; those of terminals are others.
_ISO_2022 = re.compile(r"\x1b\$(?:[@AB]|\)([ACG])|\([A-Z])|\x1b\([BIJ]")
_OTHERS = {"HZ": re.compile(r"~\{(?:[!-w][!-~])+~\}"), "UTF-7": re.compile(r"\+[A-Za-z0-9+/]{3,}")}
_MANY_NULS, _FOREIGN_SHARE = 1 / 8, 1 / 10
_BEGINNING = 1 << 16
_OF_EIGHT_BITS = ("GB18030", "SHIFT_JIS", "EUC-KR", "BIG5", "WINDOWS-1252")


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


def conversion(content: bytes) -> str:
    """Returns how to convert a file that is not UTF-8, for a message."""
    is_latin = 8 * sum(byte > 127 for byte in content) < len(content)
    encodings = _OF_EIGHT_BITS[::-1] if is_latin else _OF_EIGHT_BITS
    encodings = ("UTF-16",) if content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else encodings
    fitting = [each for each in encodings if "\ufffd" not in content.decode(each, "replace")] or ["ISO-8859-1"]
    others = f" (or from {', '.join(fitting[1:])})" if fitting[1:] else ""
    return f"convert the file, for instance with iconv -f {fitting[0]} -t UTF-8{others}"
