"""Table `packing`: training on the same built-in text, with one example a row and with several.

All rows train on the same examples with as many of them in an update: a packed batch has fewer rows. So the losses may
be compared update by update, and what differs is the time. `buckets` has one example a row, and batches of similar
lengths, which are cut.
"""

import statistics
from collections.abc import Iterator, Sequence
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tftrain.bench import host
from tftrain.bench.config import BenchConfig
from tftrain.bench.table import Outcome, Record, Row, Say, Table, columns, in_turns
from tftrain.bench.training import run
from tftrain.bench.training.alternation import range_pct
from tftrain.bench.worker import MeasureError
from tftrain.data.manifest import read_manifest
from tftrain.page.bars import MEANING, speed_panel

STEPS, RANKS, ROWS = 20, 1, 16  # ROWS: of an update without packing
PREPARE = ("--builtin_corpus", "--builtin_corpus_mb=8", "--max_seq_length=512")
VOCABULARY = "--vocab_size=8192"
FLAGS = (
    *("--num_hidden_layers=4", "--hidden_size=256", "--num_attention_heads=4", "--attn_impl=flash"),
    *("--optimizer=adamw", "--learning_rate=3e-4", "--warmup_steps=10"),
)
# The largest number of examples in a row by the name of the row; 1: not packed.
PACKINGS = {"none": 1, "buckets": 1, "greedy_3": 3, "greedy_8": 8}
OF_ROW = {"buckets": ("--seq_length_buckets=64,128,256,384",)}
COLOURS = {"not packed": "#8c8c8c", "buckets": "#5b9a68", "up to 3 in a row": "#d98e4a", "up to 8 in a row": "#1f4e79"}


def measure(group: list[Row], config: BenchConfig, say: Say) -> Iterator[Outcome]:
    """Prepares the text for each row and trains on it, in turns."""
    errors: dict[str, str] = {}
    with TemporaryDirectory(prefix="tftrain_bench_") as folder:
        vocabulary = VOCABULARY

        def prepared(row: Row) -> None:
            nonlocal vocabulary
            prepare(row, f"{folder}/{row.name}", vocabulary)
            vocabulary = f"--vocab_file={folder}/{row.name}/vocab.txt"

        def trained(row: Row) -> Record:
            record = train(row, f"{folder}/{row.name}", config)
            rate, share = record["real_samples_per_sec"], record["utilisation"]
            say(f"{row.name}: {rate:.2f} examples/s, {share:.1%} of the positions; {host.load()}")
            return record

        in_turns(group, 1, prepared, errors)
        measured = in_turns(group, config.rounds, trained, errors)
    for row in group:
        if row.name in errors:
            yield Outcome(row.name, [], errors[row.name])
        else:
            yield Outcome(row.name, [median(measured[row.name], measured.get("none") if row.name != "none" else None)])


def prepare(row: Row, folder: str, vocabulary: str) -> None:
    """Prepares the built-in corpus for a row; `vocabulary` is a flag."""
    most = row.settings["most"]
    packing = ["--packing=greedy", f"--max_sequences_per_pack={most}"] if most > 1 else []
    arguments = [*PREPARE, vocabulary, *packing, f"--output_dir={folder}"]
    run.launch(arguments, 1, run.LIMIT_SECONDS, module="tftrain.prepare")


def train(row: Row, folder: str, config: BenchConfig) -> Record:
    """Trains on prepared data for some steps and returns a record of the table."""
    ranks, manifest = config.np or RANKS, read_manifest(folder)
    share = manifest.examples("train") / manifest.packed_examples("train")
    batch = rows_of_rank(share, ranks)
    steps = run.WARM_UP + (config.steps or STEPS)
    data = [f"--data_dir={folder}", f"--micro_batch_size={batch}", f"--global_batch_size={batch * ranks}"]
    arguments = [*FLAGS, *row.settings["flags"], *data, *config.run_flags()]
    metrics, _ = run.train(arguments, ranks, steps, run.LIMIT_SECONDS + 60 * steps)
    return record(metrics, row.settings["packing"], row.settings["most"])


def rows_of_rank(share: float, ranks: int) -> int:
    """Returns the rows of a rank's batch, so that an update has about ROWS examples, each of `share` rows."""
    return max(1, round(ROWS * share / ranks))


