"""The exit code of a job."""

import pytest

from tftrain.launching.outcome import Ended, exit_code


@pytest.mark.parametrize(
    ("ended", "stop_requested", "expected"),
    [
        ([(0, False), (0, False)], False, 0),
        ([(75, False), (75, False)], True, 75),
        # The end of another rank is not the reason, however early it is seen.
        ([(80, False), (1, False)], False, 1),
        ([(77, False), (80, False)], False, 77),
        ([(0, False), (78, False)], False, 78),
        ([(78, False), (1, False)], False, 78),
        ([(137, False), (80, False), (80, False)], False, 137),
        ([(0, False), (80, False)], False, 80),
        # What the launcher has ended gives no reason.
        ([(1, False), (143, True)], False, 1),
        ([(75, False), (137, True)], True, 75),
        ([(0, False), (137, True)], True, 79),
        ([(137, True), (137, True)], True, 79),
        ([(80, False), (137, True)], True, 79),
        ([(80, False), (137, True)], False, 77),
    ],
)
def test_the_code_gives_the_reason(ended, stop_requested, expected):
    assert exit_code([Ended(*rank) for rank in ended], stop_requested) == expected
