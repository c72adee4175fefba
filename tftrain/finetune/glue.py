"""The files of GLUE (Wang et al., arXiv 1804.07461): where each task has its texts and labels, and how it is scored.

The tasks of two texts are listed with the columns of both. Files of CoLA have no header.
"""

import os
from typing import NamedTuple


class GlueTask(NamedTuple):
    """The columns, labels and score of one task."""

    texts: tuple[str, ...]  # columns of the texts
    label: str  # column of the label
    metric: str = "accuracy"  # the score that GLUE reports first
    task: str = "classification"
    labels: tuple[str, ...] | None = None  # in the order of GLUE's numbers; None: as in the file
    eval_file: str = "dev.tsv"
    header: bool = True  # whether files have one
    skips_damaged: bool = False  # whether lines with another number of fields are left out: QQP has a few


_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_NLI = ("contradiction", "entailment", "neutral")
_MNLI = GlueTask(("sentence1", "sentence2"), "gold_label", labels=_NLI, eval_file="dev_matched.tsv")
TASKS = {
    "cola": GlueTask(("3",), "1", "matthews", labels=_BINARY, header=False),
    "sst2": GlueTask(("sentence",), "label", labels=_BINARY),
    "mrpc": GlueTask(("#1 String", "#2 String"), "Quality", "f1", labels=_BINARY),
    "stsb": GlueTask(("sentence1", "sentence2"), "score", "pearson", "regression"),
    "qqp": GlueTask(("question1", "question2"), "is_duplicate", "f1", labels=_BINARY, skips_damaged=True),
    "mnli": _MNLI,
    "mnli_mismatched": _MNLI._replace(eval_file="dev_mismatched.tsv"),
    "qnli": GlueTask(("question", "sentence"), "label", labels=_ENTAILMENT),
    "rte": GlueTask(("sentence1", "sentence2"), "label", labels=_ENTAILMENT),
    "wnli": GlueTask(("sentence1", "sentence2"), "label", labels=_BINARY),
}


def path_of(name: str, folder: str, split: str) -> str:
    """Returns the file of a split, "train" or "eval", of a task."""
    return os.path.join(folder, "train.tsv" if split == "train" else TASKS[name].eval_file)
