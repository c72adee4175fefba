"""Trains or evaluates a model: `python -m tftrain.run --flagfile=configs/X.flags`, alone or under `tftrain.launch`.

Exit codes, of which docs/reliability.md says more:
    0   done
    1   the run failed: data, checkpoint, ranks, or an unexpected exception
    2   wrong flags, or another run writes to --output_dir
    75  a signal (such as SIGTERM, SIGINT, SIGHUP) stopped the run, and the state is saved: start again to continue
    76  not finite: too many steps in a row (--max_nan_steps), the last step or evaluation, or the weights
    77  something took longer than its limit (--start_timeout_seconds, --step_..., --save_..., --exit_...)
    78  too many checkpoints could not be written (--max_failed_saves), or the last one could not
    79  a signal stopped the run, and --preempt_save_seconds were not enough to save
    80  another rank ended; its own exit code gives the reason
    81  TensorFlow could not allocate a tensor: out of memory
    82  another spike of the loss after --max_rollbacks rollbacks
    128 plus the signal's number: a signal ended the process at once; of SIGTERM and SIGINT, the second one does
"""

import dataclasses
import logging
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from tftrain.architecture.describe import describe
from tftrain.cli import flags
from tftrain.config import param_groups, phases
from tftrain.config.fields import ConfigError, Problem
from tftrain.config.run import RunConfig
from tftrain.config.train import TrainConfig
from tftrain.files import addresses, durable
from tftrain.files.errors import data_error
from tftrain.files.run_lock import RunLock
from tftrain.host import determinism, devices, hardware, huge_pages, log, text
from tftrain.host.exit_codes import ExitCode, OutOfMemoryError, RunError
from tftrain.inputs import initial_weights
from tftrain.inputs.inputs import Inputs
from tftrain.observe import memory_limit
from tftrain.parallel import slurm
from tftrain.parallel.launcher import Launch, launch_from_environment, unknown_launcher
from tftrain.parallel.rendezvous import value_of_rank_0
from tftrain.state import checkpoint_flags, located, resume_compatibility
from tftrain.supervise import elastic

logger = logging.getLogger("tftrain.run")

# A supervisor starts a new child when the chief of the last ranks may still be ending, perhaps on another host.
LINGER_SECONDS = 30.0
# The chief prints an error that all ranks raise. A launcher ends all ranks as soon as one has failed.
CHIEF_PRINT_SECONDS = 1.0
LOW_MEMORY_XLA = "--xla_cpu_enable_concurrency_optimized_scheduler=false"


def main(argv: list[str], forked: bool = False) -> int:
    """Runs what the command line says and returns the exit code; `tftrain.rank_server` may have forked this process."""
    if (__name__ == "__main__" or forked) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # It ends the process at once, without a traceback.
    launch = launch_from_environment()
    log.configure(launch.rank, host=launch.host())
    try:
        completed, problems = read(elastic.arguments(argv, os.environ))
        if __name__ == "__main__" and not problems and elastic.supervises(completed.config, os.environ):
            return elastic.supervise(completed.config, os.environ)
        config, inputs = checked(completed, problems, launch, forked)
        log.configure(launch.rank, config.log.log_level, host=launch.host())
        prepare_process(config, may_restart=__name__ == "__main__")
        if completed.line:
            logger.info(completed.line)
        os.environ.update(slurm.connect(launch))
        for line in filter(None, [unknown_launcher(), *hardware.tight_limits()] if launch.rank == 0 else []):
            logger.warning(line)
        lock = RunLock(config.run.folder)
        if config.run.mode == "train" and (problem := lock_problem(lock, config, launch)):
            raise ConfigError([problem])
    except ConfigError as error:
        flags.refuse("tftrain.run", error, launch.rank)
    except RunError as error:
        logger.error(error)
        return error.exit_code
    try:
        return run(config, inputs, launch)
    finally:
        lock.release()


def read(argv: list[str]) -> tuple[checkpoint_flags.Completed, list[Problem]]:
    """Returns the flags of a command line and of its checkpoint or weights, and problems. Raises ConfigError."""
    config, problems, named = flags.read(TrainConfig, argv)
    given, (config, of_addresses) = config, located.with_local_folders(config)
    if of_addresses:  # Flags that the checkpoint there supplies would count as missing.
        raise ConfigError([*problems, *of_addresses])
    completed = checkpoint_flags.with_flags_of_checkpoint(config, named, given)
    config, of_weights, initial = initial_weights.with_model_of_weights(completed.config, named)
    problems += [problem for problem in of_weights if problem.flag not in {each.flag for each in problems}]
    return completed._replace(config=config, initial=initial), problems


