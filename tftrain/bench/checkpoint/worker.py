"""The process that holds a model's state, saves it and restores it."""

import itertools
import os
import shlex
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from tftrain.bench.config import run_config
from tftrain.bench.worker import serve
from tftrain.checkpoint import folder, memory
from tftrain.checkpoint.reader import BLOCK_BYTES, READING_THREADS, Reader
from tftrain.checkpoint.shard import DIGESTS


def build(settings: dict[str, Any]) -> Callable[[list[str]], dict[str, float]]:
    """Builds model and optimizer.

    Args:
        settings: `flags` of tftrain.run, in one string; `--output_dir` among them is where checkpoints go.

    Returns:
        A function that takes the operation and the place of the files (see `table.ROWS`) and returns seconds and bytes.
    """
    config = run_config(shlex.split(settings["flags"]))
    from tftrain.parallel.launcher import Launch
    from tftrain.parallel.start import start
    from tftrain.run_state import Run
    from tftrain.saving.checkpoints import Checkpoints

    run = Run(config, start(Launch(), config.compute.cpu_threads))
    checkpoints = Checkpoints(run)
    home = folder.checkpoint_folder(config.run.output_dir)
    home.mkdir()
    checkpoints.prepare().join()  # In a run, the first step compiles meanwhile.
    state = sum(values.nbytes for _, values in run.tensors_to_save())
    blocks = memory.blocks(READING_THREADS, BLOCK_BYTES)
    saved: dict[str, float] = {}

    def save() -> None:
        """Saves once and records the seconds that training would have stalled, and the seconds of the whole save."""
        run.progress.step.assign_add(1)
        begin = time.perf_counter()
        checkpoints.save()
        saved["stall"] = time.perf_counter() - begin
        checkpoints.finish()
        saved["whole"] = time.perf_counter() - begin

    def answer(request: list[str]) -> dict[str, float]:
        what, files = request
        if what.startswith("stall"):
            save()
            return {"seconds": saved["stall"], "bytes": state}
        if what == "whole save":
            save()
            return {"seconds": saved["whole"], "bytes": state}
        if not folder.find(config.run.output_dir):
            save()
        (*_, newest) = folder.find(config.run.output_dir)
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
            room = run.restore_buffers()
            reader = Reader(newest)
            wanted = memory.arrays(room) if "new" in what else room
            reader.verify(wanted=wanted, digest="sha256" if "sha256" in what else "xxh3_128")
            run.load(reader)
        return {"seconds": time.perf_counter() - begin, "bytes": size}

    return answer


def read(paths: list[Path], blocks: list[np.ndarray], direct: bool = False) -> None:
    """Reads files and discards the data; it reads one file at a time into each block of memory.

    Args:
        paths: of the files.
        blocks: memory to read into.
        direct: whether to bypass the page cache.
    """
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
    cores = len(os.sched_getaffinity(0))

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
