"""Exit codes of `tftrain.run`: what each asks of whoever started it. docs/reliability.md says more."""

from enum import IntEnum


class ExitCode(IntEnum):
    """What a process ends with; a signal that ends it at once gives 128 and the signal's number."""

    DONE = 0
    FAILED = 1  # the last line, or a traceback, says why
    WRONG_FLAGS = 2
    STOPPED = 75  # EX_TEMPFAIL of sysexits.h: a signal asked for it, the state is saved; start again to continue
    NOT_FINITE = 76  # too many steps in a row whose loss or gradient was not finite
    STALLED = 77  # something took longer than its limit
    SAVES_FAILED = 78  # too many checkpoints in a row could not be written
    NOT_SAVED = 79  # a signal asked for the end, and there was no time to save
    PEER_ENDED = 80  # another rank ended, and its own exit code says why
    SIGNALLED = 128  # plus the number of the second signal