def checked(
    completed: checkpoint_flags.Completed, problems: list[Problem], launch: Launch, forked: bool = False
) -> tuple[TrainConfig, Inputs]:
    """Returns the configuration that a run takes, given what `read` returned, and what it reads.

    The configuration is resolved, with the sizes of the data.

    Raises:
        ConfigError: with every reason not to start.
        RunError: the data can't be read, or the class of a custom task can't be used.
    """
    inputs = Inputs.open(completed.config, completed.initial)
    if problems := all_problems(completed.config, problems, inputs, launch):
        raise ConfigError(completed.explain(problems))
    config = inputs.with_sizes(completed.config.resolve(launch.size))
    if config.model.is_custom:  # Its class loads TensorFlow.
        prepare_process(config, may_restart=False)
        with log.native_log_on_failure():
            from tftrain.tasks import with_class
        try:
            config = with_class(config)
        except ConfigError as error:
            raise ConfigError(completed.explain(error.problems)) from error
    if problems := memory_limit.problems(config, launch, forked):
        raise ConfigError(problems)
    if groups := config.optimizer.param_groups:
        names = [each.name for each in describe(config.model).variables()]
        if problems := param_groups.problems(groups, names):
            raise ConfigError(problems)
    return config, inputs


def lock_problem(lock: RunLock, config: TrainConfig, launch: Launch) -> Problem | None:
    """Locks the output folder on the chief; returns why the run may not start, on every rank that can learn it.

    Without the launcher's store, only the chief knows, and the launcher ends the other ranks when the chief has ended.
    """
    holder = ""
    if launch.rank == 0:
        holder = lock.acquire(LINGER_SECONDS if elastic.PARENT in os.environ else 0.0) or ""
    holder = value_of_rank_0(launch, "holder_of_output_dir", holder)
    expected = f"another run writes there: {holder}; wait for its end, stop it, or name another folder"
    return Problem("output_dir", config.run.folder, expected) if holder else None


def prepare_process(config: TrainConfig, may_restart: bool) -> None:
    """Sets what must be set before TensorFlow is loaded; restarts the process for huge pages if it may."""
    has_gpu = hardware.has_driver()
    if may_restart and config.compute.huge_pages and not has_gpu:
        huge_pages.restart()
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    if config.compute.activation_checkpointing != "none" and LOW_MEMORY_XLA not in os.environ.get("XLA_FLAGS", ""):
        # XLA on the CPU starts every operation as early as it can, recomputation too, which then saves no memory.
        os.environ["XLA_FLAGS"] = f"{LOW_MEMORY_XLA} {os.environ.get('XLA_FLAGS', '')}"
    if config.compute.deterministic:
        os.environ.update(determinism.variables(os.environ))
    # Without a GPU, TensorFlow reports that as an error.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2" if has_gpu else "3")


def run(config: TrainConfig, inputs: Inputs, launch: Launch) -> int:
    """Connects the ranks, trains or evaluates with what `checked` returned, and returns the exit code."""
    # TensorFlow takes seconds to load: wrong flags were refused before this line.
    with log.native_log_on_failure():
        import tensorflow as tf

    from tftrain.observe.watchdog import Watchdog
    from tftrain.ops.library import MissingLibraryError
    from tftrain.parallel import collectives, start, tensorflow_cluster
    from tftrain.supervise import peer_failure
    from tftrain.train import evaluate, rank_checks, seeds

    compute = config.compute
    tf.config.experimental.enable_tensor_float_32_execution(compute.tensor_float_32 and not compute.deterministic)
    if compute.deterministic:
        determinism.enable()
    watchdog, code = Watchdog(launch.rank, config.limits, config.run.folder, host=launch.host()), ExitCode.FAILED
    own_codes: list[int] = []  # One code, once this rank has come to its own end.

    def end_after_peer() -> None:
        # Python's own exit takes seconds to free the graphs, and Horovod's may ask the rank that is gone.
        try:
            if not own_codes:
                logger.error(f"another rank ended or can't be reached; its own output says why{watchdog.waiting()}")
                watchdog.tell_end(ExitCode.PEER_ENDED)
            sys.stdout.flush()
        finally:
            os._exit(own_codes[0] if own_codes else ExitCode.PEER_ENDED)

    if launch.size > 1:
        peer_failure.on_uncaught_gloo_error(end_after_peer)
    try:
        with watchdog.limit("connecting the ranks", "start_timeout_seconds"):
            ranks = start.start(launch, compute.cpu_threads, config.parallel)
            watchdog.pending = ranks.pending
            watchdog.stage = ranks.stage if ranks.pipeline_parallel_size > 1 else None
            if launch.size > 1:
                abort = tensorflow_cluster.abort if ranks.tensorflow_kinds else lambda: None
                peer_failure.on_forgotten_collective(lambda: bool(ranks.pending.unfinished()), end_after_peer, abort)
            rank_checks.before_start(config, inputs, ranks)
        if ranks.is_chief and (note := devices.unused_gpu(os.environ)):
            logger.warning(note)
        length = phases.longest(config).data.max_seq_length
        longest = config.model.max_position_embeddings
        if ranks.is_chief and length > longest:
            logger.warning(f"--max_seq_length={length}: converted models will have max_position_embeddings={longest}")
        code = {"train": seeds.train, "evaluate": evaluate.evaluate}[config.run.mode](config, ranks, watchdog, inputs)
    except (RunError, MissingLibraryError, OSError, tf.errors.OpError) as error:
        cause = cause_of(error, config)
        if cause is None and collectives.is_peer_failure(error):
            end_after_peer()
        if cause is None:
            raise
        code = getattr(cause, "exit_code", ExitCode.FAILED)
        if launch.rank == 0 or not getattr(cause, "on_all_ranks", False):
            file = f"{cause.filename}: " if isinstance(cause, OSError) and cause.filename else ""
            logger.error(f"{file}{text.reason(cause)}" if isinstance(cause, OSError) else cause)
        else:
            own_codes.append(int(code))
            time.sleep(CHIEF_PRINT_SECONDS)
    finally:
        own_codes.append(int(code))
        elastic.announce_end(int(code), os.environ)
        watchdog.tell_end(int(code))
        # Horovod's own exit waits for the other ranks.
        watchdog.begin("the end of the process", "exit_timeout_seconds", code or ExitCode.STALLED)
    return code


