"""Values of flags that are a small file, or its lines on the command line."""

import os

from tftrain.files.reading import read_small
from tftrain.host.text import reason


def lines(value: str, form: str) -> list[str]:
    """Returns the lines of a file, or those in the value itself, separated by semicolons; each with single spaces.

    Empty lines are left out. `form` says what is expected. Raises what `of_file` does.
    """
    entries = of_file(value, form) if "=" not in value or os.path.isfile(value) else value.split(";")
    return [" ".join(line.split()) for line in entries if line.strip()]


def of_file(path: str, form: str, max_bytes: int = 1 << 20) -> list[str]:
    """Returns the lines of a file as they are, but without comments, which are from "#" to the end of a line.

    Raises a ValueError with `form` and the reason if it can't be read.
    """
    try:
        text = read_small(path, max_bytes).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{reason(error)}; {form}") from error
    return [line.partition("#")[0] for line in text.splitlines()]
