"""OUTPUT_DIR/report.html: a run as one page without other files: curves, throughput, memory, goodput, flags."""

import json
import logging
from pathlib import Path
from typing import Any

from tftrain.config.fields import flag_values
from tftrain.config.train import TrainConfig
from tftrain.host.text import reason
from tftrain.host.units import GB
from tftrain.observe import goodput
from tftrain.observe.metrics import read_good_rows
from tftrain.observe.plot import points, smoothed
from tftrain.page import lines
from tftrain.page.bars import Panel, Series, chart
from tftrain.page.document import document, table, words
from tftrain.page.lines import Curve

logger = logging.getLogger(__name__)

NAME = "report.html"
MOST_SPIKES = 20
FEW = 5  # points of a curve that is not smoothed
MEMORY = (
    Series("measured", "measured", kind="measured"),
    Series("planned", "planned", kind="planned"),
)


def write_or_warn(output_dir: str | Path) -> None:
    """Writes the page of a run; a fault is a line in the log, because the run itself is done."""
    try:
        logger.info(f"report {write(output_dir)}")
    except (OSError, ValueError, ArithmeticError) as error:
        logger.warning(f"there is no {NAME}: {reason(error) if isinstance(error, OSError) else error}")


def write(output_dir: str | Path) -> Path:
    """Writes the page from metrics.jsonl, goodput.json and config.json; returns its path.

    Raises:
        OSError: a file can't be read or written.
        ValueError: a file is damaged; the message names it.
    """
    folder = Path(output_dir)
    rows, damaged = read_good_rows(folder / "metrics.jsonl")
    starts = goodput.read(folder)
    about, flags, summary = _read_config(folder / "config.json")
    last = max((row["step"] for row in rows), default=0)
    parts = [
        f"<p>{words(summary)}</p>",
        *([f'<p class="failed">{len(damaged)} lines of metrics.jsonl are damaged.</p>'] if damaged else []),
        f'<h2>Curves</h2><div class="panels">{"".join(_curves(rows))}</div>',
        *_goodput(starts),
        *_memory(rows),
        *_spikes(rows),
        *_rollbacks(rows),
        "<h2>Flags</h2>",
        _flags(flags),
    ]
    path = folder / NAME
    title = f"{folder.resolve().name}: step {last:,} of {flags['max_steps']:,}"
    path.write_text(document(title, f"run of {about['host']}, {about['device']}", parts), encoding="utf-8")
    return path


