"""Watches loss and gradient norm of every step: non-finite values end the run, unusual values are spikes.

It checks each step one step later, so the device is already running the next step while the host waits for the values.
"""

import logging
import math
from collections.abc import Callable, Sequence

import numpy as np

from tftrain.config.run import LimitsConfig
from tftrain.host.exit_codes import NotFiniteError
from tftrain.observe.rows import SpikeRow
from tftrain.parallel.mesh import Mesh
from tftrain.state.run_state import Evaluation, StepInfo
from tftrain.state.spikes import SpikeMonitor

logger = logging.getLogger(__name__)

WHY = (
    "A text has at most --max_predictions_per_seq masked tokens, by default --masked_lm_prob of its length; with "
    "--whole_word_masking, no word of more pieces is masked"
)
NOTHING_PREDICTED = f"no token of the held-out split is predicted, so there is no loss of it. {WHY}"


class Health:
    """Watches the steps of a run.

    `problem` says what was not finite in the last step that was checked; None if all was. Weights that gave such a loss
    may be spoiled although they are finite, so they are not saved as a checkpoint. `spike` is the first step that was a
    spike, if the run is to go back for it, else None.
    """

    def __init__(
        self,
        settings: LimitsConfig,
        mesh: Mesh,
        mean_values: Callable[[Sequence[float]], dict[str, float | None]],
        culprit_name: Callable[[int], str],
        on_spike: Callable[[SpikeRow], None],
        monitor: SpikeMonitor,
    ):
        """Begins before the first step.

        Args:
            settings: the limits, with max_nan_steps and on_spike.
            mesh: the ranks.
            mean_values: returns the means of the task from its sums.
            culprit_name: says what was not finite, given a step's `culprit`.
            on_spike: called with each unusual step.
            monitor: the statistics of loss and gradient norm, which checkpoints contain.
        """
        self._settings, self._mean_values, self._has_warned = settings, mean_values, False
        self._culprit_name, self._on_spike = culprit_name, on_spike
        self._ranks = mesh.groups["model"]
        self._monitor = monitor
        self._waiting: list[tuple[int, StepInfo]] = []
        self._in_a_row = 0
        self.problem: str | None = None
        self.spike: int | None = None

    def limits(self) -> tuple[float, float]:
        """Returns the loss and the gradient norm from which on the next step is a spike and makes no update."""
        return self._monitor.limits(is_late=bool(self._waiting))

    def go_back(self) -> None:
        """Forgets the steps that wait and what was found: the run goes on from a checkpoint."""
        self._waiting, self._in_a_row, self.problem, self.spike = [], 0, None, None

    def has_spike(self) -> bool:
        """Checks all steps, and returns whether the run is to go back for one of them."""
        if self.spike is None:
            self.settle()
        return self.spike is not None

    def observe(self, step: int, info: StepInfo, at_once: bool) -> None:
        """Queues a step and checks the one before it; with `at_once`, waits for this step and checks it too.

        Raises a NotFiniteError, on every rank at the same step, if `max_nan_steps` consecutive steps were not finite.
        """
        if self._waiting and info.before is not None:
            before, waiting = self._waiting.pop()
            self._waiting.append((before, waiting.read(info.before.numpy())))
        self._waiting.append((step, info))
        self.settle(0 if at_once else 1)

    def settle(self, left: int = 0) -> None:
        """Checks all but `left` of the waiting steps; `problem` is that of the last one; raises what `observe` does."""
        while len(self._waiting) > left:
            self._check(*self._waiting.pop(0))

    def observe_evaluation(self, step: int, result: Evaluation) -> None:
        """Checks the held-out loss after a step, which the training loss of that step says nothing about."""
        loss = result.means["loss"]
        if result.examples and loss is not None and not math.isfinite(loss):
            self.problem = f"the held-out loss after step {step} is not"

    def _check(self, step: int, info: StepInfo) -> None:
        loss, norm = self._mean_values(np.asarray(info.sums).tolist())["loss"], float(info.grad_norm)
        if loss is None:
            loss = math.nan
            if not (info.is_nan or self._has_warned):
                logger.info(f"nothing is predicted in step {step}, which changes no weight; there may be more. {WHY}")
                self._has_warned = True
        if scores := self._monitor.observe(math.nan if info.is_nan else loss, norm):
            self._on_spike(SpikeRow(step, loss, scores[0], norm, scores[1], int(info.skipped)))
            if self._settings.on_spike == "rollback" and self.spike is None:
                self.spike = step
        if not info.is_nan:
            self._in_a_row, self.problem = 0, None
            return
        self._in_a_row += 1
        bad = [rank for index in np.flatnonzero(info.bad_ranks) for rank in self._ranks[index]]
        where = f" on {'ranks' if len(bad) > 1 else 'rank'} {', '.join(map(str, bad))}" if bad else ""
        self.problem = f"in step {step} {self._culprit_name(int(info.culprit))}{where} was not"
        if self._in_a_row == 1:
            logger.info(f"{self.problem} finite: the update is skipped; no checkpoint until a step is finite")
        if self._in_a_row >= self._settings.max_nan_steps:
            limit = f"--max_nan_steps={self._settings.max_nan_steps}"
            raise NotFiniteError(f"{limit} steps in a row were not finite; {self.problem}")
