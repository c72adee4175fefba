"""Table `checkpoint`: how long a save of a BERT base state, 110M parameters in fp32, stops training; its restoring.

All rows are measured in one process, on one rank and the same files, in alternation. The files are in a temporary
folder in `--output_dir`: its disk is measured.
"""

import itertools
import mmap
import os
import shlex
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from tftrain.bench import host
from tftrain.bench.config import BenchConfig, run_config
from tftrain.bench.table import BenchTable, Record, RowOutcome, Say, TableRow, columns
from tftrain.bench.worker import Worker, serve
from tftrain.checkpoint import folder, memory, memory_slot
from tftrain.checkpoint.reader import READING_THREADS, Reader
from tftrain.checkpoint.shard import DIGESTS
from tftrain.checkpoint.source import BLOCK_BYTES
from tftrain.host import hardware
from tftrain.page.bars import BarSeries, Panel

STEPS = 5
# Saves in the middle of a run, so there is a buffer for the copy.
FLAGS = (
    "--synthetic_data --vocab_size=30522 --max_seq_length=128 --micro_batch_size=1 --checkpoint_every=1 "
    "--memory_checkpoint_steps=1 --output_dir={folder}"
)
# The operation, and where the files are; reading comes before the operations that are compared with it.
ROWS = (
    ("stall of the first save", "-"),
    ("stall of a later save", "-"),
    ("stall of a copy in memory", "-"),
    ("whole save", "disk"),
    ("xxh3_128", "memory"),
    ("sha256", "memory"),
    ("read", "page cache"),
    ("restore", "page cache"),
    ("read", "disk"),
    ("restore", "disk"),
    ("restore by sha256", "disk"),
    ("restore into new memory", "disk"),
)


def measure(group: list[TableRow], config: BenchConfig, say: Say) -> Iterator[RowOutcome]:
    """Measures every row `--steps` times and yields the medians; share_of_read needs the row of reading too."""
    steps = config.steps or STEPS
    say(f"{steps} times each")
    Path(config.output_dir).mkdir(parents=True, exist_ok=True)
    home = tempfile.mkdtemp(prefix="checkpoint_", dir=config.output_dir)
    flags = f"{FLAGS.format(folder=home)} --cpu_threads={host.threads(config.cpu_threads)} {config.extra_flags}"
    measured: dict[str, list[dict[str, float]]] = {row.name: [] for row in group}
    try:
        with Worker("tftrain.bench.checkpoint", {"flags": flags}) as worker:
            for _ in range(steps):
                for row in group:
                    measured[row.name].append(worker.ask([row.settings["what"], row.settings["files"]]))
    finally:
        for folder_of_run in (memory_slot.home_of(home), home):
            shutil.rmtree(folder_of_run, ignore_errors=True)
    rates: dict[str, float] = {}
    for row in group:
        yield RowOutcome(row.name, [record(row, measured[row.name], rates)])


def record(row: TableRow, measured: list[dict[str, float]], rates: dict[str, float]) -> Record:
    """Returns a row's record from the seconds and bytes of each measurement; rows of the first save use the first.

    `rates` has the bytes per second of reading, by the place of the files. A row of reading fills it in.
    """
    what, files = row.settings["what"], row.settings["files"]
    chosen = measured[:1] if "first" in what else measured
    seconds, size = statistics.median(each["seconds"] for each in chosen), chosen[0]["bytes"]
    rate = size / seconds
    if what == "read":
        rates[files] = rate
    share = rate / rates[files] if files in rates else None
    return {**row.settings, "seconds": seconds, "gb": size / 1e9, "gb_per_s": rate / 1e9, "share_of_read": share}


CHECKPOINT = BenchTable(
    "checkpoint",
    "stall and duration of an asynchronous save of a BERT base state, and restoring it beside plain reading",
    columns("what files seconds:3 gb:3 gb_per_s:2 share_of_read:2"),
    tuple(
        TableRow(f"{what}/{files}".replace(" ", "_").removesuffix("/-"), "all", {"what": what, "files": files})
        for what, files in ROWS
    ),
    measure,
    panels=(Panel("Seconds", (BarSeries("seconds"),), ".3f", " s"),),
    chart_note="A bar is the median time of an operation, and its label is the same number.",
)


