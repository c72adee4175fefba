"""Examples of text with labels, as tables have them: one text or a pair, and a class, classes or a number."""

import itertools
import re
from collections.abc import Sequence
from typing import Any

from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.config.model import WITH_CLASSES
from tftrain.data.table_rows import Row
from tftrain.files.errors import DataError
from tftrain.files.strict_json import shown
from tftrain.finetune import classes, glue, tables, text_groups
from tftrain.finetune.tables import FileNotes, TextExample, column_of, columns_of, number, read_table, text_of, usable
from tftrain.host.text import listed

MAX_LABELS = 10_000
_LIST = re.compile(r"[\[({].*[\])}]", re.DOTALL)  # as pandas writes a list into a cell


def read_examples(
    settings: FineTuningConfig, task: str, split: str, notes: FileNotes | None = None
) -> list[TextExample]:
    """Reads the examples of a split, "train" or "eval", for a task on texts or pairs; for `notes` see `usable`.

    Raises a DataError if the file can't be read, or if an example has no text or no label; the message names the line.
    """
    notes = FileNotes() if notes is None else notes
    path, layout, skips = path_of(settings, split), glue.TASKS.get(settings.glue_task), settings.skip_bad_rows
    skips_lines = skips or bool(layout and layout.skips_damaged)
    scores = [settings.label_column.strip().lower()] if settings.label_column else tables.NUMBER_COLUMNS
    rows = read_table(path, layout.header if layout else settings.header, skips_lines, notes, scores)
    if layout:
        texts, label = layout.texts, layout.label
        for column in (*texts, label):
            if column not in rows[0].values:
                expected = f"expected the layout of --glue_task={settings.glue_task}"
                raise DataError(f"{rows[0].place}: no column {column!r}; {expected}")
    elif task == "embedding":
        texts, label = text_groups.columns(rows, settings)
    else:
        texts, label = _columns(rows, settings, task)
    read = [*texts, *([label] if label else [])]
    if not layout and (others := [name for name in columns_of(rows) if name and name not in read]):
        notes.info(f"{path}: reads the columns {', '.join(read)}, not {listed(others, 10)}")
    if label and task == "multi_label" and _are_flags([row.values.get(label) for row in rows]):
        for row in rows:  # The classes are the positions of the ones.
            row.values[label] = [number for number, is_set in enumerate(row.values[label]) if is_set]

    def example(row: Row) -> TextExample:
        own = tuple(text_of(row, name) for name in texts)
        return TextExample(row.place, own, label and _label(row, label, task, settings))

    if task == "embedding":
        groups = usable(path, lambda row: text_groups.samples(row, texts, label, settings, split), rows, skips, notes)
        return text_groups.together(list(itertools.chain(*groups)), path, settings, split, notes)
    examples = usable(path, example, rows, skips, notes)
    if task == "regression":
        _note_thousands(rows, label, path, notes)
    return examples


def _columns(rows: Sequence[Row], settings: FineTuningConfig, task: str) -> tuple[list[str], str]:
    """Returns the columns of the texts, and the column of the label."""
    columns = [column_of(rows, settings.text_column, tables.TEXT_COLUMNS, "text_column")]
    if settings.text_pair_column:
        columns.append(column_of(rows, settings.text_pair_column, tables.PAIR_COLUMNS, "text_pair_column"))
    elif not settings.text_column and (pairs := [name for name in tables.PAIR_COLUMNS if name in columns_of(rows)]):
        place = columns_of(rows)[pairs[0]].place
        remedy = f"give it, or --text_column={columns[0]} to leave the other text out"
        raise DataError(f"{place}: there is a column {pairs[0]}, but no --text_pair_column; {remedy}")
    defaults = tables.NUMBER_COLUMNS if task == "regression" else tables.LABEL_COLUMNS
    return columns, column_of(rows, settings.label_column, defaults, "label_column")


def _are_flags(values: Sequence[Any]) -> bool:
    """Whether each value is a list with a 0 or a 1 for each class."""
    lengths = {len(value) if isinstance(value, list) else 0 for value in values}
    return len(lengths) == 1 and min(lengths) > 1 and all(flag in (0, 1) for value in values for flag in value)


