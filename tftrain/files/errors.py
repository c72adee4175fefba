"""Errors of data and of models: messages of one line that name the file.

TensorFlow wraps an error of an input pipeline in its own exception, whose message contains a traceback. `data_error`
extracts the original message from it.
"""

import re

from tftrain.host.exit_codes import ExitCode, RunError
from tftrain.host.text import one_line


class DataError(RunError):
    """The data cannot be used. The message names the file, the byte offset if it is known, and what to do."""

    def __init__(self, message: str):
        """Joins the lines of the message, because file names may contain line breaks."""
        super().__init__(one_line(message))


class MissingFileError(DataError):
    """A path that a flag names is not there, or has no file."""

    exit_code = ExitCode.WRONG_FLAGS


class FormatError(RunError):
    """Files can't be read as a model of a format, or a model can't be written in it; the message names the file."""


class MissingModelError(FormatError):
    """A path that a flag names is not there, or has no file of its format."""

    exit_code = ExitCode.WRONG_FLAGS


_RAISED = re.compile(r"DataError: ([^\n]*)")
# tf.debugging.Assert escapes its strings as C literals. The assertions of this package end with an escaped newline.
# A search that could read over the beginning of another match would read the message once for each of them.
_ASSERTED = re.compile(r"\[DataError: ((?:(?!\[DataError: )[^\n\\]|\\[^\n])*?)\\n\]")
_PARSER = re.compile(r"Name: (?P<record>(?:(?!Name: )[^\n])+?), (?P<reason>(?:Key|Feature|Could not parse)[^\n]*)")


def data_error(error: BaseException) -> DataError | None:
    """Returns the DataError in what `next` of a dataset raised, usually a tf.errors.OpError; None if there is none."""
    if isinstance(error, DataError):
        return error
    message = str(error)
    if match := _ASSERTED.search(message):
        # C escapes: the bytes of a non-ASCII path are octal numbers.
        escaped = match.group(1).encode().decode("unicode_escape")
        return DataError(escaped.encode("latin-1").decode(errors="replace"))
    if match := _RAISED.search(message):
        return DataError(match.group(1).rstrip())
    if match := _PARSER.search(message):
        reason = match["reason"].split("[[")[0].strip().rstrip(".")
        return DataError(f"{match['record']}: the record lacks expected features: {reason}")
    return None
