"""The training loop: what the programs call with a resolved configuration."""

import logging
from collections.abc import Callable, Iterable, Sequence

from tftrain.config.train import TrainConfig
from tftrain.host.exit_codes import ExitCode, NotFiniteError
from tftrain.inputs.inputs import Inputs
from tftrain.observe.reporter import Clock
from tftrain.observe.watchdog import Watchdog
from tftrain.parallel.mesh import Mesh
from tftrain.state.uploads import Uploads
from tftrain.train.build import Built, build, observers_of
from tftrain.train.observers import Decision, Observer, TakenStep, listen
from tftrain.train.phases import Phases
from tftrain.train.step import Requests

logger = logging.getLogger(__name__)


def train(config: TrainConfig, inputs: Inputs, mesh: Mesh, watchdog: Watchdog | None = None) -> ExitCode:
    """Trains to `max_steps`, from the state that `--resume` selects; writes a checkpoint, metrics and the loss curve.

    The configuration is resolved, with the sizes of the inputs, and the ranks are connected.

    Returns:
        DONE; STOPPED, if a signal asked for the end and the state is saved; FAILED, if a required hook raised too late.

    Raises:
        DataError, CheckpointError, UserCodeError: the message names the file or the class. FailedSavesError, if the
            last upload to an address has failed.
        NotFiniteError: too many steps in a row, the last step, the last evaluation or the state were not finite; on
            every rank.
        UnstableError: a spike after `max_rollbacks` rollbacks.
    """
    watchdog = watchdog or Watchdog(mesh.rank, config.limits, config.run.folder)
    with Uploads(config.run, config.limits.save_timeout_seconds, mesh) as uploads:
        with watchdog.limit("building and restoring the model", "start_timeout_seconds"):
            built = build(config, inputs, mesh, watchdog, uploads)
        code = _train(built, watchdog) if built else ExitCode.DONE
    watchdog.tell_end(code)
    return code


def _train(built: Built, watchdog: Watchdog) -> ExitCode:
    logger.info("compiling the step ...")
    built.checkpoints.prepare()
    with listen(watchdog) as signals, built.checkpoints.saves:
        observers, max_steps = observers_of(built, signals), built.run.whole.run.max_steps
        end = take_steps(built.phases, observers, built.reporter.clock, watchdog, built.done, max_steps)
        codes = [observer.finish() for observer in observers]
    with watchdog.limit("drawing the loss curve", "exit_timeout_seconds", end.exit_code or ExitCode.STALLED):
        built.reporter.close()
    if end.is_stopped:
        saved = "a spike, so that the last checkpoint stays" if end.has_spike else "and the state is saved"
        stopped = f"stopped after step {int(built.run.progress.step)}, {saved}"
        logger.info(f"{stopped}: start the same command again to continue")
    elif built.best:
        logger.info(built.best.describe())
    if built.health.problem and not end.is_stopped:
        raise NotFiniteError(f"the run does not end with finite numbers: {built.health.problem}")
    return end.exit_code or max(codes)


def take_steps(
    phases: Phases, observers: Sequence[Observer], clock: Clock, watchdog: Watchdog, done: int, max_steps: int
) -> Decision:
    """Takes steps until one is the last, and returns what was decided after that one.

    The observers are called in their order. `done` and `max_steps` are the updates before the first step, and after the
    last one.
    """
    number, decision = done, Decision(is_last=done >= max_steps)
    decision = decide([observer.begin for observer in observers], TakenStep(done), decision)
    while not decision.ends:
        number += 1
        with watchdog.limit(f"reading the batch of step {number}", "step_timeout_seconds", kind="data"):
            batch = phases.next_batch()
        size = phases.size(batch)
        compiles = clock.compiles(*size)
        timeout = "start_timeout_seconds" if compiles else "step_timeout_seconds"
        with watchdog.limit(f"step {number}", timeout, kind="compile" if compiles else "steps"):
            requests = Requests(**{name: value for each in observers for name, value in each.request().items()})
            phases.check(batch, requests)
            with clock.step(*size, phases.contents(batch)):
                info = phases.step(batch, requests)
            step = TakenStep(number, info, Requests(*info.requests.numpy().tolist()), phases.ends_with(number))
            after = [observer.after_step for observer in observers]
            decision = decide(after, step, Decision(is_last=number == max_steps))
        with clock.pause():
            decision = decide([observer.between_steps for observer in observers], step, decision)
            if decision.restored is not None:
                number = decision.restored
                for observer in observers:
                    observer.go_back(number)
    return decision


def decide(methods: Iterable[Callable[..., Decision | None]], step: TakenStep, decision: Decision) -> Decision:
    """Returns the decision after methods of observers, each of which knows the decision of those before it."""
    for method in methods:
        decision |= method(step, decision) or Decision()
    return decision
