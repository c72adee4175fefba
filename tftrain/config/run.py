"""Sections of `TrainConfig` on a run itself: what it does, reports, evaluates and saves, and what ends it."""

from dataclasses import dataclass

from tftrain.config.fields import WEIGHTS, flag
from tftrain.host.log import LEVELS

# Name -> the package that it needs.
TRACKERS = {"tensorboard": "", "csv": "", "wandb": "wandb", "mlflow": "mlflow"}


@dataclass(frozen=True)
class LogConfig:
    """What a run reports, and how often."""

    ON_RESUME = "free"

    log_every: int = flag(10, "Steps between log lines.", minimum=1)
    log_format: str = flag("short", choices=("short", "megatron"), on_resume="local")
    """Format of the log lines. short: one short line for each logged step. megatron: the whole line in the manner of
    Megatron-LM, which is always written to OUTPUT_DIR/log.txt."""
    report_to: tuple[str, ...] = flag(("tensorboard",), on_resume="local")
    """Trackers of the rows of metrics.jsonl: tensorboard, csv, wandb, mlflow; use commas, or repeat the flag."""
    trace_pipeline: bool = flag(False)
    """Draw each stage's actions in time, and below the plan: OUTPUT_DIR/pipeline.png, .json for chrome://tracing."""
    trace_memory: bool = flag(False)
    """Draw the memory of the fullest rank over the third step, measured and planned: OUTPUT_DIR/memory.png."""
    plot_schedule: bool = flag(False, on_resume="local")
    """Draw the learning rate and a growing batch of the whole run before it begins: OUTPUT_DIR/schedule.png."""
    log_level: str = flag("info", "Least important messages to print.", choices=LEVELS, on_resume="local")

    @property
    def reports(self) -> list[str]:
        """The names in `report_to`."""
        return list(dict.fromkeys(name for given in self.report_to for name in given.split(",") if name))


@dataclass(frozen=True)
class EvaluationConfig:
    """Evaluations while training, on the held-out split."""

    ON_RESUME = "free"

    eval_every: int = flag(0, "Steps between evaluations; 0: only at the end; -1: never.", minimum=-1, common=True)
    eval_examples: int = flag(0, "Held-out examples of an evaluation, the first ones of the split; 0: all.", minimum=0)
    weights: str = flag("trained", "Weights to evaluate. averaged: the moving average of --ema_decay.", choices=WEIGHTS)


@dataclass(frozen=True)
class CheckpointConfig:
    """When checkpoints are written, how many are kept, and which one a run resumes from."""

    ON_RESUME = "free"

    checkpoint_every: int = flag(0, minimum=0, common=True)
    """Steps between checkpoints, beside --checkpoint_minutes; 0: none by steps."""
    checkpoint_minutes: float = flag(30.0, minimum=0)
    """Minutes between checkpoints, beside --checkpoint_every; 0: none by time."""
    checkpoint_async: bool = flag(True)
    """Copy the state in memory and write the copy in the background, while training continues. On a CPU there is a copy
    only with --checkpoint_every: for a checkpoint by time, training waits for the disk."""
    memory_checkpoint_steps: int = flag(0, minimum=0)
    """Steps between copies of the state in the memory of the hosts; 0: none. Each copy is on two hosts. After the death
    of a rank or a host, the next start continues from the newest copy."""
    keep_last: int = flag(3, "Number of newest checkpoints to keep; older ones are removed.", minimum=1)
    keep_every: int = flag(0, "Also keep checkpoints whose step is a multiple of this number; 0: none.", minimum=0)
    max_failed_saves: int = flag(3, "Number of failed saves in a row that ends the run.", minimum=1)
    resume: str = flag("auto", names="path", on_resume="local")
    """Checkpoint to start from. auto: the newest valid one in --output_dir. none: no checkpoint. best: the one with the
    best score, in fine-tuning. Or the path of a checkpoint."""
    resume_check: str = flag("xxh3_128", choices=("xxh3_128", "sha256"), on_resume="local")
    """Digest that verifies each file. xxh3_128 detects damage; sha256 is slower, and detects deliberate changes too."""
    change_on_resume: str = flag("", on_resume="local")
    """Flags, separated by commas, that may differ from the checkpoint's although they change the remaining steps."""

    def saves_before(self, max_steps: int) -> bool:
        """Returns whether a run of so many steps may have a checkpoint before that of its end."""
        return 0 < self.checkpoint_every < max_steps or self.checkpoint_minutes > 0

    def keeps_copy(self, max_steps: int) -> bool:
        """Returns whether to hold a copy of the state in memory, so that training continues during a write.

        Checkpoints by time alone are too rare to be worth the memory.
        """
        return self.checkpoint_async and 0 < self.checkpoint_every < max_steps

    def copies(self, max_steps: int) -> int:
        """Returns how many copies of what it saves a rank holds: one for checkpoints, and two slots in memory."""
        return self.keeps_copy(max_steps) + 2 * (self.memory_checkpoint_steps > 0)


