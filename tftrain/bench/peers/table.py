"""The rows of table `peers`: implementations by task and number format; those of one task and format take turns.

Each has a process of its own, which keeps its model and waits while the others measure. If memory does not hold all
processes, ours takes turns with one peer after the other.
"""

import dataclasses
import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from tftrain.bench import host
from tftrain.bench.config import BenchConfig
from tftrain.bench.peers import task, text
from tftrain.bench.report import spread
from tftrain.bench.table import BenchTable, RowOutcome, Say, TableRow, cases, columns, in_turns
from tftrain.bench.worker import ROOT, MeasureError, Worker
from tftrain.page.bars import MEANING, speed_panel

OURS, LONGEST = "tftrain", "hugging_face_eager_longest"
STEPS = 10
WARM_UP = 3
MEMORY_GB = dict.fromkeys(task.TASKS, 6.5) | {task.TEXT: 10.0}  # a process of one implementation
# By family; ModernBERT has no biases to add with dropout.
OUR_FLAGS = {
    task.BERT: f"--flagfile={ROOT / 'configs' / 'fused.flags'} --attn_impl=flash",
    task.MODERNBERT: "--attn_impl=flash --optimizer=fused_lamb",
}

IMPLEMENTATIONS: dict[str, dict[str, Any]] = {
    OURS: {"module": "tftrain.bench.peers.training"},
    "tf_models_graph": {"module": "tftrain.bench.peers.tf_models_worker", "jit": False},
    "tf_models_xla": {"module": "tftrain.bench.peers.tf_models_worker", "jit": True},
    "hugging_face_eager": {"module": "tftrain.bench.peers.torch_worker", "jit": False, "torch": True},
    "hugging_face_compiled": {"module": "tftrain.bench.peers.torch_worker", "jit": True, "torch": True},
    LONGEST: {"module": "tftrain.bench.peers.torch_worker", "jit": False, "torch": True, "longest": True},
}
OF_TASK = {
    task.SYNTHETIC: [name for name in IMPLEMENTATIONS if name != LONGEST],
    task.TEXT: list(IMPLEMENTATIONS),
    task.MODERN: [OURS, "hugging_face_eager", "hugging_face_compiled"],
    task.MODERN_LONG: [OURS, "hugging_face_eager", "hugging_face_compiled"],
    task.MODERN_TEXT: [OURS, LONGEST],
    task.MODERN_LONG_TEXT: [OURS, LONGEST],
}


def rows() -> tuple[TableRow, ...]:
    """Returns every implementation of every task in bf16 and in fp32."""
    settings = (
        {"implementation": name, "precision": dtype, "task": work, "flags": OUR_FLAGS[task.TASKS[work].family]}
        for work, names in OF_TASK.items()
        for dtype in ("bf16", "fp32")
        for name in names
    )
    settings = (each | IMPLEMENTATIONS[each["implementation"]] for each in settings)
    return cases(settings, "{task}/{implementation}/{precision}", "{task}/{precision}")


def measure(group: list[TableRow], config: BenchConfig, say: Say) -> Iterator[RowOutcome]:
    """Measures the implementations of one task and number format in turns, one concurrent set after the other."""
    work = group[0].settings["task"]
    if not task.TASKS[work].of_text:
        yield from take_turns(group, config, say)
        return
    with text.prepared(work) as prepared_text:
        say(f"real text: {prepared_text['examples_per_row']:.2f} examples in a packed row")
        yield from take_turns([of_text(row, prepared_text) for row in group], config, say)


def of_text(row: TableRow, numbers: dict[str, Any]) -> TableRow:
    """Returns a row with the batches of its implementation, and the examples of their rows; see `text.prepared`."""
    ours = row.settings["implementation"] == OURS
    batches = numbers[text.PACKED if ours else text.PADDED]
    examples = {"examples_per_row": numbers["examples_per_row"] if ours else 1}
    return dataclasses.replace(row, settings={**row.settings, **batches, **examples})


