"""The process that holds a model's state, saves it and restores it."""

import os
import shlex
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tftrain import flags
from tftrain.bench.worker import serve
from tftrain.checkpoint import folder, memory, shard
from tftrain.checkpoint.reader import READING_THREADS, Reader
from tftrain.config import TrainConfig
from tftrain.fields import ConfigError


def build(settings: dict[str, Any]) -> Callable[[list[str]], dict[str, float]]:
    """Builds model and optimizer.

    Args:
        settings: `flags` of tftrain.run, in one string; `--output_dir` among them is where checkpoints go.

    Returns:
        A function from what is to be measured and where the files are, see `table.ROWS`, to seconds and bytes.
    """
    config = flags.parse(TrainConfig, ["tftrain.run", *shlex.split(settings["flags"])])
    if problems := config.problems(1):
        raise ConfigError(problems)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.update(TF_USE_LEGACY_KERAS="1", CUDA_VISIBLE_DEVICES="-1")
    from tftrain.parallel.launcher import Launch
    from tftrain.parallel.mesh import start
    from tftrain.train.session import Run

    run = Run(config.resolve(1), start(Launch(), config.compute.cpu_threads))
    home = folder.of(config.run.output_dir)
    home.mkdir()
    run.prepare_saves().join()  # In a run, the first step compiles meanwhile.
    state = sum(values.nbytes for _, values in run.owned())
    saved: dict[str, float] = {}

    def save() -> None:
        """Saves once, and notes how long training would have stood still and how long it took."""
        run.progress.step.assign_add(1)
        begin = time.perf_counter()
        run.save()
        saved["stall"] = time.perf_counter() - begin
        run.finish()
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
            read(shards)
        begin = time.perf_counter()
        if what == "read":
            read(shards)
        else:
            reader = Reader(newest)
            reader.verify(wanted=memory.arrays(run.room()) if "new" in what else run.room())
            run.load(reader)
        return {"seconds": time.perf_counter() - begin, "bytes": sum(path.stat().st_size for path in shards)}

    return answer


def read(paths: list[Path]) -> None:
    """Reads files as fast as it goes, with as many threads as check SHA-256, and makes nothing of them."""
    with ThreadPoolExecutor(min(READING_THREADS, len(os.sched_getaffinity(0)))) as pool:
        list(pool.map(_read, paths))


def _read(path: Path) -> None:
    block = bytearray(shard.BLOCK_BYTES)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(block):
            pass


def forget(paths: list[Path]) -> None:
    """Lets the system forget what it holds of files that are on the disk."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


if __name__ == "__main__":
    serve(build)
