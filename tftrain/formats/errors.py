"""The error of a model's files, with the exit code of a program that it ends."""

from tftrain.host.exit_codes import ExitCode, RunError


class FormatError(RunError):
    """Files can't be read as a model of a format, or a model can't be written in it; the message names the file."""


class MissingFileError(FormatError):
    """A path that a flag names is not there, or has no file of its format."""

    exit_code = ExitCode.WRONG_FLAGS
