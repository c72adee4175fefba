"""The batch ramp: a global batch that grows while the first samples of a run are consumed.

`--batch_rampup=start:increment:samples` means the same as Megatron-LM's `--rampup-batch-size`. The global batch has
`start` samples at first and grows by `increment` at evenly spaced points. The last point lies at `samples` consumed
samples; from there on, the batch is full. The size of an update depends only on the samples consumed before it, so a
run that resumes within the ramp continues with the right size. Without a ramp, the first batch is already full.
"""

import math
import re
from dataclasses import dataclass
from typing import NamedTuple

from tftrain.config.fields import Problem

_FORMAT = re.compile(r"([1-9]\d*):([1-9]\d*):([1-9]\d*)")


class Stage(NamedTuple):
    """Consecutive updates with batches of one size."""

    batch_size: int  # samples of each update, over all ranks
    first_step: int  # number of updates before the stage
    first_sample: int  # number of samples consumed before the stage
    phase: int = 0  # number of the phase that it belongs to, see `phases`


@dataclass(frozen=True)
class Ramp:
    """The batch sizes of a run, in samples over all ranks."""

    start: int  # the first size
    increment: int  # the difference between a size and the next; it divides full - start
    samples: int  # number of consumed samples after which the batch is full
    full: int  # the last size, global_batch_size

    @property
    def increments(self) -> int:
        """The number of times that the batch grows; 0 without a ramp."""
        return (self.full - self.start) // self.increment

    def batch_size(self, consumed_samples: int) -> int:
        """Returns the batch size of the next update after `consumed_samples`.

        With k increments, increment i is due at i * samples / k consumed samples. The first update that begins at this
        point or later has the larger batch.
        """
        reached = consumed_samples * self.increments // self.samples
        return self.start + self.increment * min(reached, self.increments)

    def stages(self, consumed_samples: int = 0) -> list[Stage]:
        """Returns the stages of a run that continues after `consumed_samples`; the last stage has no end.

        A steep ramp skips some sizes.
        """
        stages = [Stage(self.batch_size(consumed_samples), 0, consumed_samples)]
        while stages[-1].batch_size < self.full:
            size, step, sample, _ = stages[-1]
            number = (size - self.start) // self.increment + 1
            due = -(-number * self.samples // self.increments)
            steps = -(-(due - sample) // size)
            sample += steps * size
            stages.append(Stage(self.batch_size(sample), step + steps, sample))
        return stages


def read(batch_rampup: str, global_batch_size: int) -> Ramp:
    """Returns the ramp of a valid `--batch_rampup` that ends with this global batch size."""
    if batch_rampup == "none":
        return Ramp(global_batch_size, 1, 1, global_batch_size)
    return Ramp(*map(int, batch_rampup.split(":")), global_batch_size)


def unit(batch_rampup: str, global_batch_size: int) -> int:
    """Returns the greatest common divisor of all batch sizes; the full size, if the flag is malformed."""
    match = _FORMAT.fullmatch(batch_rampup)
    return math.gcd(global_batch_size, *map(int, match.groups()[:2])) if match else global_batch_size


def problems(batch_rampup: str, global_batch_size: int, micro_batch_size: int | None, ranks: int) -> list[Problem]:
    """Returns every reason why the ramp can't reach the full batch.

    Every batch must be a multiple of `micro_batch_size`, the samples of one forward pass, on all ranks; None: not
    known.
    """
    if batch_rampup == "none":
        return []
    match = _FORMAT.fullmatch(batch_rampup)
    if not match:
        expected = "expected none, or start:increment:samples, whole numbers above 0, such as 32:32:1000000"
        return [Problem("batch_rampup", batch_rampup, expected)]
    start, increment, wrong = int(match[1]), int(match[2]), []
    if start > global_batch_size:
        wrong.append(f"expected a start of at most --global_batch_size={global_batch_size}")
    elif (global_batch_size - start) % increment:
        grown = f"--global_batch_size={global_batch_size} minus the start, {global_batch_size - start}"
        wrong.append(f"expected an increment that divides {grown}")
    sizes = range(start, global_batch_size, increment) if micro_batch_size else ()
    if odd := [size for size in sizes if size % (micro_batch_size * ranks)]:
        unit = f"--micro_batch_size={micro_batch_size} x {ranks} data parallel ranks"
        wrong.append(f"expected batch sizes that are multiples of {unit}, which {odd[0]} is not")
    return [Problem("batch_rampup", batch_rampup, expected) for expected in wrong]
