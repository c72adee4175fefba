"""The exit code of a job: that of the rank which gives the reason for the end."""

from collections.abc import Iterable
from typing import NamedTuple

from tftrain.exit_codes import ExitCode


class Ended(NamedTuple):
    """A rank that has ended.

    Attributes:
        code: its exit code; 128 plus the number of the signal that has ended it.
        by_launcher: whether it ended after the launcher had begun to end the ranks for good.
    """

    code: int
    by_launcher: bool


def exit_code(ended: Iterable[Ended], stop_requested: bool) -> int:
    """Returns the exit code of a job.

    Args:
        ended: all ranks, in the order in which they ended.
        stop_requested: whether the launcher has passed on a signal.

    Returns:
        The code of the first rank that failed for a reason of its own. If no rank has one and the launcher had to end
        some, NOT_SAVED after a signal and STALLED otherwise.
    """
    ended = list(ended)
    own = [rank.code for rank in ended if not rank.by_launcher and rank.code != ExitCode.DONE]
    reasons = [code for code in own if code != ExitCode.PEER_ENDED]
    if reasons:
        return reasons[0]
    if any(rank.by_launcher for rank in ended):
        return ExitCode.NOT_SAVED if stop_requested else ExitCode.STALLED
    return own[0] if own else ExitCode.DONE
