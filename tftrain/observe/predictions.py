"""What a fine-tuned model predicts for the held-out examples: OUTPUT_DIR/predictions.jsonl and confusion_matrix.png."""

import json
import logging
from pathlib import Path

import numpy as np

from tftrain.files import durable
from tftrain.finetune.scorers import Scorer
from tftrain.observe.plot import confusion_matrix

logger = logging.getLogger(__name__)

NAMES = ("predictions.jsonl", "confusion_matrix.png")


def write(output_dir: str, scorer: Scorer, outputs: np.ndarray) -> None:
    """Writes the predictions, a JSON object a line, and the picture of a task with classes; each replaces an older one.

    `outputs` has what the task predicts for each example. Files that can't be written give a warning.
    """
    path, picture = (Path(output_dir) / name for name in NAMES)
    lines = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in scorer.predictions(outputs))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        durable.write(path, lines.encode())
        if confusion := scorer.confusion(outputs):
            confusion_matrix(*confusion, picture)
    except OSError as error:
        logger.warning(f"{path}: can't be written: {error}")


def remove(output_dir: str) -> None:
    """Removes both files, of an evaluation that the run has forgotten, and says so; one that stays gives a warning."""
    for path in (Path(output_dir) / name for name in NAMES):
        try:
            path.unlink()
            logger.info(f"{path} was of an evaluation that the run has gone back from: removed")
        except FileNotFoundError:
            pass
        except OSError as error:
            logger.warning(f"{path} is of an evaluation that the run has gone back from, and can't be removed: {error}")
