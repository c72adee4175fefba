"""Text for messages, logs and terminals: without secrets of addresses and without control characters."""

import re
from collections.abc import Sequence

# What a terminal may obey (C0, C1, the directions of text), other ends of lines, and halves of surrogate pairs.
CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# An address in a text, or what a path makes of one: its protocol, and the rest until a chain or a mixture has another.
_ADDRESS = re.compile(
    r"((?:[A-Za-z][A-Za-z0-9+.-]{0,15}:/|https?:|s3:|gs:|gcs:|az:|abfss?:|adl:)/)"
    r"((?:(?!::|,\s{0,9}[\w.-]{1,99}=[\d.eE+-]{1,30}:|,[A-Za-z][A-Za-z0-9+.-]{0,15}://)[^\s\"'<>])*)",
    re.IGNORECASE,
)
_WITH_KEY = r"^[^/?#@:]*:(?!\d+(?:[/?#]|$)).*@"
# User and password before the host, by whether the protocol is HTTP; others have names such as container@account.
USERINFO = {True: re.compile(rf"^[^/?#]*@|{_WITH_KEY}"), False: re.compile(_WITH_KEY)}


def shown(text: str) -> str:
    """Returns a text whose addresses have no user, password, query or fragment, which may be secrets."""

    def public(match: re.Match) -> str:
        is_http = match[1].lower().startswith("http")
        rest = USERINFO[is_http].sub("", match[2])
        # "?" is a part of globs too, but not of those of HTTP.
        return match[1] + re.split(r"[?#]" if is_http else r"[?](?=[^/=]*=)|#", rest, maxsplit=1)[0]

    return _ADDRESS.sub(public, text) if ":/" in text else text


def printable(text: str, kept: str = "") -> str:
    """Returns a text for a terminal, with escapes for `CONTROLS` other than those in `kept`."""
    return CONTROLS.sub(lambda match: match[0] if match[0] in kept else repr(match[0])[1:-1], text)


def for_log(text: str) -> str:
    """Returns lines for a log: as `shown` and `printable`, with their ends and indents."""
    return printable(shown(text), kept="\n\t")


def one_line(text: str, max_length: int = 2000) -> str:
    """Returns a text for a message: as `shown`, without characters that are not printable, and cut in its middle."""
    text = shown(text)
    if len(text) > max_length:
        text = f"{text[: max_length // 2]}...{text[-max_length // 2 :]}"
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def listed(items: Sequence, most: int, separator: str = ", ") -> str:
    """Returns the first items for a message, and how many more there are."""
    return separator.join(map(str, items[:most])) + (f" and {len(items) - most} more" if len(items) > most else "")


def reason(error: Exception) -> str:
    """Returns why a file can't be used, without the error number and the path with which an OSError begins."""
    return getattr(error, "strerror", None) or str(error)
