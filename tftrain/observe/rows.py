"""The rows of metrics.jsonl, a class for each kind, and the lines of the log that show them.

Each row has two lines: a short one for a terminal, which with the time of day before it takes about 120 columns, and a
whole one in the manner of Megatron-LM.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from tftrain.host.units import shown
from tftrain.state.run_state import Evaluation
from tftrain.tasks.task import Mean


@dataclass(frozen=True)
class TrainRow:
    """One logged training step; the means are over the steps since the row before it.

    Times and rates leave out steps that compile, but a row of the first step alone has the time of its compilation;
    they are NaN if no step remains. Rates are totals over all ranks.
    """

    step: int  # updates so far, skipped ones included
    loss: float | None  # nats, the sum of the means that are losses
    means: dict[str, float | None]  # the task's that training reports, by name; None, like the loss, for none predicted
    learning_rate: float  # as the next three, this step's
    grad_norm: float  # unscaled, before clipping
    loss_scale: float
    global_batch_size: int
    consumed_samples: int  # since the first step, over all ranks
    consumed_tokens: int  # likewise
    step_time_s: float
    samples_per_sec: float
    tokens_per_sec: float
    real_samples_per_sec: float  # examples; more than samples_per_sec where several are packed into a sample
    real_tokens_per_sec: float  # tokens that are not padding
    utilisation: float  # share of positions that are not padding
    tflops_per_device: float  # 1e12 operations a second on each rank's device
    mfu: float | None  # share of the device's peak rate, None where that is unknown
    peak_memory_gb: float  # GB of 1e9 bytes on the fullest rank
    peak_memory_rank: int  # which rank that is
    skipped_steps: int  # updates left out since the first step, because loss or gradient was not finite, or a spike
    nan_steps: int  # those of them that no smaller loss scale would have made finite
    failed_saves: int  # checkpoints that could not be written, since the run was started
    phase: int  # number of that of `--phases`, from 1; 1 in a run without phases
    max_seq_length: int  # tokens of a sample, padding included


@dataclass(frozen=True)
class EvalRow:
    """One evaluation of the held-out split after `step` updates."""

    step: int
    means: dict[str, float | None]  # the task's that evaluations report, by name with "eval_" before it; losses in nats
    eval_unigram_nats: float | None  # entropy of the split's token frequencies; None if the task predicts no tokens
    # The scorer's scores, or the losses of a mixture's sources, by name with "eval_" before it.
    scores: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class MemoryRow:
    """The memory of the rank `memory_rank`, the fullest, `step` updates after the start; once in a run.

    `kinds` has `memory_KIND_bytes` of each of `tftrain.observe.memory.KINDS` and of their sum, the peak: the most held
    so far. baseline was held before the model was built. weights, master_weights and moments are the state, from its
    variables; checkpoint_copy is that of the state for saves while training goes on, 0 on a GPU, where the host has it.
    gradients, accumulation and communication are by the planner's formulas, activations are what is left of the peak,
    temporaries too.
    """

    step: int
    memory_rank: int
    kinds: dict[str, int]


@dataclass(frozen=True)
class PlannedRow:
    """The planner's prediction for the step of `MemoryRow`; once in a run."""

    step: int
    kinds: dict[str, int]  # `planned_KIND_bytes` of the fullest rank, see `MemoryRow`
    planned_step_time_s: float | None  # None where there are no measurements of the device
    measured_step_time_s: float  # mean over the steps since the last logged one that did not compile; NaN if none


@dataclass(frozen=True)
class SpikeRow:
    """A step whose loss (nats) or gradient norm was unusual; z-scores say how far each lies above its recent mean."""

    step: int
    spike_loss: float
    spike_loss_zscore: float
    spike_grad_norm: float
    spike_grad_norm_zscore: float
    spike_skipped: int = 0  # 1 if the step made no update


@dataclass(frozen=True)
class RollbackRow:
    """A return to the checkpoint of `step`, after a spike in a later step."""

    step: int
    rollbacks: int  # so far, this one included
    rollback_spike_step: int  # the step of the spike
    rollback_first_position: int  # the first of the window that is left out, in the order of the data
    rollback_last_position: int  # the last one