def build(settings: dict[str, Any]) -> Callable[[list[str]], dict[str, float]]:
    """Builds model and optimizer of the measuring process; `settings` has the `flags` of tftrain.run as one text.

    Returns a function that takes the operation and the place of the files (see `ROWS`) and returns seconds and bytes.
    """
    config = run_config(shlex.split(settings["flags"]))
    from tftrain.inputs.inputs import Inputs
    from tftrain.parallel.launcher import Launch
    from tftrain.parallel.start import start
    from tftrain.state.checkpoints import Checkpoints
    from tftrain.state.new_run import new_run

    run = new_run(config, start(Launch(), config.compute.cpu_threads))
    checkpoints = Checkpoints(run, Inputs.open(config))
    folder.checkpoint_folder(config.run.folder).mkdir()
    checkpoints.prepare().join()  # In a run, the first step compiles meanwhile.
    checkpoints.in_memory.wait()
    state = sum(values.nbytes for _, values in run.tensors_to_save())
    blocks = [np.frombuffer(mmap.mmap(-1, BLOCK_BYTES), np.uint8) for _ in range(READING_THREADS)]  # whole pages

    def save(in_memory: bool) -> tuple[float, float]:
        """Saves once; returns the seconds that training would have stalled, and those of the whole save."""
        run.progress.step.assign_add(1)
        begin = time.perf_counter()
        checkpoints.save_in_memory() if in_memory else checkpoints.save()
        stall = time.perf_counter() - begin
        checkpoints.in_memory.wait() if in_memory else checkpoints.saves.finish()
        return stall, time.perf_counter() - begin

    def answer(request: list[str]) -> dict[str, float]:
        what, files = request
        if "stall" in what or "save" in what:
            stall, whole = save("memory" in what)
            return {"seconds": whole if what == "whole save" else stall, "bytes": state}
        if not folder.find(config.run.folder):
            save(in_memory=False)
        (*_, newest) = folder.find(config.run.folder)
        shards = sorted(newest.glob("*.safetensors"))
        if files == "disk":
            forget(shards)
        else:
            read(shards, blocks)
        size = sum(path.stat().st_size for path in shards)
        begin = time.perf_counter()
        if what == "read":
            read(shards, blocks, direct=files == "disk")
        elif what in DIGESTS:
            digest(what, size, blocks)
        else:
            buffers = run.restore_buffers()
            reader = Reader(newest)
            wanted = memory.arrays(buffers) if "new" in what else buffers
            reader.verify(wanted=wanted, check="sha256" if "sha256" in what else "xxh3_128")
            run.load(reader)
        return {"seconds": time.perf_counter() - begin, "bytes": size}

    return answer


def read(paths: list[Path], blocks: list[np.ndarray], direct: bool = False) -> None:
    """Reads files, one at a time into each block of memory, and discards the data; `direct` bypasses the page cache."""
    idle: SimpleQueue[np.ndarray] = SimpleQueue()
    for block in blocks:
        idle.put(block)

    def take(path: Path) -> None:
        block, position = idle.get(), 0
        descriptor = os.open(path, os.O_RDONLY | (os.O_DIRECT if direct else 0))
        try:
            while read := os.preadv(descriptor, [block], position):
                position += read
        finally:
            os.close(descriptor)
            idle.put(block)

    with ThreadPoolExecutor(len(blocks)) as pool:
        list(pool.map(take, paths))


def digest(name: str, size: int, blocks: list[np.ndarray]) -> None:
    """Computes one of `shard.DIGESTS` over this number of bytes of memory, on all cores."""
    cores = hardware.cores()

    def work(block: np.ndarray) -> None:
        state = DIGESTS[name]()
        for _ in range(size // block.nbytes // cores):
            state.update(block)

    with ThreadPoolExecutor(cores) as pool:
        list(pool.map(work, itertools.islice(itertools.cycle(blocks), cores)))


def forget(paths: list[Path]) -> None:
    """Drops files from the page cache."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


if __name__ == "__main__":
    serve(build)
