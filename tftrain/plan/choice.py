"""`--layout=auto`: the layouts of a run on all devices of a cluster, the fastest that fits first, and why."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import fields

from tftrain.config.fields import ConfigError, Problem, changed, sections
from tftrain.config.train import TrainConfig
from tftrain.host.units import GB
from tftrain.plan import levers, memory
from tftrain.plan.cluster import Cluster
from tftrain.plan.commands import LAYOUT, changes_of, layout_of, of_division, text
from tftrain.plan.config import PlanConfig, run_problems, search_request
from tftrain.plan.forecast import Forecast
from tftrain.plan.search import SCHEDULES, Constraints, SearchResult, candidates, search
from tftrain.plan.system import Constants
from tftrain.plan.workload import Workload

SHOWN = 3  # the fastest layout, and the runners-up


def freed(config: TrainConfig, given: Collection[str]) -> TrainConfig:
    """Returns a configuration without the flags of a layout that the command line does not give.

    A checkpoint may have supplied them.
    """
    values = {"fit_micro_batch": False}
    for section in sections(config):
        for field in fields(section):
            if field.name in LAYOUT and field.name not in given:
                values[field.name] = config.model.family.defaults.get(field.name, field.default)
    return changed(config, values)


def choose(config: PlanConfig, given: Collection[str], cluster: Cluster, constants: Constants) -> SearchResult:
    """Returns the fastest layouts that fit.

    Args:
        config: with the sizes of the data; of the flags of a layout it has only those in `given`, which are kept.

    Raises:
        ConfigError: no layout has these flags, or none fits; it says what would.
    """
    work, ramp, constraints = search_request(config, cluster, given)
    has_schedule = {"pipeline_schedule", "virtual_pipeline_size"} & set(given)
    constraints = constraints._replace(
        ranks=config.max_nodes * cluster.per_node, schedules=() if has_schedule else SCHEDULES
    )

    def accepts(division: Workload) -> bool:
        return changes_of(division, config).keys().isdisjoint(given) and of_division(division, config) is not None

    found = search(
        *(work, cluster, constants, config.max_nodes, SHOWN, ramp, constraints, config.plan.memory_margin), accepts
    )
    if not found.fastest:
        every = candidates(work, cluster, config.max_nodes, ramp, constraints)
        raise ConfigError(_problems(config, every, accepts, constraints, cluster, constants))
    return found


def _problems(
    config: PlanConfig,
    every: Iterable[Workload],
    accepts: Callable[[Workload], bool],
    constraints: Constraints,
    cluster: Cluster,
    constants: Constants,
) -> list[Problem]:
    """Returns why there is no layout that fits, and what would fit."""
    ranks = constraints.ranks
    by_memory = sorted(((memory.estimate(each, constants).minimum, number, each) for number, each in enumerate(every)))
    needed, _, smallest = next((each for each in by_memory if accepts(each[-1])), (0.0, 0, None))
    if smallest is None:
        expected = f"no layout of {ranks} ranks has these flags; expected other sizes, or fewer flags of the layout"
        return run_problems(config.train, ranks) or [Problem("layout", "auto", expected)]
    instead = levers.cheapest(changed(config, changes_of(smallest, config)), cluster, constants, 1)
    advice = f"add {instead[0].flags}, or " if instead else ""
    expected = (
        f"none of {len(by_memory)} layouts fits {ranks} ranks with {cluster.memory_gb:.2f} GB each, of which "
        f"{config.plan.memory_margin:.0%} stay free; {words(smallest)} needs least, {needed / GB:.2f} GB: {advice}take "
        "more ranks, more memory or a smaller model"
    )
    return [Problem("layout", "auto", expected)]


def words(work: Workload) -> str:
    """Returns a layout in words."""
    core = "flash" if "flash" in work.fused else "softmax"
    found = (
        f"data {work.dp} x tensor {work.tp} x pipeline {work.pp}, micro-batch {work.micro_batch} x "
        f"{work.micro_batches:.0f}, ZeRO-{work.zero_stage}, checkpointing {work.checkpointing}, attention {core}"
    )
    if work.pp > 1:
        found += f", schedule {work.schedule}"
    return found + ", sequence parallel" * work.sequence_parallel


def lines(found: SearchResult) -> list[str]:
    """Returns a line on the search, and one for each layout: planned seconds and memory, and the reason in words."""
    best = found.fastest[0]
    shown = [
        f"layout: {found.fitting} of {found.candidates} layouts of {best.work.ranks} ranks fit into "
        f"{best.cluster.memory_gb:.2f} GB of each on {best.cluster.name}, {best.margin:.0%} of them free"
    ]
    for number, plan in enumerate(found.fastest, 1):
        why = _slower(plan, best) if number > 1 else f"fastest of {found.fitting} layouts that fit"
        shown.append(f"  {number}  {plan.seconds:.3f} s a step, {plan.gb:.2f} GB: {words(plan.work)}: {why}")
    return shown


def _slower(plan: Forecast, best: Forecast) -> str:
    """Returns how much slower a plan is than the best one, and what takes the time."""
    more = {kind: mine - other for kind, mine, other in zip(plan.time._fields, plan.time, best.time, strict=True)}
    kind = max(more, key=more.get)
    shown = f"{100 * (plan.seconds / best.seconds - 1):.1f}% slower"
    return f"{shown}, {more[kind]:.3f} s more of {kind.replace('_', ' ')}" if more[kind] > 0 else shown


def arguments(work: Workload, config: PlanConfig, given: Collection[str]) -> list[str]:
    """Returns the flags of a layout for the command line, all but those that it gives.

    None is left out as a default, which a checkpoint would replace. The number of micro-batches follows from the sizes.
    """
    values = {**layout_of(work, config), "global_batch_size": work.global_batch}
    return [text(name, value) for name, value in values.items() if name not in {*given, "grad_accum_steps"}]
