"""Goes back to a checkpoint after a spike, and leaves out the samples that raised the loss: `--on_spike=rollback`.

PaLM was trained like that (arXiv 2204.02311, section 5.1): from about 100 steps before a spike, without 200 to 500
batches. Here the window begins `rollback_margin` batches before the spike and the checkpoint lies before the window. So
the steps between them are taken again with the same samples, bit for bit, and the result does not depend on when
checkpoints were saved. A run that is killed before the next checkpoint comes to the same spike again, and goes back.
"""

from dataclasses import dataclass

from tftrain.host.exit_codes import UnstableError
from tftrain.observe.health import Health
from tftrain.observe.reporter import Reporter
from tftrain.observe.rows import RollbackRow
from tftrain.observe.watchdog import Watchdog
from tftrain.state.checkpoints import Checkpoints
from tftrain.state.run_state import Run
from tftrain.train.observers import Decision, Observer, TakenStep


@dataclass
class Rollback(Observer):
    """Restores a checkpoint from before a spike."""

    run: Run
    checkpoints: Checkpoints
    health: Health
    reporter: Reporter
    watchdog: Watchdog

    def between_steps(self, step: TakenStep, decision: Decision) -> Decision:
        """Goes back after a spike, unless a signal stops the run; the steps of a phase are all checked at its end.

        Raises UnstableError after as many rollbacks as a run may make, and CheckpointError without a checkpoint.
        """
        has_spike = decision.has_spike or (step.ends_phase and self.health.has_spike())
        if not has_spike or decision.is_stopped:
            return Decision(has_spike=has_spike)
        with self.watchdog.limit("going back to a checkpoint", "start_timeout_seconds", kind="start"):
            return Decision(has_spike=True, restored=self._restore(self.health.spike))

    def _restore(self, spike: int) -> int:
        """Returns the step of the checkpoint that the run has gone back to."""
        run, limits, timeline = self.run, self.run.config.limits, self.run.timeline
        done, left_out = int(run.progress.step), run.left_out  # The first one waits for the device.
        number = len(left_out.windows) + 1
        if number > limits.max_rollbacks:
            raise UnstableError(
                f"step {spike} is a spike, after --max_rollbacks={limits.max_rollbacks} rollbacks. Go on with a lower "
                "--learning_rate, a larger --rollback_window or more --max_rollbacks, or look for what is wrong in the "
                "data"
            )
        self.checkpoints.go_back(spike, limits.rollback_margin)
        step, consumed = int(run.progress.step), int(run.progress.consumed_samples)
        before, after = max(spike - 1 - limits.rollback_margin, step), spike - 1 + limits.rollback_window
        # A checkpoint from before the last rollback does not have its window.
        run.left_out = left_out.without(*(timeline.samples_after(each - step, consumed) for each in (before, after)))
        first, stop = run.left_out.windows[-1]
        self.reporter.rollback(done, RollbackRow(step, number, spike, first, stop - 1))
        self.health.go_back()
        return step
