"""Trains or evaluates a model on one rank; tftrain.launch starts several ranks.

Example, after the example of tftrain.prepare:
    python -m tftrain.run --data_dir=data/try --num_hidden_layers=2 --hidden_size=64 --num_attention_heads=2
    --max_steps=100 --output_dir=runs/try
"""

import contextlib
import dataclasses
import logging
import os
import signal
import sys
from collections.abc import Iterator

from tftrain.architecture.describe import describe
from tftrain.cli import flags
from tftrain.cli.program import guarded
from tftrain.config import combinations, param_groups
from tftrain.config.compute import ComputeConfig
from tftrain.config.fields import ConfigError, Problem, flag_values, joined
from tftrain.config.train import TrainConfig
from tftrain.files.run_lock import RunLock
from tftrain.host import determinism, hardware, huge_pages, log
from tftrain.inputs import initial_weights
from tftrain.inputs.inputs import Inputs
from tftrain.parallel import slurm
from tftrain.parallel.launcher import Launch, launch_from_environment, unknown_launcher
from tftrain.parallel.rendezvous import value_of_rank_0
from tftrain.plan import memory_limit
from tftrain.state import checkpoint_flags, located, resume_compatibility
from tftrain.supervise import elastic

logger = logging.getLogger("tftrain.run")

# A supervisor starts a new child when the chief of the last ranks may still be ending, perhaps on another host.
LINGER_SECONDS = 30.0
LOW_MEMORY_XLA = "--xla_cpu_enable_concurrency_optimized_scheduler=false"
NO_CUDA_GRAPHS = "--xla_gpu_enable_command_buffer="
CUBLAS_LT = "--xla_gpu_enable_cublaslt=true"  # Biases become epilogues of products; later versions of XLA have it on.

# Sums of 8 MB begin early in backward. Ranks time products by themselves: if one took Triton's kernel and another
# cuBLAS's, the sums of their programs could have two orders, and would wait for each other for ever.
SUMS_OF_XLA = ("--xla_gpu_all_reduce_combine_threshold_bytes=8388608", "--xla_gpu_enable_triton_gemm=false")


def main(argv: list[str]) -> int:
    """Runs what the command line says and returns the exit code."""
    is_program = __name__ == "__main__"
    launch = launch_from_environment()
    if (is_program or launch.is_forked) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # It ends the process at once, without a traceback.
    log.configure(launch.rank, host=launch.host())
    return guarded("tftrain.run", lambda: _main(argv, launch, is_program), launch.rank)


def _main(argv: list[str], launch: Launch, is_program: bool) -> int:
    completed, problems = read(elastic.arguments(argv, os.environ))
    given = completed.config
    if is_program and not problems and elastic.supervises(given.problems, os.environ):
        return elastic.supervise(given.run, given.log.log_level, given.compute, given.problems, os.environ)
    config, inputs = checked(completed, problems, launch)
    log.configure(launch.rank, config.log.log_level, host=launch.host())
    prepare_process(config.compute, may_restart=is_program)
    if completed.line:
        logger.info(completed.line)
    os.environ.update(slurm.connect(launch))
    for line in filter(None, [unknown_launcher(), *hardware.tight_limits()] if launch.rank == 0 else []):
        logger.warning(line)
    with contextlib.ExitStack() as until_end:
        if config.run.mode == "train":
            until_end.enter_context(locked(config.run.folder, launch))
        # TensorFlow takes seconds to load: wrong flags were refused before this line.
        with log.loading():
            from tftrain.train import process
        return process.run(config, inputs, launch)


def read(argv: list[str]) -> tuple[checkpoint_flags.Completed, list[Problem]]:
    """Returns the flags of a command line and of its checkpoint or weights, and problems. Raises ConfigError."""
    config, problems, named = flags.read(TrainConfig, argv)
    given, (config, of_addresses) = flag_values(config), located.with_local_folders(config)
    if of_addresses:  # Flags that the checkpoint there supplies would count as missing.
        raise ConfigError([*problems, *of_addresses])
    completed = checkpoint_flags.with_flags_of_checkpoint(config, named, [given[name] for name in named])
    config, of_weights, initial = initial_weights.with_model_of_weights(completed.config, named)
    return completed._replace(config=config, initial=initial), joined(problems, of_weights)


