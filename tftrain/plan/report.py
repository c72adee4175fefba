"""The report of a forecast: parameters, operations, memory and time by kind, rates, and what makes it fit."""

from collections.abc import Sequence
from typing import NamedTuple

from tftrain.host.units import GB
from tftrain.plan import inventory
from tftrain.plan.forecast import Forecast, products_by_shape
from tftrain.plan.levers import Suggestion
from tftrain.plan.reported_flops import reported
from tftrain.plan.search import SearchResult
from tftrain.plan.workload import Workload

SECONDS_PER_DAY = 86400


class Rows(NamedTuple):
    """What the rows of a batch hold on average.

    Attributes:
        examples: number of examples of a row.
        utilisation: share of its tokens that are not padding.
    """

    examples: float = 1.0
    utilisation: float = 1.0


WITHOUT_PADDING = Rows()


def text(
    plan: Forecast,
    parameters: int,
    steps: int,
    tokens_per_step: int,
    suggestions: Sequence[Suggestion] = (),
    rows: Rows = WITHOUT_PADDING,
) -> str:
    """Returns the report of a plan.

    Args:
        plan: the forecast.
        parameters: weights of the whole model.
        steps: updates of the run.
        tokens_per_step: tokens of an update.
        suggestions: levers that make it fit, if it does not.
        rows: of the data; unless each is one example without padding, the report has real rates too.
    """
    work, model = plan.work, plan.work.model
    lines = [
        f"{model.layers} x {model.width}, {model.attention_heads} heads, {model.vocab} words, "
        f"{work.seq} tokens; {work.precision}",
        division(work) + f" on {plan.cluster.name}",
        "",
        f"{'parameters':32}{parameters:>18,}",
        f"{'  of the fullest rank':32}{round(inventory.weights(work)):>18,}",
        *(f"{f'FLOPs a step, {name}':32}{reported(work, name):>18.4g}" for name in ("exact", "old", "corrected")),
        "",
        *memory_lines(plan),
        "",
        *time_lines(plan),
        "",
        *product_lines(plan),
        "",
        f"{'samples/s':32}{plan.samples_per_sec:>18,.4g}",
        f"{'samples/s a device':32}{plan.samples_per_sec / work.ranks:>18,.4g}",
        f"{'tokens/s':32}{tokens_per_step / plan.seconds:>18,.5g}",
        *real_lines(plan, tokens_per_step, rows),
        f"{'TFLOPs a device, exact':32}{plan.tflops_per_device:>18.2f}",
        f"{'MFU':32}{100 * plan.mfu:>17.1f}%",
        f"{f'days for {steps} steps':32}{steps * plan.seconds / SECONDS_PER_DAY:>18.2f}",
        "",
        verdict(plan, suggestions),
    ]
    return "\n".join(lines) + "\n"


def real_lines(plan: Forecast, tokens_per_step: int, rows: Rows) -> list[str]:
    """Returns examples and tokens a second without padding; nothing if a row is one example without padding."""
    if rows == WITHOUT_PADDING:
        return []
    tokens = tokens_per_step / plan.seconds * rows.utilisation
    return [
        f"{'real samples/s':32}{plan.samples_per_sec * rows.examples:>18,.4g}",
        f"{'real tokens/s':32}{tokens:>18,.5g}",
    ]


def division(work: Workload) -> str:
    """Returns the division of ranks and batch."""
    return (
        f"dp={work.dp} tp={work.tp} pp={work.pp} zero_stage={work.zero_stage} micro_batch={work.micro_batch} "
        f"global_batch={work.global_batch} checkpointing={work.checkpointing}"
    )


def memory_lines(plan: Forecast) -> list[str]:
    """Returns the memory by kind, which adds up to the peak, and the activations by tensor.

    Fragmentation has a line where the peak has some: a device that is full without it has none.
    """
    lines = [f"{'memory of the fullest rank':32}{'GB':>18}"]
    for kind, size in zip(plan.memory._fields[:-1], plan.memory[:-1], strict=True):
        if kind == "fragmentation" and not size:
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


def verdict(plan: Forecast, suggestions: Sequence[Suggestion]) -> str:
    """Returns whether it fits, and the suggestions that make it fit."""
    limit = plan.cluster.memory_gb
    if plan.fits:
        return f"Fits: {plan.gb:.1f} of {limit:.1f} GB."
    needs = f"Does not fit: {plan.gb:.1f} of {limit:.1f} GB"
    if not suggestions:
        return f"{needs}; no two levers make it fit: take more nodes, or a smaller model."
    shown = [
        f"{suggestion.flags} ({suggestion.plan.gb:.1f} GB, {suggestion.plan.seconds:.3g} s a step)"
        for suggestion in suggestions
    ]
    return f"{needs}; the cheapest levers that make it fit are {', '.join(shown)}."


SEARCH_COLUMNS = (
    "nodes", "dp", "tp", "pp", "micro_batch", "zero_stage", "checkpointing", "sec_per_iteration", "gb", "tflops", "mfu"
)  # fmt: skip


def search_cells(found: SearchResult) -> list[list[str]]:
    """Returns the lines of the fastest divisions, in the order of SEARCH_COLUMNS."""
    lines = []
    for plan in found.fastest:
        work = plan.work
        sizes = (work.ranks // plan.cluster.per_node, work.dp, work.tp, work.pp, work.micro_batch, work.zero_stage)
        figures = f"{plan.seconds:.4f}", f"{plan.gb:.1f}", f"{plan.tflops_per_device:.1f}", f"{plan.mfu:.3f}"
        lines.append([*map(str, sizes), work.checkpointing, *figures])
    return lines
