"""The errors of this room."""


class CheckpointError(RuntimeError):
    """A checkpoint that can't be written or read; the message names the file and the reason."""


class FailedSavesError(CheckpointError):
    """Checkpoints could not be written, and the run can't go on without; on all ranks alike."""
