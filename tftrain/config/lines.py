"""Values of flags that are a small file, or its lines on the command line."""

import os

from tftrain.host.files import read_small, reason

_MAX_BYTES = 1 << 20


def lines(value: str, form: str) -> list[str]:
    """Returns the lines of a file, or those in the value itself, separated by semicolons; each with single spaces.

    Comments, from "#" to the end of a line of a file, and empty lines are left out. `form` says what is expected.

    Raises:
        ValueError: the file can't be read; the message says why, and `form`.
    """
    entries = value.split(";")
    if "=" not in value or os.path.isfile(value):
        try:
            entries = [
                line.partition("#")[0] for line in read_small(value, _MAX_BYTES).decode("utf-8-sig").splitlines()
            ]
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{reason(error)}; {form}") from error
    return [" ".join(line.split()) for line in entries if line.strip()]
