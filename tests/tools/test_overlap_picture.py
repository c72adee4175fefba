"""What the picture of gradients reads from Horovod's log, and the seconds that it prints."""

import pytest

from tools import overlap_picture


def line(second, words):
    return f"[2026-01-02 03:04:{int(second):02}.{second % 1 * 1e6:6.0f}: T /horovod/operations.cc:831] [0]: {words}"


def lines_of_step(begin):
    """A bucket travels from 0.3 to 0.7 s of a step and another from 0.5 to 0.9 s; backward ends after 0.4 s."""
    return [
        line(begin, "Enqueued tensors for Allreduce: data.loss_weights; "),
        line(begin + 0.2, "Enqueued data.gradients.0_1of1; "),
        line(begin + 0.3, "Performing data.gradients.0_1of1"),
        line(begin + 0.4, "Enqueued tensors for Allreduce: data.gradients.1_1of1; "),
        line(begin + 0.5, "Performing data.gradients.1_1of1"),
        line(begin + 0.7, "Finished performing data.gradients.0_1of1"),
        line(begin + 0.9, "Finished performing data.gradients.1_1of1"),
    ]


def test_a_moment_in_which_two_buckets_travel_counts_once():
    lines = [text for begin in (1, 2) for text in lines_of_step(begin)] + [line(3, "Enqueued data.loss_weights; ")]
    first, _ = overlap_picture.steps_of(iter(["epoch 1", *lines]))
    assert (first.seconds, first.backward) == pytest.approx((1.0, 0.4))
    assert first.travelling() == pytest.approx(0.6)
    assert first.travelling(first.backward) == pytest.approx(0.5)


def test_a_line_behind_the_beginning_of_another_counts():
    whole = line(3.25, "Performing tensor.sum")
    assert overlap_picture.parse(whole) is not None
    assert overlap_picture.parse("[202" + whole[1:]) == overlap_picture.parse(whole)
