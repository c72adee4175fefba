"""Table collectives: how a step is divided, and what is read from Horovod's log."""

import pytest

from tftrain.bench import collectives
from tftrain.bench.worker import MeasureError


def line(second, rank, words):
    return (
        f"[2026-01-02 03:04:{int(second):02}.{second % 1 * 1e6:6.0f}: T /horovod/operations.cc:831] [{rank}]: {words}"
    )


def lines_of_steps(steps, rank):
    """A step lasts a second: a sum waits 0.1 s and takes 0.2 s; two more wait meanwhile, for 0.25 s, and take 0.1 s."""
    lines = [line(0, rank, "Enqueued tensors for Allgather: world.start; ")]
    for step in range(1, steps + 1):
        lines += [
            line(step, rank, "Enqueued tensor.sum; "),
            line(step + 0.1, rank, "Performing tensor.sum"),
            line(step + 0.15, rank, "Enqueued data.a; data.b; "),
            line(step + 0.3, rank, "Finished performing tensor.sum"),
            line(step + 0.4, rank, "Performing data.a, data.b"),
            line(step + 0.5, rank, "Finished performing data.a, data.b"),
        ]
    return lines


def test_a_step_is_divided_without_counting_a_moment_twice():
    found = collectives.divide((0, 10), [(-1, 1), (2, 4), (3, 6)], [(1, 2), (3.5, 5), (9, 12)])
    # Under way: 1 to 2, 3.5 to 5, 9 to 10. Waiting beside that: 0 to 1, 2 to 3.5, 5 to 6.
    assert found == (3, 3.5, 3.5)
    assert sum(found) == 10


def test_a_line_behind_the_beginning_of_another_counts():
    whole = line(3.25, 1, "Performing tensor.sum")
    assert collectives.parse(whole) is not None
    assert collectives.parse("[202" + whole[1:]) == collectives.parse(whole)


def test_the_figures_are_those_of_the_log():
    lines = [text for rank in (0, 1) for text in lines_of_steps(6, rank)]
    lines += [
        "epoch 1",
        line(3.2, 0, "Sent 2 messages to coordinator."),
        line(0.2, 0, "Sent 9 messages to coordinator."),
    ]
    found = collectives.summary(lines, steps=6, warm_up=2)
    assert found["traced_ms"] == pytest.approx(1000)
    assert [found[f"{part}_ms"] for part in ("compute", "waiting", "transfer")] == pytest.approx(
        [500, 200, 300], abs=1e-2
    )
    assert found["collectives"] == 3
    # Steps 3 to 5 of two ranks count.
    assert found["negotiated"] == pytest.approx(2 / 6)


def test_a_log_with_other_steps_is_refused():
    with pytest.raises(MeasureError, match="rank 0 logged no collective 7 times"):
        collectives.summary(lines_of_steps(6, 0), steps=7, warm_up=2)
    with pytest.raises(MeasureError, match="the ranks logged no collective"):
        collectives.summary(["epoch 1"], steps=1, warm_up=1)
