"""The batch ramp: a global batch that grows while the first samples of a run are consumed.

`--batch_rampup=start:increment:samples` means what Megatron-LM's `--rampup-batch-size` does: the global batch has
`start` samples at first and grows by `increment` at evenly spaced points, the last of them at `samples` consumed
samples, where it is the full one. The size of an update follows from the samples consumed before it and from nothing
else, so a run that is resumed within the ramp goes on with the right size. No ramp is one that starts with the full
batch.
"""

import math
import re
from dataclasses import dataclass
from typing import NamedTuple

from tftrain.fields import Problem

_FORMAT = re.compile(r"([1-9]\d*):([1-9]\d*):([1-9]\d*)")


class Stage(NamedTuple):
    """Consecutive updates with batches of one size.

    Attributes:
        batch_size: samples of each of them over all ranks.
        first_step: updates before the first of them.
        first_sample: samples consumed before the first of them.
    """

    batch_size: int
    first_step: int
    first_sample: int


@dataclass(frozen=True)
class Ramp:
    """The batch sizes of a run, in samples over all ranks.

    Attributes:
        start: the first size.
        increment: the difference between a size and the next; it divides full - start.
        samples: consumed samples from which on the batch is full.
        full: the last size, global_batch_size.
    """

    start: int
    increment: int
    samples: int
    full: int

    @property
    def increments(self) -> int:
        """How often the batch grows; 0 without a ramp."""
        return (self.full - self.start) // self.increment

    def batch_size(self, consumed_samples: int) -> int:
        """Returns the samples of the update before which so many were consumed.

        With k increments, the i-th falls due at i * samples / k consumed samples and comes with the first update that
        begins there or later.
        """
        reached = consumed_samples * self.increments // self.samples
        return self.start + self.increment * min(reached, self.increments)

    def stages(self, consumed_samples: int = 0) -> list[Stage]:
        """Returns the stages of a run that goes on from so many consumed samples; the last has no end.

        A ramp that is steep for its batch sizes leaves sizes out.
        """
        found = [Stage(self.batch_size(consumed_samples), 0, consumed_samples)]
        while found[-1].batch_size < self.full:
            size, step, sample = found[-1]
            number = (size - self.start) // self.increment + 1
            due = -(-number * self.samples // self.increments)
            steps = -(-(due - sample) // size)
            sample += steps * size
            found.append(Stage(self.batch_size(sample), step + steps, sample))
        return found

    def samples_after(self, steps: int) -> int:
        """Returns the samples that the first `steps` updates of a run consume."""
        stage = max(stage for stage in self.stages() if stage.first_step <= steps)
        return stage.first_sample + (steps - stage.first_step) * stage.batch_size


def read(batch_rampup: str, global_batch_size: int) -> Ramp:
    """Returns what a flag in which `problems` finds none means, for the full batch's size."""
    if batch_rampup == "none":
        return Ramp(global_batch_size, 1, 1, global_batch_size)
    return Ramp(*map(int, batch_rampup.split(":")), global_batch_size)


def unit(batch_rampup: str, global_batch_size: int) -> int:
    """Returns the largest number that divides the sizes of all batches; the full one's, if the flag has problems."""
    match = _FORMAT.fullmatch(batch_rampup)
    return math.gcd(global_batch_size, *map(int, match.groups()[:2])) if match else global_batch_size


def problems(batch_rampup: str, global_batch_size: int, micro_batch_size: int | None, ranks: int) -> list[Problem]:
    """Returns every reason why a ramp can't lead to such a batch.

    Args:
        batch_rampup: the flag.
        global_batch_size: the full batch's samples.
        micro_batch_size: samples of one forward pass, of which every batch must consist on all ranks; None: not known.
        ranks: data parallel ones.
    """
    if batch_rampup == "none":
        return []
    match = _FORMAT.fullmatch(batch_rampup)
    if not match:
        expected = "expected none, or start:increment:samples, whole numbers above 0, such as 32:32:1000000"
        return [Problem("batch_rampup", batch_rampup, expected)]
    start, increment, found = int(match[1]), int(match[2]), []
    if start > global_batch_size:
        found.append(f"expected a start of at most global_batch_size={global_batch_size}")
    elif (global_batch_size - start) % increment:
        grown = f"global_batch_size={global_batch_size} minus the start, {global_batch_size - start}"
        found.append(f"expected an increment that divides {grown}")
    if micro_batch_size:
        odd = [size for size in range(start, global_batch_size, increment) if size % (micro_batch_size * ranks)]
        if odd:
            unit = f"micro_batch_size={micro_batch_size} x data_parallel_size={ranks}"
            found.append(f"expected batch sizes that are multiples of {unit}, which {odd[0]} is not")
    return [Problem("batch_rampup", batch_rampup, expected) for expected in found]