Row = TrainRow | EvalRow | MemoryRow | PlannedRow | SpikeRow | RollbackRow
FIELDS = {each.name for row in get_args(Row) for each in dataclasses.fields(row) if get_origin(each.type) is not dict}


def bytes_of(prefix: str, kinds: dict[str, int]) -> dict[str, int]:
    """Returns the fields of bytes by kind, and of their sum, the peak; `prefix` is memory or planned."""
    return {f"{prefix}_{kind}_bytes": size for kind, size in (*kinds.items(), ("peak", sum(kinds.values())))}


def of_evaluation(number: int, means: Sequence[Mean], result: Evaluation) -> EvalRow:
    """Returns the row of the result of an evaluation after step `number`; `means` are the task's."""
    names = [mean.name for mean in means if mean.in_evaluation]
    scores = {f"eval_{name}": score for name, score in result.scores.items()}
    return EvalRow(number, {f"eval_{name}": result.means[name] for name in names}, result.unigram_nats, scores)


def fields(row: Row) -> dict[str, Any]:
    """Returns the fields of a row as metrics.jsonl has them: the means stand beside the others."""
    fields = {}
    for name, value in dataclasses.asdict(row).items():
        fields |= value if isinstance(value, dict) else {name: value}
    return fields


def train_line(row: TrainRow, max_steps: int, means: Sequence[Mean]) -> str:
    """Returns the log line of a training step, in the manner of Megatron-LM; `means` are the task's."""
    losses = [f"{mean.label}: {shown(row.means[mean.name])}" for mean in means if mean.is_loss]
    parts = [
        f"iteration {row.step:8d}/{max_steps:8d}",
        f"consumed samples: {row.consumed_samples:12d}",
        f"consumed tokens: {row.consumed_tokens:14d}",
        f"elapsed time per iteration (s): {row.step_time_s:.3f}",
        f"learning rate: {row.learning_rate:.3E}",
        f"global batch size: {row.global_batch_size:5d}",
        *losses,
        *(f"{name}: {mean:.4f}" for name, mean in row.means.items() if "/" in name),
        f"loss scale: {row.loss_scale:.1f}",
        f"grad norm: {row.grad_norm:.3f}",
        f"skipped iterations: {row.skipped_steps:3d}",
        f"nan iterations: {row.nan_steps:3d}",
        f"failed saves: {row.failed_saves:3d}",
        f"samples per second: {row.samples_per_sec:.1f}",
        f"real samples per second: {row.real_samples_per_sec:.1f}",
        f"utilisation: {row.utilisation:.1%}",
        f"TFLOPs: {row.tflops_per_device:.3f}",
        f"peak memory (GB): {row.peak_memory_gb:.2f} (rank {row.peak_memory_rank})",
    ]
    return " | ".join(parts)


def eval_line(row: EvalRow, max_steps: int, means: Sequence[Mean]) -> str:
    """Returns the log line of an evaluation, with its loss and the unigram entropy."""
    loss, *others = [mean for mean in means if mean.in_evaluation]
    value, unigram = row.means[f"eval_{loss.name}"], row.eval_unigram_nats
    known = unigram is not None and value is not None
    entropy = [f"unigram entropy: {unigram:.4f}", f"learned from context: {unigram - value:.4f}"] if known else []
    parts = [
        f"held-out at {row.step:7d}/{max_steps:8d}",
        f"{loss.label}: {shown(value)}",
        *entropy,
        *(f"{mean.label}: {shown(row.means[f'eval_{mean.name}'])}" for mean in others),
        *(f"{name.removeprefix('eval_')}: {score:.4f}" for name, score in row.scores.items()),
    ]
    return " | ".join(parts)


