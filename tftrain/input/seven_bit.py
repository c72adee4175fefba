"""Text that looks like UTF-8 and is in another encoding: of seven bits, or UTF-16 without a byte order mark."""

import re

# Escapes of ISO 2022 that choose a set of characters; those of terminals are others.
_ISO_2022 = re.compile(r"\x1b\$(?:[@AB]|\)[ACG]|\([A-Z])|\x1b\([BIJ]")
_ISO_2022_NAMES = {"\x1b$)C": "ISO-2022-KR", "\x1b$)A": "ISO-2022-CN", "\x1b$)G": "ISO-2022-CN"}
_OTHERS = {"HZ": ("hz", re.compile(r"~\{(?:[!-w][!-~])+~\}")), "UTF-7": ("utf-7", re.compile(r"\+[A-Za-z0-9+/]{3,}"))}
_MANY_NULS = 8  # one in as many characters
_FOREIGN_SHARE = 0.1
_BEGINNING = 1 << 16


def encoding(text: str) -> str | None:
    """Returns which encoding a text is in that was decoded as UTF-8, and what to do; None if it is UTF-8."""
    if "\0" in text and text.count("\0") * _MANY_NULS > len(text):
        order = "LE" if text[1::2].count("\0") > text[::2].count("\0") else "BE"
        return f"UTF-16 without a byte order mark; convert it with iconv -f UTF-16{order} -t UTF-8"
    found = None
    if "\x1b" in text and (match := _ISO_2022.search(text)):
        found = _ISO_2022_NAMES.get(match[0], "ISO-2022-JP")
    elif text.isascii():
        found = next((name for name, (codec, mark) in _OTHERS.items() if _decodes(text, codec, mark)), None)
    return found and f"{found}, not UTF-8; convert it with iconv -f {found} -t UTF-8"


def _decodes(text: str, codec: str, mark: re.Pattern) -> bool:
    """Whether a text of ASCII is in an encoding: it has its marks, and many other characters if it is decoded."""
    text = text[:_BEGINNING].rpartition("\n")[0] if len(text) > _BEGINNING else text
    if not mark.search(text):
        return False
    try:
        decoded = text.encode().decode(codec)
    except ValueError:
        return False
    return sum(character.isalpha() and character > "\x7f" for character in decoded) > _FOREIGN_SHARE * len(decoded)
