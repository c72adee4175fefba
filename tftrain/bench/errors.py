"""The error of what measures a row."""


class MeasureError(RuntimeError):
    """There are no figures; the message is the row's error, in one line."""
