"""The frame of a program: flags in, one call, an exit code out, and one line for whatever goes wrong."""

import errno
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tftrain.config import flags
from tftrain.config.fields import ConfigError, Problem
from tftrain.host import log
from tftrain.host.exit_codes import ExitCode, RunError
from tftrain.host.text import reason

# What ends a session beside Ctrl-C: a batch system, a terminal that closes, a limit of processor time.
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU)


def main(
    name: str,
    config_class: type,
    work: Callable[..., int | None],
    argv: Sequence[str],
    *,
    target: Callable[[Any], str],
    left: str = "",
    problems_of: Callable[..., list[Problem]] | None = None,
    arguments: list[str] | None = None,
    stream: str = "stdout",
    piped: int = ExitCode.FAILED,
) -> int:
    """Runs a program that needs no other rank.

    Args:
        name, config_class: of its module, after "tftrain."; of its flags.
        work: what it does, given the configuration; it may return an exit code, and refuse flags by a ConfigError.
        argv: the program's name and its arguments.
        target: returns the flag with what the program writes to, for the message of a file that can't be written.
        left: what a failure or an interrupt leaves, as the end of its message.
        problems_of: returns every reason to refuse a configuration; by default its method `problems`.
        arguments: takes the arguments that are no flags, for a program that has such.
        stream: of the log, see `log.configure`.
        piped: the exit code if the reader of standard output, such as `head`, has enough.

    Returns:
        The exit code. WRONG_FLAGS ends the process instead.
    """
    log.configure(program=name, stream=stream)
    logger = logging.getLogger(f"tftrain.{name}")
    try:
        config = checked(config_class, [f"python -m tftrain.{name}", *argv[1:]], problems_of, arguments)
    except ConfigError as error:
        flags.refuse(name, error)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # As under nohup.
            signal.signal(number, signal.default_int_handler)
    try:
        code = work(config)
        sys.stdout.flush()
        return code or ExitCode.DONE
    except ConfigError as error:
        flags.refuse(name, error)
    except RunError as error:
        logger.error(error)
        return error.exit_code
    except BrokenPipeError:
        log.detach("stdout")
        return piped
    except OSError as error:
        file = f"{error.filename}: " if error.filename else ""
        logger.error(f"{target(config)}: {file}{reason(error)}{left}")
        log.detach("stdout")
        return ExitCode.FAILED
    except KeyboardInterrupt:
        logger.error(f"interrupted{left}")
        return ExitCode.SIGNALLED + signal.SIGINT
    except Exception as error:
        if not is_full_disk(error):
            raise
        logger.error(f"{target(config)}: {os.strerror(errno.ENOSPC)}{left}")
        return ExitCode.FAILED


def checked(
    config_class: type,
    argv: Sequence[str],
    problems_of: Callable[..., list[Problem]] | None = None,
    arguments: list[str] | None = None,
) -> Any:
    """Returns the configuration of a command line, see `main`; raises a ConfigError with every reason to refuse it."""
    config, problems, _ = flags.read(config_class, argv, arguments)
    misread = {problem.flag for problem in problems}
    of_config = problems_of(config) if problems_of else config.problems()
    if problems:  # A flag that is missing may be the one that is misspelt.
        of_config = [problem for problem in of_config if problem.value is not None and problem.flag not in misread]
    if problems := [*problems, *of_config]:
        raise ConfigError(problems)
    return config


def is_full_disk(error: Exception) -> bool:
    """Whether TensorFlow could not write a file for want of space; it has no OSError for that."""
    tensorflow = sys.modules.get("tensorflow")
    is_exhausted = tensorflow and isinstance(error, tensorflow.errors.ResourceExhaustedError)
    return bool(is_exhausted) and "No space left on device" in str(error)
