"""The plan as one page of HTML: memory and time by kind, what each lever changes, and the frontier of all layouts.

Every term is explained where it stands.
"""

import html
from collections.abc import Sequence
from pathlib import Path

from tftrain.host.units import GB
from tftrain.page.bars import Panel, Series, chart
from tftrain.page.document import document, table, words
from tftrain.plan import choice, report, scatter
from tftrain.plan.commands import command, of_division
from tftrain.plan.config import PlanConfig
from tftrain.plan.forecast import Forecast
from tftrain.plan.levers import Lever
from tftrain.plan.reported_flops import reported
from tftrain.plan.search import Layout
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
}
FLOPS = {
    "exact": "three forward passes of all matrix products; recomputation does not count",
    "old": "96 B s L h\N{SUPERSCRIPT TWO}: four passes of the blocks' weights, without attention and the output layer",
    "corrected": "the same with attention and the output layer: arXiv 2104.04473, equation 3",
}
SHOWN = 12  # lines of the table of the frontier
LEVERS = (
    Panel("Memory: change, GB", (Series("gb", spread=0.0, kind="planned"),), "+.2f", better=-1),
    Panel("Time of a step: change, %", (Series("seconds", spread=0.0, kind="planned"),), "+.1f", " %", better=-1),
)


def write(
    path: Path,
    plan: Forecast,
    config: PlanConfig,
    steps: int,
    suggestions: Sequence[Lever],
    levers: Sequence[Lever],
    layouts: Sequence[Layout],
) -> None:
    """Writes the page.

    Args:
        config, steps: of the whole run, of which the commands are; updates of the plan, if a phase is planned its own.
        suggestions: levers that make the plan fit, if it does not.
        levers: what may be changed, each with its plan.
        layouts: all layouts of the search on the same devices; none if it does not apply.

    Raises:
        OSError: the file cannot be written.
    """
    shares = {name.replace("_", " "): size / GB for name, size in plan.memory._asdict().items() if name != "tensors"}
    seconds = {name.replace("_", " "): size for name, size in plan.time._asdict().items()}
    verdict = report.verdict(plan, ()).partition(";")[0].rstrip(".")
    parts = [
        f"<p>{words(report.division(plan.work))}</p>",
        f"<h2>Memory of the fullest rank: {plan.gb:.1f} of {plan.cluster.memory_gb:.1f} GB</h2>",
        '<p class="note">GB are 1e9 bytes.</p>',
        _kinds("GB", shares, MEMORY, ".2f"),
        f"<h2>Time of a step: {plan.seconds:.4g} s</h2>",
        _kinds("s", seconds, TIME, ".4f"),
        "<h2>Figures</h2>",
        _figures(plan, steps, "of one of its --phases" if config.data.phases else "--max_steps"),
        *_suggestions(suggestions),
        *_levers(plan, levers),
        *_frontier(plan, config, steps, layouts),
    ]
    about = f"plan of {plan.work.model.config.model_family}, {report.sizes(plan.work)}"
    path.write_text(document(f"{verdict} on {plan.cluster.name}", about, parts), encoding="utf-8")


def _kinds(unit: str, sizes: dict[str, float], meaning: dict[str, str], form: str) -> str:
    """Returns a bar of each kind that is there, the longest first."""
    records = [{"kind": kind, "size": size} for kind, size in sizes.items() if float(f"{size:{form}}")]
    records.sort(key=lambda record: -record["size"])
    panel = Panel(f"By kind, {unit}", (Series("size", kind="planned"),), form)
    return chart([panel], records, lambda record: (record["kind"], meaning[record["kind"]]))


def _figures(plan: Forecast, steps: int, which: str) -> str:
    work, tokens = plan.work, plan.work.tokens
    lines = [
        ("parameters", f"{work.model.parameters:,}", ""),
        *((f"FLOPs of a step, {name}", f"{reported(work, name):.4g}", meaning) for name, meaning in FLOPS.items()),
        ("TFLOPs of a device", f"{plan.tflops_per_device:.1f}", "by the exact count"),
        ("MFU", f"{plan.mfu:.1%}", "model FLOPs utilization: share of the peak rate of the data sheet"),
        ("tokens/s", f"{tokens / plan.seconds:,.4g}", f"of all ranks; {tokens:,} tokens a step"),
        (f"days for {steps:,} steps", f"{steps * plan.seconds / report.SECONDS_PER_DAY:.3g}", which),
    ]
    return table(("figure", "value", "meaning"), ("text", "number", "text"), lines)


def _suggestions(levers: Sequence[Lever]) -> list[str]:
    if not levers:
        return []
    lines = [
        (f"{each.plan.seconds:.4g}", f"{each.plan.gb:.1f}", words(each.flags) + _command(each.plan.work, each.config))
        for each in levers
    ]
    return ["<h2>What makes it fit</h2>", table(("s a step", "GB", "levers"), ("number", "number", "text"), lines)]


def _command(work: Workload, config: PlanConfig) -> str:
    """Returns the command of a division that the trainer takes, to be opened; "" for the other trainer."""
    run = of_division(work, config) if work.runs_here else None
    shown = f"<code>{html.escape(command(run, work.ranks))}</code>" if run else ""
    return f"<details><summary>command</summary>{shown}</details>" if run else ""


def _levers(plan: Forecast, levers: Sequence[Lever]) -> list[str]:
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
    return ["<h2>What each lever changes</h2>", f'<p class="note">{note}</p>', named]


def _frontier(plan: Forecast, config: PlanConfig, steps: int, layouts: Sequence[Layout]) -> list[str]:
    if not layouts:
        return []
    own = plan.work.runs_here
    best = scatter.frontier(layouts, lambda each: not own or of_division(each.work, config) is not None)
    days = steps / report.SECONDS_PER_DAY
    fitting = [each for each in best if each.gb <= (1 - plan.margin) * plan.cluster.memory_gb]
    lines = [
        (
            *(f"{layout.seconds:.4g}", f"{layout.gb:.1f}", f"{layout.seconds * days:.3g}"),
            html.escape(choice.words(layout.work)) + _command(layout.work, config),
        )
        for layout in fitting[:SHOWN]
    ]
    note = (
        f"Each dot is one of {len(layouts):,} layouts of {plan.work.ranks} ranks with this global batch. The line "
        "joins those that no other layout beats in both memory and time. The ring is this plan. The dashed line is a "
        "device's memory without the margin (--memory_margin)."
    )
    heads = ("s a step", "GB", f"days for {steps:,} steps", "layout")
    best_ones = table(heads, ("number", "number", "number", "text"), lines)
    title = "<h2>Memory and time of all layouts</h2>"
    return [title, f'<p class="note">{words(note)}</p>', scatter.svg(layouts, best, plan, days), best_ones]