def spike_line(row: SpikeRow, max_steps: int) -> str:
    """Returns the log line of a step that was unusual."""
    parts = [
        f"spike at {row.step:10d}/{max_steps:8d}",
        f"loss: {row.spike_loss:.4f} ({row.spike_loss_zscore:+.1f} standard deviations)",
        f"grad norm: {row.spike_grad_norm:.3f} ({row.spike_grad_norm_zscore:+.1f})",
        *(["the update is skipped"] if row.spike_skipped else []),
    ]
    return " | ".join(parts)


def rollback_line(row: RollbackRow, most: int) -> str:
    """Returns the line of a rollback, one of at most `most`."""
    window = f"positions {row.rollback_first_position} to {row.rollback_last_position} of the data"
    after = f"after a spike in step {row.rollback_spike_step}"
    return f"rollback {row.rollbacks} of {most} to step {row.step} {after}: {window} are left out"


def short_train_line(row: TrainRow, max_steps: int, means: Sequence[Mean], seconds_left: float) -> str:
    """Returns the short line of a training step; of a loss that is the sum of several `means`, these follow it."""
    losses = [f"{mean.short_label} {shown(row.means[mean.name], 3)}" for mean in means if mean.is_loss]
    losses += [f"{name.partition('/')[2]} {shown(mean, 3)}" for name, mean in row.means.items() if "/" in name][:8]
    parts = [
        _short_step(row.step, max_steps),
        f"loss {shown(row.loss)}" + (f" ({' '.join(losses)})" if len(losses) > 1 else ""),
        f"lr {row.learning_rate:.1e}",
        f"{_rate(row.samples_per_sec)} samples/s",
        f"{_rate(row.real_tokens_per_sec)} tok/s",
        f"{row.peak_memory_gb:.{2 if row.peak_memory_gb < 100 else 0}f} GB",
        f"eta {duration(seconds_left)}",
    ]
    return "  ".join([*parts, f"skipped {row.skipped_steps}"] if row.skipped_steps else parts)


def short_eval_line(row: EvalRow, max_steps: int, means: Sequence[Mean]) -> str:
    """Returns the short line of an evaluation; `means` are the task's."""
    loss, *others = [mean for mean in means if mean.in_evaluation]
    single = sum(mean.is_loss for mean in means) == 1
    parts = [
        _short_step(row.step, max_steps, with_total=False),
        f"eval {'loss' if single else loss.short_label} {shown(row.means[f'eval_{loss.name}'])}",
        *([] if row.eval_unigram_nats is None else [f"unigram {row.eval_unigram_nats:.4f}"]),
        *(f"{mean.label} {shown(row.means[f'eval_{mean.name}'])}" for mean in others),
        *(f"{name.removeprefix('eval_')} {score:.4f}" for name, score in row.scores.items()),
    ]
    return "  ".join(parts)


def short_spike_line(row: SpikeRow, max_steps: int) -> str:
    """Returns the short line of a step that was unusual; z-scores in standard deviations (sd)."""
    parts = [
        _short_step(row.step, max_steps),
        f"spike: loss {row.spike_loss:.4f} ({row.spike_loss_zscore:+.1f} sd)",
        f"grad norm {row.spike_grad_norm:.3f} ({row.spike_grad_norm_zscore:+.1f} sd)",
        *(["skipped"] if row.spike_skipped else []),
    ]
    return "  ".join(parts)


def _rate(value: float) -> str:
    """Returns a rate with at least three digits, in thousands (k) or millions (M), and a dash if it is not known."""
    if not math.isfinite(value):
        return "-"
    size, unit = next(each for each in ((1e6, "M"), (1e3, "k"), (1, "")) if value >= 9.995 * each[0] or each[0] == 1)
    return f"{value / size:.{0 if value >= 100 * size else 1}f}{unit}"


def _short_step(step: int, max_steps: int, with_total: bool = True) -> str:
    return f"step {step:{len(str(max_steps))}d}" + (f"/{max_steps}" if with_total else "")


def duration(seconds: float) -> str:
    """Returns seconds as hours:minutes:seconds, as days from 100 hours on, and as a dash if they are not known."""
    if not math.isfinite(seconds):
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours < 100 else f"{hours / 24:.1f} days"
