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
from tftrain.page.bars import BarSeries, Panel, chart
from tftrain.page.document import Grid, Part, document

logger = logging.getLogger(__name__)

NAME = "report.html"
MOST_SPIKES = 20
WORDS = {"mlm": "masked-LM", "nsp": "next-sentence"}  # in titles of scores, for words in metrics.jsonl
FEW = 5  # points of a curve that is not smoothed
MEMORY = tuple(BarSeries(kind, kind, kind=kind) for kind in ("measured", "planned"))


def write_or_warn(output_dir: str | Path) -> None:
    """Writes the page of a run; a fault is a line in the log, because the run itself is done."""
    try:
        logger.info(f"report {write(output_dir)}")
    except (OSError, ValueError, ArithmeticError) as error:
        logger.warning(f"there is no {NAME}: {reason(error) if isinstance(error, OSError) else error}")


def write(output_dir: str | Path) -> Path:
    """Writes the page from metrics.jsonl, goodput.json and config.json; returns its path.

    Raises an OSError if a file can't be read or written, and a ValueError that names the file if it is damaged.
    """
    folder = Path(output_dir)
    rows, damaged = read_good_rows(folder / "metrics.jsonl")
    starts = goodput.read(folder)
    about, flags, summary = _read_config(folder / "config.json")
    last = max((row["step"] for row in rows), default=0)
    damage = f"{len(damaged)} lines of metrics.jsonl are damaged."
    parts = [
        ("text", summary),
        *([("failed", damage)] if damaged else []),
        ("heading", "Curves"),
        ("curves", _curves(rows)),
        *_goodput(starts),
        *_memory(rows),
        *_spikes(rows),
        *_rollbacks(rows),
        ("heading", "Flags"),
        *_flags(flags),
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


def _curves(rows: list[dict]) -> list[dict[str, Any]]:
    held_out = next((name for row in rows for name in row if name.startswith("eval_") and name.endswith("_loss")), "")
    # If the loss has several terms, the one that evaluations have.
    losses = points(rows, held_out.removeprefix("eval_")) or points(rows, "loss")
    shown = [lines.Curve("training", losses, "published")]
    if len(losses) >= FEW:
        steps, values = zip(*losses, strict=True)
        smooth = list(zip(steps, smoothed(values), strict=True))
        shown = [lines.Curve("training", losses, "faint"), lines.Curve("training, smoothed", smooth, "published")]
    shown.append(lines.Curve("held-out", points(rows, held_out), "measured"))
    shown.append(lines.Curve("unigram entropy", points(rows, "eval_unigram_nats"), "edge"))
    scores = {name for row in rows for name in row if name.startswith("eval_")} - {held_out, "eval_unigram_nats"}
    scores = sorted(name for name in scores if "/" not in name and not name.endswith("_loss"))
    charts = lines.chart("Loss", "nats", shown)
    for name in scores:
        title = " ".join(WORDS.get(word, word) for word in name.removeprefix("eval_").split("_"))
        curve = lines.Curve("held-out", points(rows, name), "measured")
        charts += lines.chart(title[:1].upper() + title[1:], "", [curve])
    throughput = [lines.Curve("without padding", points(rows, "real_tokens_per_sec"), "published")]
    charts += lines.chart("Throughput, all ranks", "tokens/s", throughput, from_zero=True)
    norms = [lines.Curve("norm", points(rows, "grad_norm"), "published")]
    charts += lines.chart("Norm of the gradient, before clipping", "", norms)
    rates = [lines.Curve("rate", points(rows, "learning_rate"), "published")]
    return charts + lines.chart("Learning rate", "", rates, from_zero=True)


def _goodput(starts: list[goodput.Start]) -> list[Part]:
    seconds = goodput.totals(starts)
    if not seconds:
        return []
    whole = sum(seconds.values())
    records = [{"kind": kind, "share": 100 * value / whole} for kind, value in seconds.items()]
    panel = Panel("Share of the time, %", (BarSeries("share", kind="measured"),), ".1f", " %")
    bars = chart([panel], records, lambda record: (record["kind"], goodput.KINDS[record["kind"]]))
    return [("heading", "Goodput"), ("note", f"{goodput.words(starts)}."), ("bars", bars)]


def _memory(rows: list[dict]) -> list[Part]:
    row = next((row for row in reversed(rows) if "memory_peak_bytes" in row), None)
    if row is None:
        return []
    planned = next((row for row in reversed(rows) if "planned_peak_bytes" in row), {})
    names = [name for name in row if name.startswith("memory_") and name.endswith("_bytes")]
    kinds = [name.removeprefix("memory_").removesuffix("_bytes") for name in names]
    records = [
        {
            "kind": kind.replace("_", " "),
            "measured": (row[f"memory_{kind}_bytes"] or 0) / GB,
            "planned": (planned.get(f"planned_{kind}_bytes") or 0) / GB,
        }
        for kind in kinds
    ]
    records = [each for each in records if each["measured"] or each["planned"]]
    bars = chart([Panel("By kind, GB of 1e9 bytes", MEMORY, ".3f")], records, lambda record: (record["kind"], ""))
    return [("heading", f"Memory of the fullest rank, {row.get('memory_rank')}"), ("bars", bars)]


def _spikes(rows: list[dict]) -> list[Part]:
    spikes = [row for row in rows if "spike_loss" in row]
    if not spikes:
        return []
    shown = [
        (f"{row['step']:,}", *(f"{row[name]:.4g}" for name in ("spike_loss", "spike_loss_zscore", "spike_grad_norm")))
        for row in spikes[-MOST_SPIKES:]
        if None not in (*row.values(), *map(row.get, ("spike_loss_zscore", "spike_grad_norm")))
    ]
    heads = ("step", "loss", "standard deviations above its mean", "norm of the gradient")
    return [("heading", f"Spikes: {len(spikes)}"), ("table", Grid(heads, ("number",) * 4, shown))]


def _rollbacks(rows: list[dict]) -> list[Part]:
    names = ("rollback_spike_step", "step", "rollback_first_position", "rollback_last_position")
    shown = [[f"{row.get(name) or 0:,}" for name in names] for row in rows if "rollbacks" in row]
    heads = ("step of the spike", "back to step", "first position that is left out", "last one")
    if not shown:
        return []
    return [("heading", f"Rollbacks: {len(shown)}"), ("table", Grid(heads, ("number",) * 4, shown))]


def _flags(flags: dict[str, Any]) -> list[Part]:
    defaults = flag_values(TrainConfig())
    lists = {name: list(value) for name, value in defaults.items() if isinstance(value, tuple)}  # as JSON has them
    changed = {name: value for name, value in flags.items() if value != lists.get(name, defaults.get(name))}

    def grid(values: dict[str, Any]) -> Part:
        return "table", Grid(("flag", "value"), ("text", "text"), [(f"--{name}", str(values[name])) for name in values])

    rest = grid({name: value for name, value in flags.items() if name not in changed})
    return [grid(changed), ("details", ("flags with their defaults", [rest]))]
