"""The plan as one page of HTML: memory and time by kind, what each lever changes, and the frontier of all layouts."""

from collections.abc import Sequence
from pathlib import Path

from tftrain.host.units import GB
from tftrain.page.bars import BarSeries, Panel, chart
from tftrain.page.document import Cell, Grid, Part, document
from tftrain.plan import choice, report, scatter
from tftrain.plan.commands import command, of_division
from tftrain.plan.config import PlanConfig
from tftrain.plan.forecast import Forecast
from tftrain.plan.levers import Lever
from tftrain.plan.reported_flops import reported
from tftrain.plan.workload import Workload

MEMORY = {
    "weights": "in the precision of the run",
    "master weights": "fp32 weights that the optimizer updates",
    "moments": "the optimizer's averages, fp32",
    "checkpoint copy": "of the state, while a checkpoint is written",
    "gathered": "weights of two blocks and of both ends that ZeRO-3 has whole, and their gradients",
    "gradients": "of one micro-batch",
    "accumulation": "sum of the gradients of all micro-batches",
    "activations": "tensors that forward saves for backward",
    "vectors": "of the samples of a global batch, which are compared, and their gradients",
    "temporaries": "of the optimizer, and gradients in fp32",
    "communication": "buffers of sums over ranks",
    "reserve": "taken before the model is built: context, libraries",
    "fragmentation": "free memory between tensors; the allocator gives a part of it back before it fails",
}
TIME = {
    "products": "matrix products, with those computed again",
    "kernels": "all other ops on the device",
    "tensor sums": "over tensor parallel ranks",
    "host": "the device waits for the host's launches",
    "recomputation": "launches of blocks computed again",
    "transfers": "between pipeline stages, as far as a stage waits",
    "bubble": "other time in which the slowest stage waits",
    "gradient sums": "over data parallel ranks, with ZeRO's gathering of weights; what backward hides is not in it",
    "update": "the optimizer",
    "first pass": "vectors of all samples without gradients, and the loss that compares them",
}
FLOPS = {
    "exact": "three forward passes of all matrix products; recomputation does not count",
    "old": "96 B s L h\N{SUPERSCRIPT TWO}: four passes of the blocks' weights, without attention and the output layer",
    "corrected": "the same with attention and the output layer: arXiv 2104.04473, equation 3",
}
SHOWN = 12  # lines of the table of the frontier
LEVERS = (
    Panel("Memory: change, GB", (BarSeries("gb", spread=0.0, kind="planned"),), "+.2f", better=-1),
    Panel("Time of a step: change, %", (BarSeries("seconds", spread=0.0, kind="planned"),), "+.1f", " %", better=-1),
)


def write(
    path: Path,
    plan: Forecast,
    config: PlanConfig,
    steps: int,
    suggestions: Sequence[Lever],
    levers: Sequence[Lever],
    layouts: Sequence[Forecast],
) -> None:
    """Writes the page.

    Args:
        config: the configuration of the whole run, whose commands the page shows.
        steps: the updates of the plan; of a planned phase its own.
        suggestions: levers that make the plan fit, if it does not.
        levers: what may be changed, each with its plan.
        layouts: all layouts of the search on the same devices; none if it does not apply.

    Raises:
        OSError: the file can't be written.
    """
    shares = {name.replace("_", " "): size / GB for name, size in plan.memory._asdict().items() if name != "tensors"}
    seconds = {name.replace("_", " "): size for name, size in plan.time._asdict().items()}
    verdict = report.verdict(plan, ()).partition(";")[0].rstrip(".")
    parts = [
        ("text", report.division(plan.work)),
        ("heading", f"Memory of the fullest rank: {plan.gb:.1f} of {plan.cluster.memory_gb:.1f} GB"),
        ("note", "GB are 1e9 bytes."),
        _kinds("GB", shares, MEMORY, ".2f"),
        ("heading", f"Time of a step: {plan.seconds:.4g} s"),
        _kinds("s", seconds, TIME, ".4f"),
        ("heading", "Figures"),
        _figures(plan, steps, "of one of its --phases" if config.data.phases else "--max_steps"),
        *_suggestions(suggestions),
        *_levers(plan, levers),
        *_frontier(plan, config, steps, layouts),
    ]
    about = f"plan of {plan.work.model.config.model_family}, {report.sizes(plan.work)}"
    path.write_text(document(f"{verdict} on {plan.cluster.name}", about, parts), encoding="utf-8")


