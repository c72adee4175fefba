"""Reads the splits of labelled files, and checks their labels; needs no TensorFlow."""

from collections.abc import Sequence

from tftrain.config.train import TrainConfig
from tftrain.input.errors import DataError
from tftrain.labelled import conll, examples, squad
from tftrain.labelled.glue import TASKS as GLUE_TASKS

WITH_CLASSES = ("classification", "multi_label", "token_classification")


def read_split(config: TrainConfig, split: str) -> list:
    """Reads the examples of a split, "train" or "eval", as the task has them: texts, sentences or questions.

    Raises:
        DataError: the file can't be read, or an example is damaged; the message names the line.
    """
    task, settings = config.model.task, config.fine_tuning
    if task == "token_classification":
        return conll.read_sentences(examples.path_of(settings, split))
    if task == "question_answering":
        return squad.read_questions(examples.path_of(settings, split))
    return examples.read_examples(settings, task, split)


def labels_of(config: TrainConfig, found: Sequence | None = None) -> tuple[str, ...]:
    """Returns the classes in the training file, in order; none for a task without classes.

    Args:
        config: any with a valid task.
        found: the training examples, if they were read before.

    Raises:
        DataError: see `read_split`.
    """
    task, settings = config.model.task, config.fine_tuning
    if task not in WITH_CLASSES:
        return ()
    if settings.glue_task:
        return GLUE_TASKS[settings.glue_task].labels
    return labels_in(read_split(config, "train") if found is None else found, task)


def labels_in(found: Sequence, task: str) -> tuple[str, ...]:
    """Returns the classes of examples, in order.

    Raises:
        DataError: there are too few, or far too many.
    """
    if task == "token_classification":
        return examples.sorted_labels({tag for sentence in found for tag in sentence.tags}, found[0].place, task)
    return examples.labels_of(found, task)


def check_labels(found: Sequence, task: str, labels: Sequence[str]) -> None:
    """Checks that all labels of examples are classes of the model.

    Raises:
        DataError: one is not; the message names the line.
    """
    known = set(labels)
    for example in found if task in WITH_CLASSES else ():
        own = example.tags if task == "token_classification" else example.label
        for label in (own,) if task == "classification" else own:
            if label not in known:
                shown = ", ".join(labels[:10]) + (f" and {len(labels) - 10} more" if len(labels) > 10 else "")
                raise DataError(f"{example.place}: the label {label!r} is not one of the model's: {shown}")