@dataclass(frozen=True)
class LimitsConfig:
    """Time limits, bad numbers and memory: what ends a run, or refuses it."""

    ON_RESUME = "free"

    start_timeout_seconds: float = flag(3600, above=0)
    """Time limit for connecting, for restoring a checkpoint, and for a step that compiles."""
    step_timeout_seconds: float = flag(1800, above=0)
    """Time limit for a step, for reading its batch, for a batch of an evaluation, and for a call of a hook."""
    save_timeout_seconds: float = flag(1800, "Time limit for a checkpoint.", above=0)
    exit_timeout_seconds: float = flag(120, "Time limit for the process to exit after the run has finished.", above=0)
    preempt_save_seconds: float = flag(60, "Time limit to finish the step and save after a signal.", above=0)
    check_memory: bool = flag(True, on_resume="local")
    """Before the start, refuse sizes whose planned memory is far above the memory of this machine or its GPUs."""
    max_nan_steps: int = flag(20, "Steps in a row with a non-finite loss or gradient that end the run.", minimum=1)
    spike_zscore: float = flag(6.0, minimum=0, on_resume="logged")
    """Standard deviations above the recent mean from which a loss or gradient norm is a spike; 0: none is."""
    on_spike: str = flag("log", choices=("log", "skip", "rollback"), on_resume="logged")
    """What a spike does. log: it adds a line to the log. skip: the step makes no update, at most 20 steps in a row.
    rollback: the run goes back to a checkpoint before the spike, and leaves out the samples around it."""
    rollback_margin: int = flag(10, minimum=0, on_resume="logged")
    """Batches before a spike that a rollback also leaves out. It goes back to a checkpoint before them."""
    rollback_window: int = flag(200, minimum=1, on_resume="logged")
    """Batches that a rollback leaves out, from the batch of the spike on."""
    max_rollbacks: int = flag(10, "Number of rollbacks after which another spike ends the run.", minimum=1)


@dataclass(frozen=True)
class RunConfig:
    """What a run does, how long, where, and from which weights and seed."""

    mode: str = flag("train", choices=("train", "evaluate"), on_resume="local", common=True)
    """What the run does: train, or evaluate a checkpoint, the newest or the one that --resume names."""
    output_dir: str | None = flag(None, names="path", on_resume="local", common=True)
    """Folder for checkpoints, metrics.jsonl, log.txt, config.json, TensorBoard events and plots. Or its address, such
    as s3://bucket/run, to which a local folder is uploaded in the background."""
    local_dir: str | None = flag(None, names="path", on_resume="local")
    """Local folder of a run whose --output_dir is an address; by default one in --cache_dir."""
    max_steps: int = flag(1000, "Updates of the whole run.", minimum=1, on_resume="logged", common=True)
    init_checkpoint: str | None = flag(None, names="location", on_resume="local", common=True)
    """Weights to begin with, as FORMAT:PATH, if --output_dir has no checkpoint to continue from. The flags of the model
    follow from the weights. python -m tftrain.convert --help=from lists the formats."""
    init_missing: bool = flag(False, "Give random weights to heads that --init_checkpoint lacks.", on_resume="local")
    hooks: tuple[str, ...] = flag((), on_resume="local")
    """Your own class around the steps, MODULE:CLASS, derived from tftrain.hooks.Hook; repeat the flag for several."""
    machine_file: str = flag("build/machine.json", names="path", on_resume="host")
    """What --measure of tftrain.plan measured here; without it, a run on a CPU reports no planned step time."""
    seed: int = flag(1, minimum=0, maximum=2**31 - 1, on_resume="fixed")
    """Seed of the initial weights, the data order, masking and dropout."""

    @property
    def folder(self) -> str | None:
        """The local folder of the run: output_dir, or that of which it is the copy at an address."""
        return self.local_dir or self.output_dir
