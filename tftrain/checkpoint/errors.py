"""The errors of checkpoints, with the exit code of a program that one of them ends."""

from tftrain.host.exit_codes import ExitCode, RunError


class CheckpointError(RunError):
    """A checkpoint can't be written or read; the message names the file and the reason."""


class AgreedCheckpointError(CheckpointError):
    """All ranks have found the same reason, so that only the chief prints it."""

    on_all_ranks = True


class FailedSavesError(AgreedCheckpointError):
    """Too many checkpoints could not be written, so the run ends; raised on all ranks alike."""

    exit_code = ExitCode.SAVES_FAILED