def _note_thousands(rows: Sequence[Row], label: str, path: str, notes: FileNotes) -> None:
    pointed = [value for row in rows if isinstance(value := row.values.get(label), str) and "." in value]
    if pointed and all(re.fullmatch(r"\s*-?\d{1,3}(\.\d{3})+\s*", value) for value in pointed):
        notes.warning(f"{path}: {pointed[0]} is read as a fraction; if the point separates thousands, remove it")


def path_of(settings: FineTuningConfig, split: str) -> str:
    """Returns the file of a split; raises DataError if none is given."""
    if settings.glue_task:
        return glue.path_of(settings.glue_task, settings.glue_dir, split)
    path = settings.train_file if split == "train" else settings.eval_file
    if path is None:
        raise DataError(f"--{split}_file is not given; expected a file of labelled examples")
    return path


def _label(row: Row, column: str, task: str, settings: FineTuningConfig) -> Any:
    value, what = row.values.get(column), f"{row.place}: {column}"
    if task == "multi_label":
        if isinstance(value, str):
            if _LIST.fullmatch(value.strip()):
                remedy = f"expected classes with {settings.label_separator!r} between them, or a list in JSON"
                raise DataError(f"{what} is {shown(value)}, a list in a text; {remedy}")
            separator = settings.label_separator
            value = [label.strip() for label in (value.split(separator) if separator else [value])]
        labels = value if isinstance(value, list) else [] if value is None else [value]
        return tuple(dict.fromkeys(classes.class_name(each, what) for each in labels if each != ""))
    if task == "regression":
        return number(value, what)
    return classes.class_name(value, what)


def classes_of(example: Any, task: str) -> Sequence[str]:
    """Returns the classes of an example, which is a sentence if the task is token_classification."""
    if task == "token_classification":
        return example.tags
    return example.label if task == "multi_label" else (example.label,)


def with_classes(examples: Sequence, task: str, of_names: dict[str, str]) -> list:
    """Returns examples whose classes have other names."""
    if task == "token_classification":
        return [each._replace(tags=tuple(of_names[tag] for tag in each.tags)) for each in examples]
    if task == "multi_label":
        return [each._replace(label=tuple(dict.fromkeys(of_names[name] for name in each.label))) for each in examples]
    return [each._replace(label=of_names[each.label]) for each in examples]


def labels_of(examples: Sequence, task: str) -> tuple[str, ...]:
    """Returns the classes of examples in their order, see `classes.ordered`.

    Raises a DataError if there are too few, or far too many.
    """
    labels = {label for example in examples for label in classes_of(example, task)}
    least = 1 if task == "multi_label" else 2
    if not least <= len(labels) <= MAX_LABELS:
        file = re.sub(r", (line|row) \d+$", "", examples[0].place)
        raise DataError(f"{file}: {len(labels)} different labels; expected {least} to {MAX_LABELS} for --task={task}")
    return classes.ordered(labels)


def with_model_labels(rows: list, task: str, labels: Sequence[str], notes: FileNotes) -> list:
    """Returns examples with the model's names of their classes, see `classes.meant`; `notes` gets the replaced names.

    Raises a DataError if a class is none of the model's; the message names the line.
    """
    if task not in WITH_CLASSES:
        return rows
    names = {name for example in rows for name in classes_of(example, task)}
    found = classes.meant(sorted(names), labels)
    for example in rows if len(found) < len(names) else ():
        if unknown := [name for name in classes_of(example, task) if name not in found]:
            other = f"is not one of the model's: {listed(labels, 10)}; name classes as the model does, or give --labels"
            raise DataError(f"{example.place}: the label {unknown[0]!r} {other}")
    if not (others := [f"{name} as {label}" for name, label in found.items() if name != label]):
        return rows
    notes.info(f"classes are read by the names of the model: {listed(others, 10)}")
    return with_classes(rows, task, found)