def checked(
    completed: checkpoint_flags.Completed, problems: list[Problem], launch: Launch
) -> tuple[TrainConfig, Inputs]:
    """Returns the configuration that a run takes, given what `read` returned, and what it reads.

    The configuration is resolved, with the sizes of the data. Raises a ConfigError with every reason not to start; or a
    RunError if the data can't be read, or if the class of a custom task can't be used.
    """
    inputs = Inputs.open(completed.config, completed.initial)
    if problems := all_problems(completed.config, problems, inputs, launch):
        raise ConfigError(completed.explain(problems))
    inputs, config = inputs.resolved(completed.config.resolve(launch.size))
    if config.model.is_custom:  # Its class loads TensorFlow.
        prepare_process(config.compute, may_restart=False)
        with log.loading():
            from tftrain.tasks import with_class
        try:
            config = with_class(config)
        except ConfigError as error:
            raise ConfigError(completed.explain(error.problems)) from error
    if problems := inputs.batch_problems(config.batch.global_batch_size):
        raise ConfigError(completed.explain(problems))
    if problems := memory_limit.problems(config, launch.size, launch.local_size, launch.is_forked):
        raise ConfigError(problems)
    if groups := config.optimizer.param_groups:
        names = [each.name for each in describe(config.model).variables()]
        if problems := param_groups.problems(groups, names):
            raise ConfigError(problems)
    return config, inputs


@contextlib.contextmanager
def locked(output_dir: str, launch: Launch) -> Iterator[None]:
    """Locks the output folder on the chief inside a `with` statement.

    Raises a ConfigError if another run has it, on every rank that can learn it. Without the launcher's store only the
    chief knows, and the launcher ends the other ranks when the chief has ended.
    """
    lock, holder = RunLock(output_dir), ""
    if launch.rank == 0:
        holder = lock.acquire(LINGER_SECONDS if elastic.PARENT in os.environ else 0.0) or ""
    if holder := value_of_rank_0(launch, "holder_of_output_dir", holder):
        expected = f"another run writes there: {holder}; wait for its end, stop it, or name another folder"
        raise ConfigError([Problem("output_dir", output_dir, expected)])
    try:
        yield
    finally:
        lock.release()


def prepare_process(compute: ComputeConfig, may_restart: bool) -> None:
    """Sets what must be set before TensorFlow is loaded; restarts the process for huge pages if it may."""
    has_gpu = hardware.has_driver()
    if may_restart and compute.huge_pages and not has_gpu:
        huge_pages.restart()
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    # XLA on the CPU starts every operation as early as it can, recomputation too, which then saves no memory.
    defaults = {LOW_MEMORY_XLA: compute.activation_checkpointing != "none", CUBLAS_LT: has_gpu}
    defaults |= dict.fromkeys(SUMS_OF_XLA, has_gpu and compute.gradient_transport == "xla")
    for flag, is_due in defaults.items():
        given = os.environ.get("XLA_FLAGS", "")
        if is_due and flag.partition("=")[0] not in given:
            os.environ["XLA_FLAGS"] = f"{flag} {given}"
    if not compute.cuda_graphs:  # The last value of a flag counts.
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {NO_CUDA_GRAPHS}".strip()
    if compute.deterministic:
        os.environ.update(determinism.variables(os.environ))
    # Without a GPU, TensorFlow reports that as an error.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2" if has_gpu else "3")


def all_problems(config: TrainConfig, misread: list[Problem], inputs: Inputs, launch: Launch) -> list[Problem]:
    """Returns every reason not to start; each check returns at most one entry for a flag.

    `misread` has the problems of flags that could not be read; the configuration has the defaults in their place. Only
    the chief checks the output folder.
    """
    problems = joined(misread, config.problems(launch.size))
    wrong = {problem.flag for problem in problems}
    # The data is checked only if the flags that name it are valid.
    of_data = {field.name for part in (config.data, config.fine_tuning) for field in dataclasses.fields(part)}
    if wrong.isdisjoint({*of_data, "task"}):
        problems = joined(problems, inputs.problems())
    problems += resume_compatibility.flag_problems(config.checkpoint.change_on_resume)
    if config.compute.deterministic and (conflict := determinism.conflict(os.environ)):
        problems.append(Problem("deterministic", True, conflict))
    if not hardware.has_driver():
        problems = joined(problems, combinations.check_host(config.model, config.compute, config.run.mode))
    if launch.rank == 0 and config.run.folder and wrong.isdisjoint({"output_dir", "local_dir", "resume"}):
        unwritable = located.output_problems(config.run) if config.run.mode == "train" else []
        unresumable = [] if unwritable else checkpoint_flags.problems(config.run, config.checkpoint.resume)
        if unresumable:  # A flag that is not given would have come from the checkpoint.
            problems = [problem for problem in problems if problem.value is not None]
        problems += unwritable + unresumable
    return problems


if __name__ == "__main__":
    sys.exit(main(["tftrain.run", *sys.argv[1:]]))
