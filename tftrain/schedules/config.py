"""The flags of `python -m tftrain.schedules`."""

import math
from dataclasses import dataclass

from tftrain.config.fields import ConfigError, Problem, field_problems, flag
from tftrain.config.parallel import PIPELINE_SCHEDULES, schedule_problems
from tftrain.schedules.simulation import Durations, even_durations

TIMES = ("forward", "backward", "backward_weights")


@dataclass(frozen=True)
class ScheduleConfig:
    """The sizes of a pipeline and the durations of its actions, in any unit of time."""

    pipeline_schedule: str = flag("1f1b", "The schedule, as in tftrain.run.", choices=PIPELINE_SCHEDULES)
    pipeline_parallel_size: int = flag(4, "Stages.", minimum=1, maximum=1024)
    virtual_pipeline_size: int = flag(1, "Chunks of a stage, with --pipeline_schedule=interleaved.", minimum=1)
    micro_batches: int = flag(8, "Micro-batches of an update.", minimum=1, maximum=65536)
    forward: str = flag("1", "Time of a stage's forward pass: a number, or one for each stage, such as 1,1,1,1.5.")
    backward: str = flag("2", "Time of a stage's backward pass, for inputs and weights together.")
    backward_weights: str | None = flag(None)
    """Time of a stage's backward pass for weights, which zero_bubble computes later; by default half of --backward."""
    transfer: float = flag(0.0, "Time of a transfer between two stages.", minimum=0)
    forward_only: bool = flag(False, "Use the order of an evaluation, which has no backward.")
    output: str | None = flag(None, names="path")
    """Write the picture to OUTPUT.png and the trace, in ms, to OUTPUT.json."""

    def problems(self) -> list[Problem]:
        """Returns every reason why there is no such schedule."""
        problems = field_problems(self)
        if problems:
            return problems
        sizes = self.pipeline_parallel_size, self.micro_batches, self.virtual_pipeline_size
        if not self.forward_only:
            problems += schedule_problems(self.pipeline_schedule, *sizes)
        times = []
        for name in TIMES:
            try:
                times.append(self._times(name))
            except ConfigError as error:
                problems += error.problems
        if not problems and any(part > whole for part, whole in zip(times[2], times[1], strict=True)):
            expected = f"expected at most --backward={self.backward} on every stage"
            problems.append(Problem("backward_weights", self.backward_weights, expected))
        return problems

    def durations(self) -> Durations:
        """Returns the durations of the actions; raises a ConfigError if a list of times is wrong."""
        forward, backward, weights = map(self._times, TIMES)
        stages = [(f, b - w, w) for f, b, w in zip(forward, backward, weights, strict=True)]
        return even_durations(stages, self.virtual_pipeline_size, self.transfer)

    def _times(self, name: str) -> list[float]:
        """Returns the times that a flag gives for all stages."""
        text = getattr(self, name)
        if text is None:
            return [seconds / 2 for seconds in self._times("backward")]
        try:
            times = [float(part) for part in text.split(",")]
        except ValueError:
            times = []
        if len(times) == 1:
            times *= self.pipeline_parallel_size
        if len(times) != self.pipeline_parallel_size or not all(math.isfinite(x) and x > 0 for x in times):
            expected = f"expected a number above 0, or {self.pipeline_parallel_size} of them, one for each stage"
            raise ConfigError([Problem(name, text, expected)])
        return times
