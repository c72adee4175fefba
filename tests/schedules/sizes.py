"""Sizes of pipelines for property tests."""

from hypothesis import strategies as some

SCHEDULES = ("1f1b", "gpipe", "interleaved", "zero_bubble")


@some.composite
def sizes(draw, least_stages=1):
    """Draws a schedule, stages, micro-batches and chunks that go together."""
    schedule, stages = draw(some.sampled_from(SCHEDULES)), draw(some.integers(least_stages, 8))
    micro_batches, chunks = draw(some.integers(1, 20)), 1
    if schedule == "interleaved":
        chunks = draw(some.integers(1, 4))
        if chunks > 1 and stages > 1:
            micro_batches = stages * draw(some.integers(1, 4))
    return schedule, stages, micro_batches, chunks
