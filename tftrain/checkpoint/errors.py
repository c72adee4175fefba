"""The errors of this room."""

from tftrain.exit_codes import ExitCode, RunError


class CheckpointError(RunError):
    """A checkpoint that can't be written or read; the message names the file and the reason."""


class FailedSavesError(CheckpointError):
    """Checkpoints could not be written, and the run can't go on without; on all ranks alike."""

    exit_code = ExitCode.SAVES_FAILED
