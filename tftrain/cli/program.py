"""The frame of a program: flags in, one call, an exit code out, and one line for whatever goes wrong."""

import errno
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tftrain.cli import flags
from tftrain.config.fields import ConfigError, Problem, joined, sections
from tftrain.host import log
from tftrain.host.exit_codes import ExitCode, RunError
from tftrain.host.text import reason

# What ends a session beside Ctrl-C: a batch system, a terminal that closes, a limit of processor time.
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU)


def guarded(name: str, work: Callable[[], int], rank: int = 0) -> int:
    """Returns the exit code of a program's work; wrong flags end the process with WRONG_FLAGS, see `flags.refuse`."""
    try:
        return work()
    except ConfigError as error:
        flags.refuse(name, error, rank)
    except RunError as error:
        logging.getLogger(name if name.startswith("tftrain.") else f"tftrain.{name}").error(error)
        return error.exit_code


@dataclass(frozen=True)
class Program:
    """A program that needs no other rank."""

    name: str  # its module, after "tftrain."
    config_class: type  # its flags
    target: Callable[[Any], str]  # the flag with what the program writes to, for a file that can't be written
    left: str = ""  # what a failure or an interrupt leaves, as the end of its message
    problems: Callable[[Any], list[Problem]] = lambda config: [p for each in sections(config) for p in each.problems()]
    stream: str = "stdout"  # the log's, see `log.configure`
    piped: int = ExitCode.FAILED  # the exit code if the reader of standard output, such as `head`, has enough

    def main(self, work: Callable[[Any], int | None], argv: Sequence[str], arguments: list[str] | None = None) -> int:
        """Reads the flags, does the work and returns the exit code; WRONG_FLAGS ends the process instead.

        Args:
            work: what the program does, given the configuration; it may return an exit code, and raise a ConfigError.
            argv: the program's name and its arguments.
            arguments: takes the arguments that are no flags, for a program that has such.
        """
        log.configure(program=self.name, stream=self.stream)
        return guarded(self.name, lambda: self._run(work, argv, arguments))

    def _run(self, work: Callable[[Any], int | None], argv: Sequence[str], arguments: list[str] | None) -> int:
        config = self.checked(argv[1:], arguments)
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:  # As under nohup.
                signal.signal(number, signal.default_int_handler)
        logger = logging.getLogger(f"tftrain.{self.name}")
        try:
            code = work(config)
            sys.stdout.flush()
            return code or ExitCode.DONE
        except BrokenPipeError:
            log.detach("stdout")
            return self.piped
        except OSError as error:
            file = f"{error.filename}: " if error.filename else ""
            logger.error(f"{self.target(config)}: {file}{reason(error)}{self.left}")
            log.detach("stdout")
            return ExitCode.FAILED
        except KeyboardInterrupt:
            logger.error(f"interrupted{self.left}")
            return ExitCode.SIGNALLED + signal.SIGINT
        except Exception as error:
            if not is_full_disk(error):
                raise
            logger.error(f"{self.target(config)}: {os.strerror(errno.ENOSPC)}{self.left}")
            return ExitCode.FAILED

    def checked(self, args: Sequence[str], arguments: list[str] | None = None) -> Any:
        """Returns the configuration of a command line, see `main`; raises a ConfigError with all that is wrong."""
        config, problems, _ = flags.read(self.config_class, [f"python -m tftrain.{self.name}", *args], arguments)
        refused = self.problems(config)
        if problems:  # A flag that is missing may be the one that is misspelt.
            refused = [problem for problem in refused if problem.value is not None]
        if problems := joined(problems, refused):
            raise ConfigError(problems)
        return config


def is_full_disk(error: Exception) -> bool:
    """Whether TensorFlow could not write a file for want of space; it has no OSError for that."""
    tensorflow = sys.modules.get("tensorflow")
    is_exhausted = tensorflow and isinstance(error, tensorflow.errors.ResourceExhaustedError)
    return bool(is_exhausted) and "No space left on device" in str(error)