def _read_config(path: Path) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Returns the content of config.json, the flags in it, and a line of text about them."""
    try:
        about = json.loads(path.read_bytes())
        about["config"]["run"]["max_steps"] + 0, about["host"], about["device"], about["ranks"] + 0
        flags = {name: value for section in about["config"].values() for name, value in section.items()}
        return about, flags, _summary(about, flags)
    except (ValueError, TypeError, LookupError, RecursionError, AttributeError) as error:
        raise ValueError(f"{path}: expected what a run writes there, not {error}") from error


def _summary(about: dict[str, Any], flags: dict[str, Any]) -> str:
    packages = about.get("packages") or {}
    known = [f"{name} {packages[name]}" for name in ("tensorflow", "horovod") if packages.get(name)]
    sizes = f"{flags.get('num_hidden_layers')} layers of {flags.get('hidden_size')}"
    ranks = f"{about['ranks']} {'rank' if about['ranks'] == 1 else 'ranks'}"
    model = f"{flags.get('model_family')} with {sizes}"
    return ", ".join([model, f"{flags.get('precision')}, {flags.get('optimizer')}", ranks, *known])


def _curves(rows: list[dict]) -> list[str]:
    held_out = next((name for row in rows for name in row if name.startswith("eval_") and name.endswith("_loss")), "")
    # Of a loss with several terms, the one that evaluations have.
    losses = points(rows, held_out.removeprefix("eval_")) or points(rows, "loss")
    shown = [Curve("training", losses, "published")]
    if len(losses) >= FEW:
        steps, values = zip(*losses, strict=True)
        smooth = list(zip(steps, smoothed(values), strict=True))
        shown = [Curve("training", losses, "faint"), Curve("training, smoothed", smooth, "published")]
    shown.append(Curve("held-out", points(rows, held_out), "measured"))
    shown.append(Curve("unigram entropy", points(rows, "eval_unigram_nats"), "edge"))
    scores = {name for row in rows for name in row if name.startswith("eval_")} - {held_out, "eval_unigram_nats"}
    scores = sorted(name for name in scores if "/" not in name and not name.endswith("_loss"))
    return [
        lines.chart("Loss", "nats", shown),
        *(
            lines.chart(name.removeprefix("eval_").replace("_", " "), "held-out", [Curve(name, curve, "measured")])
            for name in scores
            if (curve := points(rows, name))
        ),
        lines.chart(
            "Throughput, all ranks",
            "tokens/s",
            [Curve("without padding", points(rows, "real_tokens_per_sec"), "published")],
            from_zero=True,
        ),
        lines.chart("Norm of the gradient", "before clipping", [Curve("norm", points(rows, "grad_norm"), "published")]),
        lines.chart(
            "Learning rate", "rate", [Curve("rate", points(rows, "learning_rate"), "published")], from_zero=True
        ),
    ]


def _goodput(starts: list[goodput.Start]) -> list[str]:
    seconds = goodput.totals(starts)
    if not seconds:
        return []
    whole = sum(seconds.values())
    records = [{"kind": kind, "share": 100 * value / whole} for kind, value in seconds.items()]
    panel = Panel("Share of the time, %", (Series("share", kind="measured"),), ".1f", " %")
    bars = chart([panel], records, lambda record: (record["kind"], goodput.KINDS[record["kind"]]))
    return ["<h2>Goodput</h2>", f'<p class="note">{words(goodput.words(starts))}.</p>', bars]


def _memory(rows: list[dict]) -> list[str]:
    row = next((row for row in reversed(rows) if "memory_peak_bytes" in row), None)
    if row is None:
        return []
    planned = next((row for row in reversed(rows) if "planned_peak_bytes" in row), {})
    kinds = [name.removeprefix("memory_").removesuffix("_bytes") for name in row if name.startswith("memory_")]
    records = [
        {
            "kind": kind.replace("_", " "),
            "measured": (row[f"memory_{kind}_bytes"] or 0) / GB,
            "planned": (planned.get(f"planned_{kind}_bytes") or 0) / GB,
        }
        for kind in kinds
        if f"memory_{kind}_bytes" in row
    ]
    records = [each for each in records if each["measured"] or each["planned"]]
    bars = chart([Panel("By kind, GB of 1e9 bytes", MEMORY, ".2f")], records, lambda record: (record["kind"], ""))
    return [f"<h2>Memory of the fullest rank, {words(row.get('memory_rank'))}</h2>", bars]


def _spikes(rows: list[dict]) -> list[str]:
    spikes = [row for row in rows if "spike_loss" in row]
    if not spikes:
        return []
    shown = [
        (f"{row['step']:,}", *(f"{row[name]:.4g}" for name in ("spike_loss", "spike_loss_zscore", "spike_grad_norm")))
        for row in spikes[-MOST_SPIKES:]
        if None not in (*row.values(), *map(row.get, ("spike_loss_zscore", "spike_grad_norm")))
    ]
    heads = ("step", "loss", "standard deviations above its mean", "norm of the gradient")
    return [f"<h2>Spikes: {len(spikes)}</h2>", table(heads, ("number",) * 4, shown)]


def _rollbacks(rows: list[dict]) -> list[str]:
    names = ("rollback_spike_step", "step", "rollback_first_position", "rollback_last_position")
    shown = [[f"{row.get(name) or 0:,}" for name in names] for row in rows if "rollbacks" in row]
    heads = ("step of the spike", "back to step", "first position that is left out", "last one")
    return [f"<h2>Rollbacks: {len(shown)}</h2>", table(heads, ("number",) * 4, shown)] if shown else []


def _flags(flags: dict[str, Any]) -> str:
    defaults = flag_values(TrainConfig())
    changed = {name: value for name, value in flags.items() if value != defaults.get(name)}

    def lines_of(values: dict[str, Any]) -> str:
        return table(("flag", "value"), ("text", "text"), [(f"--{name}", words(str(values[name]))) for name in values])

    rest = lines_of({name: value for name, value in flags.items() if name not in changed})
    return f"{lines_of(changed)}<details><summary>flags with their defaults</summary>{rest}</details>"
