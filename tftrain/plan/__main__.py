"""Plans the memory and the time of a run on a cluster, before it starts.

Example, BERT base on two nodes of eight GPUs:
    python -m tftrain.plan --cluster=a100_80gb --nodes=2 --precision=bf16 --max_seq_length=512 --micro_batch_size=32

It also compares layouts (`--search`), compares plans with published rows (`--table`, `--rows_file`), measures this
machine (`--measure`) and fits its constants (`--calibrate`). Exit codes: 0 done, 1 the run does not fit, 2 wrong flags.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from tftrain.bench.published import compare, rows
from tftrain.bench.published.row import PublishedRow
from tftrain.bench.published.software import Megatron
from tftrain.cli.program import Program
from tftrain.config.fields import ConfigError, Problem, changed
from tftrain.host.exit_codes import ExitCode
from tftrain.host.text import reason
from tftrain.host.units import GB
from tftrain.plan import choice, levers, machine, page, report
from tftrain.plan.cluster import CLUSTERS, Cluster
from tftrain.plan.commands import changes_of, of_division
from tftrain.plan.config import PlanConfig, of_phases, search_space, workload
from tftrain.plan.forecast import Forecast, forecast
from tftrain.plan.search import SearchSpace, candidates, least_memory, search
from tftrain.plan.system import Constants, systems
from tftrain.plan.workload import Workload

SOFTWARE = {"tftrain": Workload, "megatron": Megatron}  # by --trainer


def main(argv: Sequence[str]) -> int:
    """Plans what the command line says; returns the exit code."""
    program = Program(
        "plan",
        PlanConfig,
        target=lambda config: f"--machine_file={config.run.machine_file}",
        problems=lambda config: config.plan.problems(),
        piped=ExitCode.DONE,
    )
    return program.main(_job, argv)


def _job(config: PlanConfig) -> int:
    plan = config.plan
    if plan.list:
        print(listing(), end="")
    elif plan.table:
        print_rows(rows_of(plan.table), plan.format)
    elif plan.rows_file:
        own_rows, problems = rows.read_file(plan.rows_file)
        if own_rows:
            print_rows(own_rows, plan.format)
        if problems:
            raise ConfigError(problems)
    elif plan.measure:
        print(machine.measure(Path(config.run.machine_file)), end="")
    elif plan.calibrate:
        print_calibration(plan.format)
    elif plan.search:
        return print_search(config)
    else:
        return print_plan(config)
    return 0


def listing() -> str:
    """Returns the names of clusters, systems and tables."""
    tables = dict.fromkeys(row.table for row in rows.read_reference())
    groups = {"clusters": [*CLUSTERS, machine.NAME], "systems": systems(), "tables": tables}
    return "".join(f"{name}: {', '.join(names)}\n" for name, names in groups.items())


def rows_of(table: str) -> list[PublishedRow]:
    """Returns the rows of a table, or of all tables; raises a ConfigError if it does not exist."""
    every = rows.read_reference()
    tables = dict.fromkeys(row.table for row in every)
    if table != "all" and table not in tables:
        raise ConfigError([Problem("table", table, f"expected all, or one of {', '.join(tables)}")])
    return [row for row in every if table in ("all", row.table)]


def print_rows(chosen: Sequence[PublishedRow], form: str) -> None:
    """Prints plans beside published figures, and the errors of each table; with csv the errors go to stderr."""
    planned = compare.plan_all(chosen)
    print(compare.render(compare.COLUMNS, [compare.cells(each) for each in planned], form), flush=True)
    out = sys.stderr if form == "csv" else sys.stdout
    print(compare.render(compare.SUMMARY_COLUMNS, compare.summarize(planned), form), end="", file=out)
    for row in chosen:
        if row.remark:
            print(f"{row.name}: {row.remark}", file=out)
    if spread := compare.repeats(planned):
        mean, most = sum(spread) / len(spread), max(spread)
        print(f"{len(spread)} configurations ran twice: {mean:.1f} % apart, at most {most:.1f} %", file=out)


def print_calibration(form: str) -> None:
    """Prints the errors of the fitted constants, and the text of `constants.json` with them."""
    from tftrain.bench.published import calibrate  # The only import that loads numpy, a tenth of a second.

    fitted, errors = calibrate.calibrate(rows.read_reference())
    lines = [[e.figure, e.table, str(e.rows), *(f"{value:.1f}" for value in e[3:])] for e in errors]
    print(compare.render(calibrate.Errors._fields, lines, form))
    print(calibrate.to_json({**systems(), **fitted}), end="")


def machine_of(config: PlanConfig) -> tuple[Cluster, Constants]:
    """Returns the cluster and the software's constants that the flags name.

    Raises a ConfigError if the cluster or the system does not exist, or this machine has not been measured.
    """
    name, path = config.plan.cluster, config.run.machine_file
    if config.plan.ranks_per_node > 1 and name != machine.NAME:
        raise ConfigError([Problem("ranks_per_node", config.plan.ranks_per_node, f"expected --cluster={machine.NAME}")])
    cluster = machine.named(name, Path(path))
    if name == machine.NAME:
        cluster = machine.shared(cluster, config.plan.ranks_per_node)
    system = config.plan.system or machine.default_system(cluster, config.plan.trainer)
    if system not in systems():
        raise ConfigError([Problem("system", system, f"expected one of {', '.join(systems())}")])
    return cluster, systems()[system]


def print_plan(config: PlanConfig) -> int:
    """Prints the plan of a run; returns the exit status."""
    cluster, constants = machine_of(config)
    margin, every = config.plan.memory_margin, of_phases(config, cluster)
    works = [workload(own, cluster, SOFTWARE[config.plan.trainer]) for own in every]
    plans = [forecast(work, cluster, constants, margin) for work in works]
    plan = max(plans, key=lambda each: each.memory.total)
    whole, config = config, every[plans.index(plan)]
    suggestions = [] if plan.fits else levers.cheapest(config, plan, whole=whole)
    settings = config.plan
    print(report.text(plan, config.run.max_steps, suggestions, settings.examples_per_row, settings.utilisation), end="")
    if len(plans) > 1:
        print(report.phase_lines(plans, [own.run.max_steps for own in every]))
    write_page(config, whole, plan, suggestions)
    return ExitCode.DONE if plan.fits else ExitCode.FAILED


def print_search(config: PlanConfig) -> int:
    """Prints the fastest layouts on up to max_nodes nodes; returns the exit status."""
    cluster, constants = machine_of(config)
    whole, config = config, config.longest_phase
    space = search_space(config, cluster, SOFTWARE[config.plan.trainer])
    work, margin = space.work, config.plan.memory_margin

    def accepts(division: Workload) -> bool:
        return not work.runs_here or of_division(division, whole) is not None

    result = search(space, constants, config.plan.top, margin, accepts)
    columns, lines, commands = report.SEARCH_COLUMNS, report.search_cells(result, whole), ""
    if config.plan.format == "text":  # A command is wider than a terminal; other formats have all of them.
        commands = "".join(f"{number}: {line[-1]}\n" for number, line in enumerate(lines[:3], 1) if line[-1] != "-")
        columns, lines = columns[:-1], [line[:-1] for line in lines]
    print(compare.render(columns, lines, config.plan.format) + commands, end="", flush=True)
    refused = ", but a run refuses these" if result.fitting and not result.fastest else ""
    print(f"{result.candidates} layouts, {result.fitting} of them fit{refused}", file=sys.stderr)
    if result.fastest:
        write_page(config, whole, result.fastest[0])
    elif least := least_memory(space, constants, accepts):
        limit = f"{cluster.memory_gb:.1f} GB, {margin:.0%} of it free (--memory_margin)"
        smallest = f"{least[0] / GB:.1f} GB of {limit}, on {least[1].ranks} devices: {choice.describe(least[1])}"
        print(f"the smallest needs {smallest}; take more nodes, more memory or a smaller model", file=sys.stderr)
    return ExitCode.DONE if result.fastest else ExitCode.FAILED


def write_page(config: PlanConfig, whole: PlanConfig, plan: Forecast, suggestions: Sequence[levers.Lever] = ()) -> None:
    """Writes the page of a plan to --html, if it is given; raises a ConfigError if that fails.

    `config` is the configuration of the planned phase. `whole` is the configuration of the whole run, whose commands
    the page shows.
    """
    if not config.plan.html:
        return
    work, cluster = plan.work, plan.cluster
    config = changed(config, {**changes_of(work, config), "nodes": work.ranks // cluster.per_node})
    alone = list(levers.levers(config, plan))
    space = SearchSpace(work, cluster, config.plan.nodes, fixed={"ranks": work.ranks})
    every = [forecast(layout, cluster, plan.constants) for layout in candidates(space)]
    try:
        page.write(Path(config.plan.html), plan, whole, config.run.max_steps, suggestions, alone, every)
    except OSError as error:
        expected = f"expected a file to write: {reason(error)}"
        raise ConfigError([Problem("html", config.plan.html, expected)]) from error


if __name__ == "__main__":
    sys.exit(main(sys.argv))
