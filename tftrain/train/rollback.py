"""Goes back to a checkpoint after a spike, and leaves out the samples that raised the loss: `--on_spike=rollback`.

PaLM was trained like that (arXiv 2204.02311, section 5.1): from about 100 steps before a spike, without 200 to 500
batches. Here the window begins `rollback_margin` batches before the spike and the checkpoint lies before the window. So
the steps between them are taken again with the same samples, bit for bit, and the result does not depend on when
checkpoints were saved. A run that is killed before the next checkpoint comes to the same spike again, and goes back.
"""

from collections.abc import Sequence

from tftrain.host.exit_codes import UnstableError
from tftrain.observe.health import Health
from tftrain.observe.reporter import Reporter
from tftrain.observe.rows import RollbackRow
from tftrain.state.checkpoints import Checkpoints
from tftrain.state.run_state import Run
from tftrain.train.observers import Observer


def go_back(
    run: Run, checkpoints: Checkpoints, health: Health, reporter: Reporter, observers: Sequence[Observer]
) -> None:
    """Makes a run that of a checkpoint before the spike that `health` has found; every rank must call it.

    Raises UnstableError after as many rollbacks as a run may make, and CheckpointError without a checkpoint.
    """
    limits, timeline, spike = run.config.limits, run.timeline, health.spike
    done, left_out = int(run.progress.step), run.left_out  # The first one waits for the device.
    number = len(left_out.windows) + 1
    if number > limits.max_rollbacks:
        raise UnstableError(
            f"step {spike} is a spike, after --max_rollbacks={limits.max_rollbacks} rollbacks. Go on with a lower "
            "--learning_rate, a larger --rollback_window or more --max_rollbacks, or look for what is wrong in the data"
        )
    checkpoints.go_back(spike, limits.rollback_margin)
    step, consumed = int(run.progress.step), int(run.progress.consumed_samples)
    before, after = max(spike - 1 - limits.rollback_margin, step), spike - 1 + limits.rollback_window
    # A checkpoint from before the last rollback does not have its window.
    run.left_out = left_out.without(*(timeline.samples_after(each - step, consumed) for each in (before, after)))
    first, stop = run.left_out.windows[-1]
    reporter.rollback(done, RollbackRow(step, number, spike, first, stop - 1))
    health.go_back()
    for observer in observers:
        observer.go_back(step)
