"""The exit code of a job."""

import pytest

from tftrain.launching.outcome import Ended, exit_code, last_line


@pytest.mark.parametrize(
    ("ended", "stop_requested", "expected"),
    [
        ([(0, False), (0, False)], False, 0),
        ([(75, False), (75, False)], True, 75),
        # The end of another rank is not the reason, however early it is seen.
        *(([(80, False), (1, False)], False, 1), ([(77, False), (80, False)], False, 77)),
        *(([(0, False), (78, False)], False, 78), ([(78, False), (1, False)], False, 78)),
        *(([(137, False), (80, False), (80, False)], False, 137), ([(0, False), (80, False)], False, 80)),
        # What the launcher has ended gives no reason.
        *(([(1, False), (143, True)], False, 1), ([(75, False), (137, True)], True, 75)),
        *(([(0, False), (137, True)], True, 79), ([(137, True), (137, True)], True, 79)),
        *(([(80, False), (137, True)], True, 79), ([(80, False), (137, True)], False, 77)),
        # A host that can't be reached is the reason, if nothing else is.
        ([(80, False, True), (137, True)], False, 80),
        ([(80, False, True), (78, False)], False, 78),
    ],
)
def test_the_code_gives_the_reason(ended, stop_requested, expected):
    assert exit_code([Ended(*rank) for rank in ended], stop_requested) == expected


HOSTS = {0: "node1", 1: "node1", 2: "node2", 3: "node2"}


@pytest.mark.parametrize(
    ("ended", "stop_requested", "expected"),
    [
        ({0: (0, False)}, False, ""),
        ({0: (75, False)}, True, ""),
        ({0: (80, False), 3: (77, False)}, False, "rank 3 on node2 ended with 77: something exceeded its time limit"),
        ({2: (137, False), 3: (137, False), 0: (80, False)}, False, "rank 2 on node2 ended with 137: if the kernel"),
        ({0: (80, False), 2: (80, False, True), 3: (80, False, True)}, False, "ranks 2, 3 on node2: no connection;"),
        ({0: (80, False), 1: (80, False), 3: (137, True)}, False, "rank 3 on node2 did not end after the others"),
        ({0: (79, False)}, True, "rank 0 on node1 ended with 79: there was no time to save"),
        ({1: (137, True), 3: (137, True)}, True, "rank 1 on node1 and rank 3 on node2 had to be killed"),
        ({0: (80, False), 1: (80, False)}, False, "ranks 0, 1 on node1 lost the connection to other ranks: check the"),
        ({3: (3, False)}, False, "rank 3 on node2 ended with 3"),
    ],
)
def test_the_last_line_names_rank_host_and_what_to_do(ended, stop_requested, expected):
    ended = {rank: Ended(*end) for rank, end in ended.items()}
    line = last_line(exit_code(ended.values(), stop_requested), ended, HOSTS)
    assert line.startswith(expected)
    assert bool(line) == bool(expected)
