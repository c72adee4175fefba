"""`--layout=auto`: the layouts of a run on all devices of a cluster, the fastest that fits first, and why."""

from collections.abc import Set
from typing import NamedTuple

from tftrain.config.fields import ConfigError, Problem, changed, flag_values
from tftrain.host.units import GB
from tftrain.plan import levers
from tftrain.plan.cluster import Cluster
from tftrain.plan.commands import FOR_SOME, changes_of, layout_of, of_division, text
from tftrain.plan.config import PlanConfig, search_space, workload
from tftrain.plan.forecast import forecast
from tftrain.plan.search import SearchResult, least_memory, search
from tftrain.plan.system import Constants
from tftrain.plan.workload import Workload


class Request(NamedTuple):
    """What a layout is chosen for."""

    config: PlanConfig  # with the sizes of the data, and of the flags of a layout those in `given` alone
    given: Set[str]  # names of the flags that the command line gives, which are kept
    cluster: Cluster
    constants: Constants
    whole: PlanConfig | None = None  # with the phases, if there are some; `config` is that of one


def choose(request: Request, top: int = 3) -> SearchResult:
    """Returns the fastest layouts that fit; a ConfigError if none has the given flags, or none fits: what would."""
    config, fixed_flags, cluster, constants, whole = request
    ranks, margin = config.max_nodes * cluster.per_node, config.plan.memory_margin
    space = search_space(config, cluster, ranks=ranks, named=fixed_flags)

    def accepts(division: Workload) -> bool:
        keeps = fixed_flags.isdisjoint(changes_of(division, config))
        return keeps and all(of_division(division, each) for each in (config, whole) if each)

    result = search(space, constants, top, margin, accepts)
    if result.fastest:
        return result
    smallest = least_memory(space, constants, accepts)
    if smallest is None:
        expected = f"no layout of {ranks} ranks has the flags that are given; expected other sizes, or fewer of them"
        raise ConfigError(config.run_problems(ranks) or [Problem("layout", "auto", expected)])
    needed, least = smallest
    smallest_config = changed(config, changes_of(least, config))
    plan = forecast(workload(smallest_config, cluster), cluster, constants, margin)
    instead = levers.cheapest(smallest_config, plan, 1)
    advice = f"add {instead[0].flags}, or take" if instead else "take"
    limit = f"{cluster.memory_gb:.2f} GB each, {margin:.0%} of it free"
    expected = (
        f"none of {result.candidates} layouts fits {ranks} ranks with {limit}; the smallest needs {describe(least)}, "
        f"{needed / GB:.2f} GB: {advice} more ranks, more memory or a smaller model"
    )
    raise ConfigError([Problem("layout", "auto", expected)])


def describe(work: Workload) -> str:
    """Returns a layout in words."""
    described = (
        f"data {work.dp} x tensor {work.tp} x pipeline {work.pp}, micro-batch {work.micro_batch} x "
        f"{work.micro_batches:.0f}, ZeRO-{work.zero_stage}, checkpointing {work.checkpointing}, attention {work.core}"
    )
    return described + f", schedule {work.schedule}" * (work.pp > 1) + ", sequence parallel" * work.sequence_parallel


def lines(result: SearchResult) -> list[str]:
    """Returns a line on the search, and one for each layout: planned seconds and memory, and the reason in words."""
    best = result.fastest[0]
    shown = [f"layout: that of the checkpoint stays, on {best.work.ranks} ranks"]
    if result.candidates:
        of_all = f"layout: {result.fitting} of {result.candidates} layouts of {best.work.ranks} ranks fit into "
        shown = [f"{of_all}{best.cluster.memory_gb:.2f} GB each on {best.cluster.name}, {best.margin:.0%} of it free"]
    for number, plan in enumerate(result.fastest, 1):
        slower, more = plan.seconds / best.seconds - 1, [a - b for a, b in zip(plan.time, best.time, strict=True)]
        kind = plan.time._fields[more.index(max(more))].replace("_", " ")
        why = f"{slower:.1%} slower, mostly by {kind}" if slower > 0.0005 else "as fast"
        if plan is best:
            why = f"fastest of {result.fitting} layouts that fit" if result.candidates else "not searched"
        shown.append(f"  {number}  {plan.seconds:.3f} s a step, {plan.gb:.2f} GB: {describe(plan.work)}: {why}")
    return shown


def arguments(work: Workload, request: Request) -> list[str]:
    """Returns the flags of a layout that the command line does not give, defaults too: a checkpoint has others."""
    config = request.config
    values = {**layout_of(work, config.parallel), "global_batch_size": work.global_batch}
    current = flag_values(config)
    values |= {name: current[name] for name in FOR_SOME}
    return [text(name, value) for name, value in values.items() if name not in {*request.given, "grad_accum_steps"}]