def take_turns(group: list[TableRow], config: BenchConfig, say: Say) -> Iterator[RowOutcome]:
    """Measures rows in turns, see `measure`; the process of ours stays, those of peers end with their set."""
    workers: dict[str, Worker] = {}
    errors: dict[str, str] = {}
    seconds: dict[str, list[float]] = {row.name: [] for row in group}
    rounds = -(-(config.steps or STEPS) // (task.TURN_STEPS - 1))

    def take(rows: list[TableRow], steps: int) -> dict[str, list[float]]:
        """Returns the seconds of each step by row; ends the processes that fail."""
        answers = in_turns(rows, 1, lambda row: workers[row.name].ask(steps), errors)
        for name in errors.keys() & workers.keys():
            workers.pop(name).stop()
        return {name: given[0] for name, given in answers.items() if given}

    with ExitStack() as ours:
        for rows in concurrent_rows(group, host.available_memory_gb()):
            with ExitStack() as peers:
                for row in [row for row in rows if row.name not in (workers | errors)]:
                    try:
                        worker = start(row, config)
                    except MeasureError as error:
                        errors[row.name] = str(error)
                        continue
                    stack = ours if row.settings["implementation"] == OURS else peers
                    workers[row.name] = stack.enter_context(worker)
                    for warm in take([row], WARM_UP).values():
                        say(f"{row.name}: the first step took {warm[0]:.1f} s, step {len(warm)} {warm[-1]:.2f} s")
                for number in range(1, rounds + 1):
                    taken = take(rows, task.TURN_STEPS)
                    for row in rows:
                        seconds[row.name] += taken.get(row.name, [])[1:]
                    rates = ", ".join(f"{name} {times[-1]:.2f} s" for name, times in taken.items())
                    say(f"round {number}/{rounds}: {rates}; {host.load()}")
                for row in rows:
                    if row.settings["implementation"] != OURS:
                        workers.pop(row.name, None)
    advised = {row.name: _advice(row, errors[row.name], config) for row in group if row.name in errors}
    yield from outcomes(group, seconds, advised)


def concurrent_rows(group: list[TableRow], free_gb: float) -> list[list[TableRow]]:
    """Returns the sets of rows that run at the same time: all, or if memory is short, ours with one peer each."""
    ours = [row for row in group if row.settings["implementation"] == OURS]
    peers = [row for row in group if row not in ours]
    needed = MEMORY_GB[group[0].settings["task"]] * len(group)
    return [[*ours, peer] for peer in peers] if ours and peers and free_gb < needed else [group]


def start(row: TableRow, config: BenchConfig) -> Worker:
    """Starts the process of a row; raises MeasureError if that fails, or memory is short."""
    free, needed = host.available_memory_gb(), MEMORY_GB[row.settings["task"]]
    if free < needed:
        raise MeasureError(f"{free:.1f} GB of memory are free, expected {needed}; end other programs")
    settings = {**row.settings, "threads": host.threads(config.cpu_threads), "extra_flags": config.extra_flags}
    python = config.torch_python if row.settings.get("torch") else None
    return Worker(row.settings["module"], settings, python or sys.executable)


def outcomes(group: list[TableRow], seconds: dict[str, list[float]], errors: dict[str, str]) -> Iterator[RowOutcome]:
    """Yields the outcome of each row of a group from the seconds of its counted steps, or its error.

    A row's figure is the median. The batches of real text take different times, so their mean is used.
    """
    work = group[0].settings["task"]
    size = task.TASKS[work]
    rows = {row.name: row.settings for row in group if row.name not in errors}
    times = {name: spread(seconds[name]) for name in rows}
    means = {name: statistics.fmean(seconds[name]) if size.of_text else times[name]["median"] for name in rows}
    speeds = {name: _tokens(rows[name], size, len(seconds[name])) / means[name] for name in rows}
    base = max((name for name in rows if rows[name]["implementation"] != OURS), key=speeds.get, default=None)
    best, base_spread = speeds.get(base), None
    if base and len(seconds[base]) > 1:  # one step has no spread
        base_spread = 100 * (times[base]["high"] - times[base]["low"]) / times[base]["median"]
    for row in group:
        if row.name in errors:
            yield RowOutcome(row.name, [], errors[row.name])
            continue
        time, mean, speed = times[row.name], means[row.name], speeds[row.name]
        samples = row.settings.get("rows", size.rows)
        record = {
            "implementation": row.settings["implementation"],
            "dtype": row.settings["precision"],
            "task": work,
            "samples_per_sec": samples / mean,
            "real_samples_per_sec": samples / mean * row.settings.get("examples_per_row", 1),
            "real_tokens_per_sec": speed,
            "ratio_to_best_peer": speed / best if best else None,
            "speed_change_pct": 100 * (speed / best - 1) if best else None,
            "base_spread_pct": base_spread,
            "samples_per_sec_low": samples / time["high"],
            "samples_per_sec_high": samples / time["low"],
            "steps": len(seconds[row.name]),
        }
        yield RowOutcome(row.name, [record])


def _tokens(settings: dict[str, Any], size: task.PeerTask, steps: int) -> float:
    """Returns the mean tokens of the measured steps without padding; `task.turns` says which batches they take."""
    tokens, first = settings.get("tokens", [size.rows * size.length]), WARM_UP - 1
    return statistics.fmean(tokens[step % len(tokens)] for step in range(first, first + steps))


def _advice(row: TableRow, error: str, config: BenchConfig) -> str:
    if row.settings.get("torch") and "ModuleNotFoundError" in error:
        python = config.torch_python or sys.executable
        return f"{error}; {python} has no torch or transformers: name one that has both with --torch_python"
    return error


PEERS = BenchTable(
    "peers",
    "a whole update of BERT base or a ModernBERT, on random full rows and on real text, here and elsewhere, in turns",
    columns(
        "implementation dtype task samples_per_sec:3 real_samples_per_sec:3 real_tokens_per_sec:1 ratio_to_best_peer:3"
    ),
    rows(),
    measure,
    panels=(speed_panel("Real tokens/s: change, %"),),
    chart_note=MEANING.format(
        base="the fastest peer in the same task and number format",
        spread="the distance between the quartiles of its steps",
    ),
)