def cause_of(error: Exception, config: TrainConfig) -> Exception | None:
    """Returns what to tell the user of an error: TensorFlow wraps one in a record in its own; None if it is unknown."""
    import tensorflow as tf

    if not isinstance(error, tf.errors.OpError):
        return error
    lines = str(error).splitlines() if isinstance(error, tf.errors.ResourceExhaustedError) else ()
    if reason := next((line for line in lines if "allocat" in line), ""):  # Else the disk is full.
        advice = (
            "use a smaller --micro_batch_size or --activation_checkpointing; `tftrain.launch --layout=auto` chooses"
        )
        return OutOfMemoryError(f"{text.one_line(reason)}: {advice}")
    return data_error(error) or (determinism.error_of_op(error) if config.compute.deterministic else None)


def all_problems(config: TrainConfig, misread: list[Problem], inputs: Inputs, launch: Launch) -> list[Problem]:
    """Returns every reason not to start; each check returns at most one entry for a flag.

    The configuration has the defaults in the place of flags that could not be read, whose problems are `misread`. Only
    the chief checks the output folder.
    """
    problems = [*misread, *(p for p in config.problems(launch.size) if p.flag not in {m.flag for m in misread})]
    wrong = {problem.flag for problem in problems}
    # The data is checked only if the flags that name it are valid.
    of_data = {field.name for part in (config.data, config.fine_tuning) for field in dataclasses.fields(part)}
    if wrong.isdisjoint({*of_data, "task"}):
        problems += [problem for problem in inputs.problems() if problem.flag not in wrong]
    problems += resume_compatibility.flag_problems(config)
    if config.compute.deterministic and (conflict := determinism.conflict(os.environ)):
        problems.append(Problem("deterministic", True, conflict))
    refused = "attn_impl" in {problem.flag for problem in problems}
    if config.model.attn_impl == "cudnn" and not refused and not hardware.has_driver():
        problems.append(Problem("attn_impl", "cudnn", "expected flash or softmax: this host has no GPU"))
    if launch.rank == 0 and config.run.folder and wrong.isdisjoint({"output_dir", "local_dir", "resume"}):
        unwritable = output_problems(config.run) if config.run.mode == "train" else []
        unresumable = [] if unwritable else checkpoint_flags.problems(config)
        if unresumable:  # A flag that is not given would have come from the checkpoint.
            problems = [problem for problem in problems if problem.value is not None]
        problems += unwritable + unresumable
    return problems


def output_problems(settings: RunConfig) -> list[Problem]:
    """Returns why nothing can be written to a run's folder, which is made if it is not there, or to its address."""
    target = settings.folder
    try:
        os.makedirs(target, exist_ok=True)
        if os.stat(target).st_mode & 0o002:
            logger.warning(f"{target}: every user of this host may write there, and change this run; use chmod o-w")
        durable.probe(Path(target))
        with tempfile.NamedTemporaryFile(dir=target, prefix=".") as file:
            if addresses.is_address(settings.output_dir):
                target = settings.output_dir
                addresses.upload(file.name, probe := addresses.join(target, os.path.basename(file.name)))
                addresses.remove(probe)
            return []
    except OSError as error:
        flag = "output_dir" if target == settings.output_dir else "local_dir"
        what = "an address" if addresses.is_address(target) else "a folder"
        return [Problem(flag, target, f"expected {what} that can be written to: {error.strerror}")]


def with_sizes(config: TrainConfig) -> TrainConfig:
    """Returns the configuration with the sizes and the classes that the data gives."""
    return Inputs.open(config).with_sizes(config)


if __name__ == "__main__":
    sys.exit(main(["tftrain.run", *sys.argv[1:]]))
