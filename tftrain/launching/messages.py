"""Messages between the launcher and its agents: JSON text sequences (RFC 7464).

Each message is one line, a record separator before a JSON object. The login scripts of a host may print text of their
own before the agent starts. This text has no separator, so the launcher does not take it for a message.
"""

import json
from collections.abc import Mapping
from typing import Any

SEPARATOR = b"\x1e"


def encode(message: Mapping[str, Any]) -> bytes:
    """Returns the line of a message; bytes in it become a string, in Latin-1."""
    return SEPARATOR + json.dumps(message, default=lambda data: data.decode("latin-1")).encode() + b"\n"


def decode(line: bytes) -> tuple[bytes, dict[str, Any] | None]:
    """Returns the text before the message in a line, and the message or None; raises a ValueError if it ends early."""
    noise, separator, text = line.partition(SEPARATOR)
    return noise, json.loads(text) if separator else None
