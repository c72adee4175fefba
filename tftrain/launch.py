"""Trains a model on several ranks, on this host or on several hosts.

Example, after the example of tftrain.prepare:
    python -m tftrain.launch -np 2 --data_dir=data/try --num_hidden_layers=2 --hidden_size=64 --num_attention_heads=2
    --max_steps=100 --output_dir=runs/two

It takes the flags of `tftrain.run`, refuses wrong ones before a rank starts, and ends with the run's own exit code, see
`tftrain.host.exit_codes`. A signal that ends a session, such as SIGINT (Ctrl-C), SIGTERM or SIGHUP, goes to the ranks,
which save and end; a second SIGINT or SIGTERM ends everything at once.
"""

import dataclasses
import os
import signal
import sys
from collections.abc import Sequence

from tftrain import run
from tftrain.cli import flagfile, flags, help
from tftrain.cli.program import guarded
from tftrain.config.fields import ConfigError, Problem, joined, sections
from tftrain.config.parallel import BatchConfig, ParallelConfig
from tftrain.config.train import TrainConfig
from tftrain.host import log
from tftrain.host.exit_codes import ExitCode, RunError
from tftrain.inputs import initial_weights
from tftrain.inputs.inputs import Inputs
from tftrain.launching.config import LaunchConfig, split
from tftrain.launching.layouts import Layouts
from tftrain.parallel.launcher import Launch
from tftrain.plan import choice, machine
from tftrain.plan.commands import freed
from tftrain.plan.config import PlanConfig, PlanFlags
from tftrain.plan.forecast import of_run
from tftrain.plan.system import systems
from tftrain.state import checkpoint_flags

PROGRAM = "tftrain.launch"
# A rank that does not save in time ends itself; the launcher waits a little longer.
MARGIN_SECONDS = 20
GLOO_TIMEOUT_SECONDS = 30


def main(argv: Sequence[str]) -> int:
    """Starts ranks as the command line says and returns the exit code of the run."""
    log.configure(program=PROGRAM)
    help.answer([PROGRAM, *argv[1:]], [LaunchConfig(), *sections(TrainConfig())])
    options, args, problems = split(argv[1:])
    config, misread, _ = flags.read(LaunchConfig, [PROGRAM, *options])
    problems = joined([*problems, *misread], config.problems())
    try:
        return guarded(PROGRAM, lambda: launch(config, args, problems))
    except KeyboardInterrupt:
        return ExitCode.SIGNALLED + signal.SIGINT


def launch(config: LaunchConfig, args: Sequence[str], problems: Sequence[Problem]) -> int:
    """Starts the ranks of a run with these flags and returns its exit code; `problems` are of the launcher's options.

    Raises a ConfigError if there are problems or the flags of the run have some, and a LaunchError if the ranks can't
    be started.
    """
    args, in_files = flagfile.expand([PROGRAM, *args])
    misread = [*in_files, *flags.read(TrainConfig, args)[1]]
    if problems:
        raise ConfigError([*problems, *misread])
    try:
        from tftrain.launching import hosts
    except ImportError as error:
        raise RunError(f"Horovod can't be imported ({error}): see python -m tftrain docs cluster") from error
    log.configure(level="debug" if config.verbose else "info", program=PROGRAM)
    try:
        places = hosts.assign(config)
    except ConfigError as error:
        raise ConfigError([*error.problems, *misread]) from error
    if config.layout == "given":
        return start(config, places, args, in_files)
    layouts = layouts_of(config, places, args, in_files)
    if flags.read(TrainConfig, args)[0].data.phases:  # The micro-batch of the longest may not divide other batches.
        args = [*args, "--fit_micro_batch"]
    while (code := start(config, places, [*args, *layouts.arguments()], in_files, layouts)) is None:
        pass
    return code


def start(
    config: LaunchConfig, places: Sequence, args: list[str], in_files: list[Problem], layouts: Layouts | None = None
) -> int | None:
    """Starts the ranks with these flags and returns the exit code of the run; None to start again, see `job.run`.

    `places` are the hosts with their ranks, `in_files` the problems of the flagfiles. For the errors, see `launch`.
    """
    from tftrain.launching import job

    size, has_rank_0 = sum(len(host.slots) for host in places), places[0].is_local
    if has_rank_0:  # It has the data and the output folder.
        completed, misread = run.read(args)
        inputs = Inputs.open(completed.config, completed.initial)
        problems = run.all_problems(completed.config, [*in_files, *misread], inputs, Launch(size=size))
    else:  # The weights decide what the model is, also where only the host of rank 0 is sure to see them.
        train_config, misread, named = flags.read(TrainConfig, args)
        train_config, _, _ = initial_weights.with_model_of_weights(train_config, named)
        completed = checkpoint_flags.Completed(train_config, None, {})
        # A flag that is not given may come from a checkpoint, which only the host of rank 0 is sure to see.
        stated = [problem for problem in train_config.problems(size) if problem.value is not None]
        problems = joined([*in_files, *misread], stated)
    if problems:
        raise ConfigError(completed.explain(problems))
    timeout = os.environ.get("HOROVOD_GLOO_TIMEOUT_SECONDS", "")
    gloo_timeout = int(timeout) if timeout.isdecimal() else GLOO_TIMEOUT_SECONDS
    limits = job.Limits(
        save=completed.config.limits.preempt_save_seconds + MARGIN_SECONDS, connected=gloo_timeout + MARGIN_SECONDS
    )
    # Each rank gets the flags that were checked here, also where a flagfile is a pipe or not on its host.
    command, server = ([sys.executable, "-m", f"tftrain.{name}", *args[1:]] for name in ("run", "rank_server"))
    return job.run(places, command, config, limits, server if config.fork_ranks else None, layouts)


def layouts_of(config: LaunchConfig, places: Sequence, args: list[str], in_files: list[Problem]) -> Layouts:
    """Chooses the layout of a run: that of its checkpoint on as many ranks as before, else the fastest that fits.

    Raises a ConfigError if the flags, the hosts or the data are wrong, or if nothing fits; and a RunError if the data
    can't be read.
    """
    from tftrain.launching import local_machine

    local_machine.check(places)
    size, named = sum(len(host.slots) for host in places), flags.read(TrainConfig, args)[2]
    completed, problems = run.read(args)
    free = freed(completed.config, named)
    if free.run.mode != "train":
        raise ConfigError([Problem("layout", "auto", f"remove this flag with --mode={free.run.mode}")])
    undivided = free.change_phases(
        lambda phase: dataclasses.replace(phase, batch=BatchConfig(), parallel=ParallelConfig())
    )
    inputs = Inputs.open(undivided, completed.initial)
    if problems := run.all_problems(undivided, [*in_files, *problems], inputs, Launch(size=size)):
        raise ConfigError(completed.explain(problems))
    cluster = local_machine.cluster_of(config, places, free.run.machine_file)
    constants, own = systems()[machine.default_system(cluster, "tftrain")], PlanFlags(nodes=len(places))
    if free.data.phases:  # Each has a batch of its own.
        named |= {"global_batch_size"}
    longest, whole = (PlanConfig(**vars(each), plan=own) for each in (inputs.with_sizes(free).longest_phase, free))
    request = choice.Request(longest, named, cluster, constants, whole if free.data.phases else None)
    kept = None
    if completed.path and checkpoint_flags.ranks_of(completed.path) == size:
        kept = of_run(inputs.with_sizes(completed.config.resolve(size)).longest_phase, size, cluster, constants)
    return Layouts(request, kept)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
