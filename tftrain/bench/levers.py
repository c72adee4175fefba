"""Table `levers`: what each lever or combination of levers does to memory and speed, on several ranks of this machine.

Each row is a run of its own, in alternation with the base row. The model is BERT base where memory holds it on all
ranks, so that a lever's effect shows beside the 0.7 GB of TensorFlow itself. On a smaller machine it is a model of a
tenth of the size. The global batch is the same for every row.
"""

import shlex
import statistics
from collections.abc import Iterator, Sequence

from tftrain.bench import host
from tftrain.bench.config import BenchConfig
from tftrain.bench.picture import PAPER, legend
from tftrain.bench.table import BenchTable, Record, RowOutcome, Say, TableRow, columns
from tftrain.bench.training import alternation, run
from tftrain.page.bars import MEANING, BarSeries, Panel
from tftrain.plan.workload import reference_levers

RANKS = 4
STEPS = 5
BASE_EVERY = 5  # rows between two runs of the base; a run takes about a minute, mostly before its first step
BASE = "base"
REFERENCE = tuple(f"--{flag}={value}" for flag, value in reference_levers().items())
FUSED = "--flagfile=configs/fused.flags"
COMMON = (*REFERENCE, "--synthetic_data", "--max_seq_length=128", "--global_batch_size=16")
BERT_BASE = "bert_base"  # the default sizes of tftrain.run
MODELS = {
    BERT_BASE: (),
    "small": ("--num_hidden_layers=4", "--hidden_size=512", "--num_attention_heads=8", "--vocab_size=8191"),
}
BERT_BASE_GB = 5.2  # a rank's memory in the row that needs most

FLAGS = {
    BASE: "",
    "bf16": "--precision=bf16",
    "fp16": "--precision=fp16",
    "bf16_ln_fp32": "--precision=bf16 --ln_dtype=fp32",
    "fused": FUSED,
    "flash": "--attn_impl=flash",
    "selective": "--activation_checkpointing=selective",
    "full": "--activation_checkpointing=full",
    "fused_full": f"{FUSED} --activation_checkpointing=full",
    "recomputation": "--memory_optimization=recomputation",
    "no_grappler": "--suppress_grappler",
    "xla": "--jit_compile=true",
    "geglu": "--activation=geglu",
    "no_key_bias": "--use_bias_in_keys=false",
    "no_hidden_dropout": "--hidden_dropout_prob=0",
    "no_attention_dropout": "--attention_probs_dropout_prob=0",
    "no_dropout": "--hidden_dropout_prob=0 --attention_probs_dropout_prob=0",
    "accum_fp32": "--grad_accum_steps=4",
    "accum_bf16": "--grad_accum_steps=4 --grad_accum_dtype=bf16",
    "accum_fp16": "--grad_accum_steps=4 --grad_accum_dtype=fp16",
    "accum_split": "--grad_accum_steps=4 --split_grad_accum",
    "split": "--split_opt_state",
    "split_grads": "--split_grad_accum",
    "split_naive": "--split_opt_state --state_split_strategy=naive",
    "split_greedy_2": "--split_opt_state --state_split_strategy=greedy:2",
    "fp16_wire": "--hvd_fp16_compression",
    "sparse_rows": "--sparse_as_dense=false",
    "deterministic": "--deterministic",
    "tp_2": "--tensor_parallel_size=2",
    "tp_4": "--tensor_parallel_size=4",
    "tp_2_split": "--tensor_parallel_size=2 --split_opt_state",
    "tp_2_sequence": "--tensor_parallel_size=2 --sequence_parallel",
    "pp_2": "--pipeline_parallel_size=2 --grad_accum_steps=4",
    "pp_4": "--pipeline_parallel_size=4 --grad_accum_steps=4",
    "everything": f"{FUSED} --precision=bf16 --activation_checkpointing=full --use_bias_in_keys=false "
    "--grad_accum_steps=4 --grad_accum_dtype=bf16 --split_grad_accum --tensor_parallel_size=2 --hvd_fp16_compression",
}
# One group: every row is compared with the base of the same run.
ROWS = tuple(TableRow(name, "levers", {"flags": flags}) for name, flags in FLAGS.items())

# The parts of a bar from left to right: words, colour and kinds of memory; the last part is the rest of the peak.
PARTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("weights, master weights, moments", "#1f4e79", ("weights", "master_weights", "moments")),
    ("gradients, their sums, messages", "#5b8db8", ("gradients", "accumulation", "communication")),
    ("TensorFlow itself", "#b9b9b9", ("baseline", "checkpoint_copy")),
    ("activations, temporaries", "#a9cce8", ()),
)
SPEED, LINE = "#d98e4a", "#333333"
BAR, INCHES_A_ROW = 0.66, 0.3


def measure(group: list[TableRow], config: BenchConfig, say: Say) -> Iterator[RowOutcome]:
    """Measures rows together with the base row, even if it was not chosen."""
    ranks = config.np or RANKS
    model = model_name(ranks)
    say(f"model: {model}, on {ranks} ranks")
    base = next(row for row in ROWS if row.name == BASE)
    others = [row for row in group if row.name != BASE]

    def one(row: TableRow) -> run.Figures:
        return run.measure(run_flags(row, model, config), ranks, config.steps or STEPS)

    for compared in alternation.in_alternation(base, others, one, say, BASE_EVERY, config.rounds):
        if compared.row is not base or base in group:
            yield outcome(compared, model)


