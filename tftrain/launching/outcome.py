"""The end of a job: the exit code and the last line are those of the rank which gives the reason."""

import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tftrain.host.exit_codes import ExitCode

MAX_SHOWN = 8
AGAIN = "start again to continue"
# What an exit code means, and what to do; docs/reliability.md has more.
REASONS = {
    ExitCode.FAILED: "its own lines above give the reason",
    ExitCode.WRONG_FLAGS: "its own lines above name the flags",
    ExitCode.NOT_FINITE: "numbers were not finite, see its own lines above",
    ExitCode.STALLED: f"something exceeded its time limit, see its own lines above; {AGAIN}",
    ExitCode.SAVES_FAILED: f"checkpoints could not be written, see its own lines above; free the disk and {AGAIN}",
    ExitCode.NOT_SAVED: f"there was no time to save; {AGAIN} from the last checkpoint",
    ExitCode.OUT_OF_MEMORY: "memory was short; its own lines above say what to do",
    ExitCode.UNSTABLE: "the loss had too many spikes; its own lines above say what to do",
}
KILLED = ExitCode.SIGNALLED + signal.SIGKILL


class Ended(NamedTuple):
    """A rank that has ended."""

    code: int  # its exit code; 128 plus the number of the signal that has ended it
    by_launcher: bool  # whether it ended after the launcher had begun to end the ranks for good
    is_lost: bool = False  # whether the connection to its host has ended, so that its own exit code is not known


def exit_code(ended: Iterable[Ended], stop_requested: bool) -> int:
    """Returns the exit code of a job, given all ranks in the order in which they ended.

    It is the code of the first rank that failed for a reason of its own. If no rank has such a reason, it is PEER_ENDED
    if a host is lost. Otherwise, if the launcher had to end some ranks, it is NOT_SAVED after a signal that it has
    passed on, and STALLED without one.
    """
    ended = list(ended)
    failed = [rank.code for rank in ended if not rank.by_launcher and rank.code != ExitCode.DONE]
    reasons = [code for code in failed if code != ExitCode.PEER_ENDED]
    if reasons:
        return reasons[0]
    if any(rank.is_lost for rank in ended):
        return ExitCode.PEER_ENDED
    if any(rank.by_launcher for rank in ended):
        return ExitCode.NOT_SAVED if stop_requested else ExitCode.STALLED
    return failed[0] if failed else ExitCode.DONE


def last_line(code: int, ended: Mapping[int, Ended], hosts: Mapping[int, str]) -> str:
    """Returns the line that says why a job has ended, where, and what to do; "" if it is done or was stopped.

    `ended` has all ranks by number, in the order in which they ended. `hosts` has the name of each rank's host.
    """
    if code in (ExitCode.DONE, ExitCode.STOPPED):
        return ""
    ended_so = [rank for rank, end in ended.items() if end.code == code and not (end.by_launcher or end.is_lost)]
    lost = [rank for rank, end in ended.items() if end.is_lost]
    killed = [rank for rank, end in ended.items() if end.by_launcher]
    if ended_so and code != ExitCode.PEER_ENDED:
        memory = "if the kernel killed it, memory was short; " if code == KILLED else ""
        reason = REASONS.get(code, f"{memory}{AGAIN} from the last checkpoint" if code > 128 else "")
        return f"{named(ended_so[:1], hosts)} ended with {code}{reason and f': {reason}'}"
    if lost:
        names = " and ".join(f"`ssh {name} true`" for name in dict.fromkeys(hosts[rank] for rank in lost[:MAX_SHOWN]))
        return f"{named(lost, hosts)}: no connection; check the host and the network, expected {names} to work; {AGAIN}"
    if killed and code == ExitCode.NOT_SAVED:
        return f"{named(killed, hosts)} had to be killed and may not have saved; {AGAIN} from the last checkpoint"
    if killed:
        return f"{named(killed, hosts)} did not end after the others and had to be killed: stopped or hung; {AGAIN}"
    return f"{named(ended_so, hosts)} lost the connection to other ranks: check the network between the hosts; {AGAIN}"


def named(ranks: Sequence[int], hosts: Mapping[int, str]) -> str:
    """Returns words for ranks with their hosts: `ranks 2, 3 on node2 and rank 4 on node3`."""
    by_host: dict[str, list[int]] = {}
    for rank in sorted(ranks)[:MAX_SHOWN]:
        by_host.setdefault(hosts[rank], []).append(rank)
    more = [f"{len(ranks) - MAX_SHOWN} more"] if len(ranks) > MAX_SHOWN else []
    named = [
        f"{'ranks' if len(of_host) > 1 else 'rank'} {', '.join(map(str, of_host))} on {host}"
        for host, of_host in by_host.items()
    ]
    return " and ".join(named + more)
