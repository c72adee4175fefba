"""The one error of this room."""


class CheckpointError(RuntimeError):
    """A checkpoint that can't be written or read; the message names the file and the reason."""