def model_name(ranks: int) -> str:
    """Returns bert_base if the free memory holds it on so many ranks of this host, else small; one of `MODELS`."""
    return BERT_BASE if host.available_memory_gb() >= ranks * BERT_BASE_GB else "small"


def run_flags(row: TableRow, model: str, config: BenchConfig) -> list[str]:
    """Returns the flags of a row's run with one of `MODELS`; `extra_flags` override the others."""
    return [*COMMON, *MODELS[model], *shlex.split(row.settings["flags"]), *config.run_flags()]


def outcome(compared: alternation.Compared, model: str) -> RowOutcome:
    """Returns the outcome of a row: its line of the table, or the error."""
    row = compared.row
    if compared.figures is None:
        return RowOutcome(row.name, [], compared.error)
    words = row.settings["flags"] or "-"
    record = {"row": row.name, "levers": words, "model": model, **alternation.record(compared)}
    if row.name == BASE:  # The base has no change against itself; its spread is that of all of its runs.
        record |= {"samples_per_sec_change": None, "peak_gb_change": None, "spread": None}
    return RowOutcome(row.name, [record])


def draw(records: Sequence[Record]):
    """Draws two bars for each row: peak memory of the fullest rank by kind, and samples/s.

    A dashed line across a bar is the base that its change is against, as it ran just before and after the row. The band
    around the line goes from the smallest to the largest figure of the base. A bar that ends inside the band shows no
    measurable change.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 1.4 + INCHES_A_ROW * len(records)))
    memory, speed = figure.subplots(1, 2, sharey=True)
    positions = range(len(records))
    ends = [0.0] * len(records)
    for (words, colour, _), widths in zip(PARTS, zip(*map(parts, records), strict=True), strict=True):
        memory.barh(positions, widths, BAR, left=ends, color=colour, label=words)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    speed.barh(positions, [record["samples_per_sec"] for record in records], BAR, color=SPEED)
    for axes, name, digits in ((memory, "peak_gb", 2), (speed, "samples_per_sec", 1)):
        widest = max(max([record[name], *record.get(f"base_{name}", ())]) for record in records)
        axes.set_xlim(0, 1.22 * widest)
        for position, record in enumerate(records):
            runs = record.get(f"base_{name}") or [record[name]]
            end = max([record[name], *runs]) + 0.014 * widest
            axes.text(end, position, label(record, name, digits), va="center", fontsize=8, zorder=3, bbox=PAPER)
            if record["row"] != BASE:
                low, high, middle = min(runs), max(runs), statistics.median(runs)
                axes.barh(position, high - low, 0.95, left=low, color=LINE, alpha=0.18, linewidth=0)
                named = {"label": f"{BASE}, and its spread"} if position == len(records) - 1 else {}
                axes.vlines(middle, position - 0.48, position + 0.48, LINE, "--", linewidth=1, **named)
        axes.margins(y=0.015)
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
    memory.set_yticks(positions, [record["row"] for record in records], fontsize=9)
    memory.invert_yaxis()
    memory.set_title("Memory of the fullest rank (GB)")
    speed.set_title("Samples per second, all ranks")
    legend(figure)
    return figure


def parts(record: Record) -> list[float]:
    """Returns the GB of each of `PARTS` of a row's fullest rank; together they are its peak."""
    sizes = [sum(record[f"memory_{kind}_bytes"] for kind in kinds) / 1e9 for _, _, kinds in PARTS[:-1]]
    return [*sizes, record["peak_gb"] - sum(sizes)]


def label(record: Record, name: str, digits: int) -> str:
    """Returns the words of a bar, for peak_gb or samples_per_sec: its figure, and any change against the base."""
    change, figure = record.get(f"{name}_change"), f"{record[name]:.{digits}f}"
    if change is None:
        return figure
    return f"{figure} ({change:+.{digits}f})" if name == "peak_gb" else f"{figure} ({change:+.0f}%)"


GB_SERIES = BarSeries("peak_gb_change", spread="base_peak_spread")
SPEED_SERIES = BarSeries("samples_per_sec_change", spread="base_spread")
LEVERS = BenchTable(
    "levers",
    "memory and speed of a whole run with each lever, against plain data parallel ranks in fp32",
    columns(
        "row levers peak_gb:3 peak_rank:0 state_gb_per_rank:3 samples_per_sec:2 spread:1 "
        "samples_per_sec_change:1 base_spread:1 peak_gb_change:3 base_peak_spread:3"
    ),
    ROWS,
    measure,
    draw,
    panels=(
        Panel("Peak memory of the fullest rank: change, GB", (GB_SERIES,), "+.3f", " GB", better=-1),
        Panel("Samples/s of all ranks: change, %", (SPEED_SERIES,), "+.1f", " %", better=1),
    ),
    chart_note=MEANING.format(base="the base row", spread="the range of its runs just before and after the row"),
    base=BASE,
)
