"""The report of a forecast: parameters, operations, memory and time by kind, rates, and what makes it fit."""

from collections.abc import Sequence

from tftrain.host.units import GB
from tftrain.plan import inventory
from tftrain.plan.commands import command, of_division
from tftrain.plan.config import PlanConfig
from tftrain.plan.forecast import Forecast, products_by_shape
from tftrain.plan.levers import Lever
from tftrain.plan.reported_flops import reported
from tftrain.plan.search import SearchResult
from tftrain.plan.workload import Workload

SECONDS_PER_DAY = 86400


def text(
    plan: Forecast,
    steps: int,
    suggestions: Sequence[Lever] = (),
    examples_per_row: float = 1.0,
    utilisation: float = 1.0,
) -> str:
    """Returns the report of a plan.

    Args:
        steps: updates of the run.
        suggestions: levers that make it fit, if it does not.
        examples_per_row: mean number of examples of a packed row.
        utilisation: share of a row's tokens that are not padding; unless both are 1, the report has real rates too.
    """
    work, model = plan.work, plan.work.model
    lines = [
        sizes(work),
        division(work) + f" on {plan.cluster.name}",
        "",
        f"{'parameters':32}{model.parameters:>18,}",
        f"{'  of the fullest rank':32}{round(inventory.weights(work)):>18,}",
        *(f"{f'FLOPs a step, {name}':32}{reported(work, name):>18.4g}" for name in ("exact", "old", "corrected")),
        "",
        *memory_lines(plan),
        "",
        *time_lines(plan),
        "",
        *product_lines(plan),
        "",
        *rate_lines(plan, examples_per_row, utilisation),
        f"{'TFLOPs a device, exact':32}{plan.tflops_per_device:>18.2f}",
        f"{'MFU':32}{100 * plan.mfu:>17.1f}%",
        f"{f'days for {steps} steps':32}{steps * plan.seconds / SECONDS_PER_DAY:>18.2f}",
        "",
        verdict(plan, suggestions),
        *dropout_notes(work),
    ]
    return "\n".join(lines) + "\n"


def dropout_notes(work: Workload) -> list[str]:
    """Returns what dropout of probabilities costs flash attention on a GPU, see docs/results/gpu; times lack it."""
    if not (work.compiled and work.attention_dropout and work.core == "flash" and work.runs_here):
        return []
    return [
        "Not in this plan: on a GPU, dropout of attention probabilities makes flash attention half as slow again.",
        "--attention_probs_dropout_prob=0 avoids it, and lets --attn_impl=auto take cudnn.",
    ]


def phase_lines(plans: Sequence[Forecast], steps: Sequence[int]) -> str:
    """Returns what each phase of a run takes, of which the largest is planned above, and the days of all."""
    days = [count * plan.seconds / SECONDS_PER_DAY for plan, count in zip(plans, steps, strict=True)]
    lines = [f"{'phase':>7}{'tokens':>8}{'batch':>8}{'steps':>10}{'s a step':>10}{'GB':>8}{'days':>10}"]
    for number, (plan, count, own) in enumerate(zip(plans, steps, days, strict=True), 1):
        sizes = f"{number:>7}{plan.work.seq:>8}{plan.work.global_batch:>8}{count:>10}"
        lines.append(f"{sizes}{plan.seconds:>10.3f}{plan.gb:>8.2f}{own:>10.2f}")
    return "\n".join([*lines, f"{'all':>7}{sum(steps):>26}{sum(days):>28.2f}"])


def sizes(work: Workload) -> str:
    """Returns the sizes of the model and of a sample, and the precision."""
    model = work.model
    tokens = f"{work.sequences} x {work.seq} tokens" if work.sequences > 1 else f"{work.seq} tokens"
    sizes = f"{model.layers} x {model.width}, {model.attention_heads} heads, {model.vocab} words, {tokens}"
    return f"{sizes}; {work.precision}"


def rate_lines(plan: Forecast, examples_per_row: float, utilisation: float) -> list[str]:
    """Returns samples and tokens a second; also without padding unless a row is one example without any."""
    samples, tokens = plan.samples_per_sec, plan.work.tokens / plan.seconds
    lines = [
        f"{'samples/s':32}{samples:>18,.4g}",
        f"{'samples/s a device':32}{samples / plan.work.ranks:>18,.4g}",
        f"{'tokens/s':32}{tokens:>18,.5g}",
    ]
    if (examples_per_row, utilisation) == (1.0, 1.0):
        return lines
    real = f"{'real samples/s':32}{samples * examples_per_row:>18,.4g}"
    return [*lines, real, f"{'real tokens/s':32}{tokens * utilisation:>18,.5g}"]


