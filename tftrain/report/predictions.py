"""What a fine-tuned model predicts for the held-out examples: OUTPUT_DIR/predictions.jsonl and confusion_matrix.png."""

import json
import logging
from pathlib import Path

import numpy as np

from tftrain.checkpoint import durable
from tftrain.labelled.scorers import Scorer
from tftrain.report.plot import confusion_matrix

logger = logging.getLogger(__name__)


def write(output_dir: str, scorer: Scorer, outputs: np.ndarray) -> None:
    """Writes the predictions, a JSON object a line, and the picture of a task with classes; each replaces an older one.

    Files that can't be written give a warning. `outputs` is what the task predicts for each example.
    """
    path = Path(output_dir) / "predictions.jsonl"
    lines = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in scorer.predictions(outputs))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        durable.write(path, lines.encode())
        if confusion := scorer.confusion(outputs):
            confusion_matrix(*confusion, path.with_name("confusion_matrix.png"))
    except OSError as error:
        logger.warning(f"{path}: can't be written: {error}")
