"""The result of a training, bit for bit: its losses and the digests of its last checkpoint."""

import json
from pathlib import Path
from typing import NamedTuple

from tftrain.checkpoint import folder
from tftrain.checkpoint.reader import Reader


class FinalState(NamedTuple):
    """The loss of each step, and the SHA-256 of each file of the last checkpoint."""

    losses: dict[int, float]
    shards: dict[str, str]


def logged_steps(output_dir: Path) -> list[dict]:
    """Returns the rows of training steps, without a last line that was cut short."""
    path = output_dir / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [row for row in map(json.loads, lines) if "loss" in row]


def final_state(output_dir: Path) -> FinalState:
    """Returns the result of a training."""
    newest = folder.newest(output_dir)
    files = Reader(newest).manifest.files if newest else {}
    losses = {row["step"]: row["loss"] for row in logged_steps(output_dir)}
    return FinalState(losses, {name: file.digests["sha256"] for name, file in files.items()})


def differences(found: FinalState, undisturbed: FinalState) -> list[str]:
    """Returns how a result differs from the one of an undisturbed training: every loss and every byte counts."""
    problems = []
    if list(found.losses.items()) != list(undisturbed.losses.items()):
        problems.append(f"losses {found.losses}, undisturbed {undisturbed.losses}")
    if found.shards != undisturbed.shards:
        problems.append("the last checkpoint has other bytes than the undisturbed one")
    return problems
