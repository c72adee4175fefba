"""Examples of text with labels, as tables have them: one text or a pair, and a class, classes or a number."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.input.errors import DataError
from tftrain.input.table_rows import Row
from tftrain.labelled import glue
from tftrain.labelled.tables import column_of, read_table, text_of

TEXT_COLUMNS = ("text", "sentence", "text_a", "sentence1")
PAIR_COLUMNS = ("text_pair", "text_b", "sentence2")
LABEL_COLUMNS = ("label", "labels", "score")
MAX_LABELS = 10_000
_MOST_DIGITS = 4300  # Python's int() reads no longer texts.


class TextExample(NamedTuple):
    """One text or two; its file and line, for messages."""

    place: str
    texts: tuple[str, ...]
    label: str | tuple[str, ...] | float | None  # a class, classes (multi_label) or a number (regression), if any


def read_examples(settings: FineTuningConfig, task: str, split: str, reports: bool = False) -> list[TextExample]:
    """Reads the examples of a split, "train" or "eval", for a task on texts or pairs; for `reports` see `read_table`.

    Raises:
        DataError: the file can't be read, or an example has no text or no label; the message names the line.
    """
    if settings.glue_task:
        layout = glue.TASKS[settings.glue_task]
        rows = read_table(path_of(settings, split), layout.header, layout.skips_damaged, reports)
        columns, label = layout.texts, layout.label
        for column in (*columns, label):
            if column not in rows[0].values:
                expected = f"expected the layout of --glue_task={settings.glue_task}"
                raise DataError(f"{rows[0].place}: no column {column!r}; {expected}")
    else:
        rows = read_table(path_of(settings, split), settings.header)
        columns, label = _columns(rows[0], settings, task)
    texts = [tuple(text_of(row, name) for name in columns) for row in rows]
    labels = [label and _label(row, label, task, settings) for row in rows]
    return [TextExample(row.place, *each) for row, *each in zip(rows, texts, labels, strict=True)]


def _columns(row: Row, settings: FineTuningConfig, task: str) -> tuple[list[str], str | None]:
    """Returns the columns of the texts and that of the label, given any row."""
    columns = [column_of(row, settings.text_column, TEXT_COLUMNS, "text_column")]
    if settings.text_pair_column or task == "embedding":
        columns.append(column_of(row, settings.text_pair_column, PAIR_COLUMNS, "text_pair_column"))
    elif not settings.text_column and (pairs := [column for column in PAIR_COLUMNS if column in row.values]):
        remedy = f"give it, or --text_column={columns[0]} to leave the other text out"
        raise DataError(f"{row.place}: there is a column {pairs[0]}, but no --text_pair_column; {remedy}")
    if task == "embedding" and not settings.label_column:
        return columns, None
    return columns, column_of(row, settings.label_column, LABEL_COLUMNS, "label_column")


def path_of(settings: FineTuningConfig, split: str) -> str:
    """Returns the file of a split; raises DataError if none is given."""
    if settings.glue_task:
        return glue.path_of(settings.glue_task, settings.glue_dir, split)
    path = settings.train_file if split == "train" else settings.eval_file
    if path is None:
        raise DataError(f"--{split}_file is not given; expected a file of labelled examples")
    return path


def _label(row: Row, column: str, task: str, settings: FineTuningConfig) -> Any:
    value = row.values.get(column)
    if task == "multi_label":
        if isinstance(value, str):
            separator = settings.label_separator
            value = [label.strip() for label in (value.split(separator) if separator else [value])]
        labels = value if isinstance(value, list) else [] if value is None else [value]
        return tuple(_class(each, row, column) for each in labels if each != "")
    if task in ("regression", "embedding"):
        return number(value, f"{row.place}: {column}")
    return _class(value, row, column)


def _class(value: Any, row: Row, column: str) -> str:
    if value is None or value == "" or isinstance(value, list | dict):
        raise DataError(f"{row.place}: {column} is {value!r}; expected a label")
    return str(value).lower() if isinstance(value, bool) else str(value)


def number(value: Any, what: str) -> float:
    """Returns a finite number, or raises a DataError whose message begins with `what`."""
    try:
        # Python reads 1_0 as 10.
        number = math.nan if isinstance(value, bool) or "_" in str(value) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise DataError(f"{what} is {value!r}; expected a number")
    return number


def classes_of(example: Any, task: str) -> Sequence[str]:
    """Returns the classes of an example, which is a sentence if the task is token_classification."""
    if task == "token_classification":
        return example.tags
    return example.label if task == "multi_label" else (example.label,)


def labels_of(examples: Sequence, task: str) -> tuple[str, ...]:
    """Returns the classes of examples, sorted: numbers by their value, other texts by their characters.

    Raises:
        DataError: there are too few, or far too many.
    """
    labels = {label for example in examples for label in classes_of(example, task)}
    least = 1 if task == "multi_label" else 2
    if not least <= len(labels) <= MAX_LABELS:
        file = examples[0].place.rpartition(", line")[0]
        raise DataError(f"{file}: {len(labels)} different labels; expected {least} to {MAX_LABELS} for --task={task}")
    are_whole = all(
        label.isascii() and label.removeprefix("-").isdecimal() and len(label) <= _MOST_DIGITS for label in labels
    )
    return tuple(sorted(labels, key=lambda label: (int(label), label)) if are_whole else sorted(labels))
