"""OUTPUT_DIR/best.json: the scores of all evaluations of a run. A resumed run reads them, and `--resume=best` does."""

from pathlib import Path

import msgspec

from tftrain.checkpoint import folder
from tftrain.files import durable

NAME = "best.json"


class Score(msgspec.Struct, frozen=True):
    """The score of one evaluation; None if it was not finite."""

    step: int
    value: float | None


class Scores(msgspec.Struct):
    """The content of the file: the name of the score, and its value in each evaluation."""

    metric: str
    evaluations: list[Score]

    @property
    def best(self) -> Score | None:
        """The evaluation with the highest score, the first one of equal ones; None if there is none."""
        finite = [each for each in self.evaluations if each.value is not None]
        return max(finite, key=lambda each: each.value) if finite else None


def read(output_dir: str | Path) -> Scores | None:
    """Returns the scores of a run; None if there are none, or they can't be read."""
    try:
        return decode((Path(output_dir) / NAME).read_bytes())
    except OSError:
        return None


def decode(content: bytes) -> Scores | None:
    """Returns the scores in a file; None if they can't be read."""
    try:
        return msgspec.json.decode(content, type=Scores)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def best_step(output_dir: str | Path) -> int | None:
    """Returns the updates of a run before its best evaluation; None if there is none."""
    scores = read(output_dir)
    return scores and scores.best and scores.best.step


def checkpoint(output_dir: str | Path) -> Path | None:
    """Returns the checkpoint of a run with the best score; None if there is none."""
    step = best_step(output_dir)
    return next((path for path in reversed(folder.find(output_dir)) if folder.order(path)[0] == step), None)


def write(output_dir: str | Path, scores: Scores) -> None:
    """Writes the scores of a run; raises an OSError if it can't."""
    content = msgspec.json.format(msgspec.json.encode(scores), indent=1)
    durable.write(Path(output_dir) / NAME, content + b"\n")
