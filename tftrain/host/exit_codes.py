"""Exit codes of `tftrain.run` and the exceptions that carry one; docs/reliability.md explains what to do after each."""

from enum import IntEnum

from tftrain.host.text import one_line

_LONGEST = 20_000  # characters of a message


class ExitCode(IntEnum):
    """The exit code of a process; a signal that ends it at once gives 128 plus the signal's number."""

    DONE = 0
    FAILED = 1  # the last line, or a traceback, gives the reason
    WRONG_FLAGS = 2
    STOPPED = 75  # EX_TEMPFAIL of sysexits.h: a signal stopped the run, the state is saved; start again to continue
    NOT_FINITE = 76  # too many steps in a row, the last step or the state were not finite
    STALLED = 77  # something took longer than its limit
    SAVES_FAILED = 78  # too many checkpoints in a row could not be written
    NOT_SAVED = 79  # a signal stopped the run, and --preempt_save_seconds were not enough to save
    PEER_ENDED = 80  # another rank ended; its own exit code gives the reason
    OUT_OF_MEMORY = 81  # the device, or the allocator, has no memory left
    UNSTABLE = 82  # more spikes of the loss than --max_rollbacks permits
    SIGNALLED = 128  # plus the number of the second signal


class RunError(RuntimeError):
    """An error that ends a run; its message is the one line that the user sees."""

    exit_code = ExitCode.FAILED
    on_all_ranks = False  # whether every rank raises it with the same message, so that only the chief prints it

    def __init__(self, message: object = ""):
        """Makes one line of the message, which may have names and addresses of files."""
        super().__init__(one_line(str(message), _LONGEST))


class NotFiniteError(RunError):
    """Losses, gradients or weights are not finite, so that going on makes no sense; on all ranks alike."""

    exit_code = ExitCode.NOT_FINITE
    on_all_ranks = True

    def __init__(self, what: str):
        """Adds to `what` was not finite, and in which step, what to do."""
        super().__init__(
            f"{what}. Go on from an earlier checkpoint with a lower --learning_rate or another --precision, or look "
            "for what is wrong in the data"
        )


class UnstableError(RunError):
    """The loss has another spike after all rollbacks that a run may make; on all ranks alike."""

    exit_code = ExitCode.UNSTABLE
    on_all_ranks = True


class OutOfMemoryError(RunError):
    """TensorFlow could not allocate a tensor."""

    exit_code = ExitCode.OUT_OF_MEMORY
