"""Faults to inject into a rank. Each wraps functions of tftrain in the rank's process; the product has no hooks.

A fault is a dict: {"kind": ..., "all": whether it kills all ranks or only this one, and what the kind needs}.

- "phase": in the save numbered `save` (1 is the first of this process), at the phase named `phase`.
- "instant": `seconds` after the training step numbered `step` of this process has begun; 0: after the process has.
- "stop": SIGSTOP instead of SIGKILL, at such an instant.
- "nan": the weights of this rank's masked tokens are NaN in `steps` steps from that one on.
- "reader": making the examples raises an exception.
- "term": SIGTERM at such an instant.
"""

import functools
import itertools
import os
import signal
import threading
from collections.abc import Callable

# What each rank does in a save, and what the chief does alone.
PHASES_OF_A_RANK = ("before", "folder", "shard begun", "in shard", "shard flushed", "shard written", "announced")
PHASES_OF_A_SHARD = ("shard begun", "in shard", "shard flushed", "shard written")
PHASES_OF_THE_CHIEF = (
    *("gathered", "manifest beside", "manifest in place", "announcement removed", "manifest written"),
    *("renamed, not flushed", "renamed", "trash renamed", "trash half removed", "trash removed", "cleaned up"),
)


def install(fault: dict | None) -> None:
    """Injects a fault into this process."""
    if fault:
        {
            "phase": _phase,
            "instant": functools.partial(_instant, signal.SIGKILL),
            "stop": functools.partial(_instant, signal.SIGSTOP),
            "term": functools.partial(_instant, signal.SIGTERM),
            "nan": _nan,
            "reader": _reader,
        }[fault["kind"]](fault)


def _kill(fault: dict, number: int = signal.SIGKILL) -> None:
    os.kill(0 if fault["all"] else os.getpid(), number)


def _wrap(owner, name: str, act: Callable, after: bool) -> None:
    """Calls act(count, arguments) before or after a function, which it counts the calls of."""
    function, calls = getattr(owner, name), itertools.count(1)

    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        if not after:
            act(next(calls), args)
        result = function(*args, **kwargs)
        if after:
            act(next(calls), args)
        return result

    setattr(owner, name, wrapped)


_before = functools.partial(_wrap, after=False)
_after = functools.partial(_wrap, after=True)


def _phase(fault: dict) -> None:
    from tftrain.checkpoint import save, shard
    from tftrain.files import durable

    armed = [False]

    def arm(count, _):
        # A removal needs something to remove, which a first save may not have.
        armed[0] = count >= fault["save"]
        if armed[0] and fault["phase"] == "before":
            _kill(fault)

    def die(*_):
        if armed[0]:
            _kill(fault)

    def die_of(wanted: Callable[[str], bool]):
        return lambda _, args: die() if wanted(args[0].name) else None

    def is_manifest(name):
        return name == "manifest.json"

    _before(save, "write", arm)
    {
        "before": lambda: None,
        "folder": lambda: _before(save.shard, "pack", die),
        "shard begun": lambda: _before(save, "write_shard", die),
        "in shard": lambda: _die_in_shard(shard, die),
        "shard flushed": lambda: _after(os, "fsync", die),
        "shard written": lambda: _after(save, "write_shard", die),
        "announced": lambda: _after(save, "announce", die),
        "gathered": lambda: _after(save, "gather", die),
        "manifest beside": lambda: _before(durable.Path, "replace", die_of(lambda name: "manifest" in name)),
        "manifest in place": lambda: _after(durable, "write", die_of(is_manifest)),
        "announcement removed": lambda: _after(durable.Path, "unlink", die_of(lambda name: name.startswith("rank_"))),
        "manifest written": lambda: _after(save, "write_manifest", die),
        "renamed, not flushed": lambda: _after(durable.Path, "rename", die_of(lambda name: name.startswith(".part"))),
        "renamed": lambda: _after(save, "commit", die),
        "trash renamed": lambda: _before(durable.shutil, "rmtree", die_of(lambda name: name.startswith(".trash"))),
        "trash half removed": lambda: _after(os, "unlink", lambda *_: die() if _in_clean_up() else None),
        "trash removed": lambda: _after(durable.shutil, "rmtree", die_of(lambda name: name.startswith(".trash"))),
        "cleaned up": lambda: _after(save, "clean_up", die),
    }[fault["phase"]]()


def _in_clean_up() -> bool:
    """Whether a function above this one is `save.clean_up`."""
    import sys

    frame = sys._getframe()
    while frame and frame.f_code.co_name != "clean_up":
        frame = frame.f_back
    return frame is not None


def _die_in_shard(shard, die: Callable) -> None:
    """Kills when a shard's first block is on the disk and the next ones are not."""
    shard.BLOCK_BYTES = 4096
    sha256 = shard.DIGESTS["sha256"]

    class Digest:
        def __init__(self):
            self._digest, self._blocks = sha256(), 0

        def update(self, block):
            self._digest.update(block)
            self._blocks += 1
            if self._blocks == 3:
                die()

        def hexdigest(self):
            return self._digest.hexdigest()

    shard.DIGESTS["sha256"] = Digest


def _at_step(change: Callable) -> None:
    """Calls change(number, batch) before every training step of this process; what it returns is the batch."""
    from tftrain.data import pipeline

    batches = pipeline.ramped_batches

    @functools.wraps(batches)
    def wrapped(*args, **kwargs):
        for number, batch in enumerate(batches(*args, **kwargs), 1):
            yield change(number, batch)

    pipeline.ramped_batches = wrapped


def _instant(number: int, fault: dict) -> None:
    timer = threading.Timer(fault["seconds"], _kill, (fault, number))
    timer.daemon = True

    def begin(step, batch):
        if step == fault["step"]:
            timer.start()
        return batch

    if fault["step"]:
        _at_step(begin)
    else:
        timer.start()


def _nan(fault: dict) -> None:
    def spoil(step, batch):
        if fault["step"] <= step < fault["step"] + fault["steps"]:
            return batch | {"masked_lm_weights": batch["masked_lm_weights"] * float("nan")}
        return batch

    _at_step(spoil)


def _reader(fault: dict) -> None:
    from tftrain.data.masked_source import SyntheticPairs

    _before(SyntheticPairs, "batch", lambda *_: (_ for _ in ()).throw(RuntimeError("the reader has failed")))