def record(rows: Sequence[dict[str, Any]], packing: str, most: int) -> Record:
    """Returns the figures of a run from its metrics: rates at the median step, and the loss of each step.

    With buckets, steps differ: the rates are those at the mean step, and a step that compiles does not count. It is a
    MeasureError if no counted step has a time.

    Args:
        rows: of metrics.jsonl, one for each step.
        packing: none, greedy, or buckets.
        most: examples of a row at most.
    """
    trained = [row for row in rows if "step_time_s" in row]
    counted = [row for row in trained if row["step"] > run.WARM_UP and row["step_time_s"]]
    if not counted:
        raise MeasureError("all steps compiled; more --steps are needed")
    typical = statistics.mean if packing == "buckets" else statistics.median
    seconds = typical(row["step_time_s"] for row in counted)
    per_step = {
        name: statistics.mean(row[f"{name}_per_sec"] * row["step_time_s"] for row in counted)
        for name in ("samples", "real_samples", "real_tokens")
    }
    losses = [row["mlm_loss"] for row in trained]
    return {
        "packing": packing,
        "max_sequences_per_pack": most,
        "rows_per_sec": per_step["samples"] / seconds,
        "real_samples_per_sec": per_step["real_samples"] / seconds,
        "real_tokens_per_sec": per_step["real_tokens"] / seconds,
        "utilisation": statistics.mean(row["utilisation"] for row in counted),
        "mlm_loss": statistics.mean(losses[-max(1, len(losses) // 10) :]),
        "losses": losses,
        "real_samples_per_step": per_step["real_samples"],
    }


def median(records: Sequence[Record], base: Sequence[Record] | None) -> Record:
    """Returns the record of the median speed among the runs of a row, with its change against those of the base."""
    mid = dict(sorted(records, key=lambda record: record["real_samples_per_sec"])[(len(records) - 1) // 2])
    mid |= {name: statistics.median(record[name] for record in records) for name in mid if name.endswith("_per_sec")}
    if base:
        speeds = [record["real_samples_per_sec"] for record in base]
        mid["real_samples_change_pct"] = 100 * (mid["real_samples_per_sec"] / statistics.median(speeds) - 1)
        if len(speeds) > 1:
            mid["base_spread_pct"] = range_pct(speeds)
    return mid


def draw(records: Sequence[Record]):
    """Draws a bar and a curve for each row: real examples a second, and the loss over trained examples."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2))
    speed, loss = figure.subplots(1, 2, width_ratios=(1, 2))
    for number, record in enumerate(records):
        name, rate = label(record), record["real_samples_per_sec"]
        speed.bar(number, rate, color=COLOURS[name])
        speed.annotate(f"{rate:.1f}", (number, rate), (0, 2), textcoords="offset points", ha="center")
        loss.plot(*curve(record), color=COLOURS[name], label=name)
    words = [label(record).replace(" in a row", "\nin a row") for record in records]
    speed.set_xticks(range(len(records)), words, fontsize=8)
    speed.set_title("Real examples a second")
    loss.set_title("Masked-LM loss (nats)")
    loss.set_xlabel("examples trained on")
    loss.legend()
    return figure


def label(record: Record) -> str:
    """Returns the name of a row in the picture."""
    if record["packing"] == "greedy":
        return f"up to {record['max_sequences_per_pack']} in a row"
    return {"none": "not packed", "buckets": "buckets"}[record["packing"]]


def curve(record: Record, points: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Returns the losses of a record's steps as means over parts of equal length: examples, and nats."""
    losses = np.array([np.nan if loss is None else loss for loss in record["losses"]], float)
    parts = np.array_split(losses, min(points, len(losses)))
    sizes = np.array([len(part) for part in parts])
    steps = np.cumsum(sizes) - sizes / 2
    return steps * record["real_samples_per_step"], np.array([np.nanmean(part) for part in parts])


PACKING = Table(
    "packing",
    "training on built-in text at 512 tokens, one example a row, cut or packed: real examples a second, and the loss",
    columns(
        "packing max_sequences_per_pack:0 rows_per_sec:2 real_samples_per_sec:2 real_tokens_per_sec:0 "
        "utilisation:4 real_samples_change_pct:1 base_spread_pct:1 mlm_loss:4"
    ),
    tuple(
        Row(name, "all", {"packing": name.partition("_")[0], "most": most, "flags": OF_ROW.get(name, ())})
        for name, most in PACKINGS.items()
    ),
    measure,
    draw=draw,
    panels=(speed_panel("Real examples a second: change, %", "real_samples_change_pct"),),
    chart_note=MEANING.format(base="rows of one example", spread="the range of the base's runs"),
    labels=("packing", "max_sequences_per_pack"),
    base="none",
)
