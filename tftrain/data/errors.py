"""Errors of the data, in one line that names the file.

TensorFlow wraps an error inside an input pipeline in its own exception, with a traceback in the message. `data_error`
finds the one line in it that a reader needs.
"""

import re

from tftrain.exit_codes import RunError
from tftrain.fields import one_line


class DataError(RunError):
    """Data that can't be used; the message names the file, the byte offset if there is one, and what to do."""

    def __init__(self, message: str):
        """Makes the message one line: names of files in it may hold line breaks."""
        super().__init__(one_line(message))


_RAISED = re.compile(r"DataError: ([^\n]*?)\s*(?:\n|$)")
# tf.debugging.Assert shows its strings as C literals, the newline at the end of ours included.
_ASSERTED = re.compile(r"\[DataError: ((?:[^\n\\]|\\[^\n])*?)\\n\]")
_PARSER = re.compile(r"Name: (?P<where>[^\n]+?), (?P<what>(?:Key|Feature|Could not parse)[^\n]*)")


def data_error(error: BaseException) -> DataError | None:
    """Returns the DataError inside an exception raised by iterating a dataset, or None if it is something else.

    Args:
        error: what `next(iterator)` raised, a tf.errors.OpError as a rule.
    """
    if isinstance(error, DataError):
        return error
    message = str(error)
    if found := _ASSERTED.search(message):
        return DataError(_unescape(found.group(1)))
    if found := _RAISED.search(message):
        return DataError(found.group(1))
    if found := _PARSER.search(message):
        what = found["what"].split("[[")[0].strip().rstrip(".")
        return DataError(f"{found['where']}: the record lacks expected features: {what}")
    return None


def _unescape(text: str) -> str:
    """Undoes C escapes, in which the bytes of a path that is not ASCII are octal numbers."""
    return text.encode().decode("unicode_escape").encode("latin-1").decode(errors="replace")