def _kinds(unit: str, sizes: dict[str, float], meaning: dict[str, str], form: str) -> Part:
    """Returns a bar of each kind that is there, the longest first."""
    records = [{"kind": kind, "size": size} for kind, size in sizes.items() if float(f"{size:{form}}")]
    records.sort(key=lambda record: -record["size"])
    panel = Panel(f"By kind, {unit}", (BarSeries("size", kind="planned"),), form)
    return "bars", chart([panel], records, lambda record: (record["kind"], meaning[record["kind"]]))


def _figures(plan: Forecast, steps: int, which: str) -> Part:
    work, tokens = plan.work, plan.work.tokens
    lines = [
        ("parameters", f"{work.model.parameters:,}", ""),
        *((f"FLOPs of a step, {name}", f"{reported(work, name):.4g}", meaning) for name, meaning in FLOPS.items()),
        ("TFLOPs of a device", f"{plan.tflops_per_device:.1f}", "by the exact count"),
        ("MFU", f"{plan.mfu:.1%}", "model FLOPs utilization: share of the peak rate of the data sheet"),
        ("tokens/s", f"{tokens / plan.seconds:,.0f}", f"of all ranks; {tokens:,} tokens a step"),
        (f"days for {steps:,} steps", f"{steps * plan.seconds / report.SECONDS_PER_DAY:.3g}", which),
    ]
    return "table", Grid(("figure", "value", "meaning"), ("text", "number", "text"), lines)


def _suggestions(levers: Sequence[Lever]) -> list[Part]:
    if not levers:
        return []
    lines = [
        (f"{each.plan.seconds:.4g}", f"{each.plan.gb:.1f}", _with_command(each.flags, each.plan.work, each.config))
        for each in levers
    ]
    grid = Grid(("s a step", "GB", "levers"), ("number", "number", "text"), lines)
    return [("heading", "What makes it fit"), ("table", grid)]


def _with_command(shown: str, work: Workload, config: PlanConfig) -> Cell:
    """Returns a text with the command of a division, to be opened, if this trainer runs it."""
    run = of_division(work, config) if work.runs_here else None
    return Cell(shown, command=command(run, work.ranks) if run else "")


def _levers(plan: Forecast, levers: Sequence[Lever]) -> list[Part]:
    if not levers:
        return []
    records = [
        {
            "flags": lever.flags,
            "result": f"{'fits, ' if lever.plan.fits else ''}{lever.plan.gb:.1f} GB, {lever.plan.seconds:.3g} s",
            "gb": lever.plan.gb - plan.gb,
            "seconds": 100 * (lever.plan.seconds / plan.seconds - 1),
        }
        for lever in levers
    ]
    note = "Each lever alone, at the same nodes and global batch. Green is less memory or time, red is more."
    named = chart(LEVERS, records, lambda record: (record["flags"], record["result"]))
    return [("heading", "What each lever changes"), ("note", note), ("bars", named)]


def _frontier(plan: Forecast, config: PlanConfig, steps: int, layouts: Sequence[Forecast]) -> list[Part]:
    if not layouts:
        return []
    own = plan.work.runs_here
    best = scatter.frontier(layouts, lambda each: not own or of_division(each.work, config) is not None)
    days = steps / report.SECONDS_PER_DAY
    fitting = [each for each in best if each.gb <= (1 - plan.margin) * plan.cluster.memory_gb]
    lines = [
        (
            *(f"{layout.seconds:.4g}", f"{layout.gb:.1f}", f"{layout.seconds * days:.3g}"),
            _with_command(choice.describe(layout.work), layout.work, config),
        )
        for layout in fitting[:SHOWN]
    ]
    note = (
        f"Each dot is one of {len(layouts):,} layouts of {plan.work.ranks} ranks with this global batch. The line "
        "joins those that no other layout beats in both memory and time. The ring is this plan. The dashed line is a "
        "device's memory without the margin (--memory_margin)."
    )
    heads = ("s a step", "GB", f"days for {steps:,} steps", "layout")
    return [
        ("heading", "Memory and time of all layouts"),
        ("note", note),
        ("svg", scatter.svg(layouts, best, plan, days)),
        ("table", Grid(heads, ("number", "number", "number", "text"), lines)),
    ]