def division(work: Workload) -> str:
    """Returns the division of ranks and batch."""
    return (
        f"dp={work.dp} tp={work.tp} pp={work.pp} zero_stage={work.zero_stage} micro_batch={work.micro_batch} "
        f"global_batch={work.global_batch} checkpointing={work.checkpointing}"
    )


def memory_lines(plan: Forecast) -> list[str]:
    """Returns the memory by kind, which adds up to the peak, and the activations by tensor.

    Fragmentation and compared vectors have a line only if they are not zero; a full device has no fragmentation.
    """
    lines = [f"{'memory of the fullest rank':32}{'GB':>18}"]
    for kind, size in zip(plan.memory._fields[:-1], plan.memory[:-1], strict=True):
        if kind in ("fragmentation", "vectors") and not size:
            continue
        lines.append(f"  {kind.replace('_', ' '):30}{size / GB:>18.3f}")
        if kind == "activations":
            shown = sorted(plan.memory.tensors, key=lambda tensor: -tensor[1])
            lines += [f"    {name:40}{size / GB:>8.3f}" for name, size in shown]
    return [*lines, f"  {'peak':30}{plan.gb:>18.3f}"]


def time_lines(plan: Forecast) -> list[str]:
    """Returns the time by kind."""
    lines = [f"{'time of a step':32}{'s':>18}"]
    for kind, seconds in zip(plan.time._fields, plan.time, strict=True):
        if seconds or kind != "first_pass":
            lines.append(f"  {kind.replace('_', ' '):30}{seconds:>18.4f}")
    lines.append(f"  {'data (read while it computes)':30}{0:>18.4f}")
    return [*lines, f"  {'step':30}{plan.seconds:>18.4f}"]


def product_lines(plan: Forecast) -> list[str]:
    """Returns the matrix products by shape."""
    lines = [f"{'matrix products, m x k x n':32}{'':24}{'number':>12}{'s':>12}"]
    for product, count, seconds in products_by_shape(plan.work, plan.cluster, plan.constants):
        batch = f"{product.batch} of " if product.batch > 1 else ""
        shape = f"{batch}{product.m} x {product.k} x {product.n}"
        lines.append(f"  {product.name:30}{shape:24}{count:>12,.0f}{seconds:>12.4f}")
    return lines


def verdict(plan: Forecast, suggestions: Sequence[Lever]) -> str:
    """Returns whether it fits, and the suggestions that make it fit."""
    limit = plan.cluster.memory_gb
    if plan.fits:
        return f"Fits: {plan.gb:.1f} of {limit:.1f} GB."
    needs = f"Does not fit: {plan.gb:.1f} of {limit:.1f} GB"
    if plan.memory.fits(plan.cluster):
        left = f"less than {100 * plan.margin:g}% of the memory are left (--memory_margin)"
        needs = f"Tight: {plan.gb:.1f} of {limit:.1f} GB, {left}"
    if not suggestions:
        return f"{needs}; no levers make it fit: take more nodes, or a smaller model."
    shown = [f"{each.flags} ({each.plan.gb:.1f} GB, {each.plan.seconds:.3g} s a step)" for each in suggestions]
    lines = [f"{needs}; the fastest levers that make it fit are {', '.join(shown)}."]
    if plan.work.runs_here:
        lines += [f"  {command(found.config.train, found.plan.work.ranks)}" for found in suggestions]
    return "\n".join(lines)


SEARCH_COLUMNS = (
    "nodes", "dp", "tp", "pp", "micro_batch", "zero_stage", "checkpointing", "attention", "sequence_parallel",
    "sec_per_iteration", "gb", "tflops", "mfu", "command",
)  # fmt: skip


def search_cells(result: SearchResult, config: PlanConfig) -> list[list[str]]:
    """Returns the lines of the fastest divisions, in the order of SEARCH_COLUMNS; megatron's have no command."""
    lines = []
    for plan in result.fastest:
        work = plan.work
        sizes = (work.ranks // plan.cluster.per_node, work.dp, work.tp, work.pp, work.micro_batch, work.zero_stage)
        figures = f"{plan.seconds:.4f}", f"{plan.gb:.1f}", f"{plan.tflops_per_device:.1f}", f"{plan.mfu:.3f}"
        core = "softmax" if work.core == "softmax" else "flash"
        run = of_division(work, config) if work.runs_here else None
        shown = command(run, work.ranks) if run else "-"
        lines.append([*map(str, sizes), work.checkpointing, core, str(work.sequence_parallel).lower(), *figures, shown])
    return lines
