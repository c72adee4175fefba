"""Samples of embeddings, as tables have them: an anchor, a partner and hard negatives, with a number or scores.

A cell of JSON may have a list of texts: each of several partners makes a sample of its own.
"""

import hashlib
import itertools
import math
import re
from collections.abc import Sequence

import numpy as np

from tftrain.config.fine_tuning import SCORED, TAUGHT, WITH_NEGATIVES, FineTuningConfig
from tftrain.data.table_rows import Row
from tftrain.files.errors import DataError
from tftrain.files.strict_json import parse, shown
from tftrain.finetune import tables
from tftrain.finetune.tables import FileNotes, TextExample, column_of, columns_of, number, text_of

ANCHOR_COLUMNS = (*tables.TEXT_COLUMNS, "anchor", "query", "question")
PARTNER_COLUMNS = (*tables.PAIR_COLUMNS, "positive", "pos", "answer", "document", "passage")
_NEGATIVES = re.compile(r"(hard_?)?neg(ative)?s?_?\d*")


def columns(rows: Sequence[Row], settings: FineTuningConfig) -> tuple[list[str], str | None]:
    """Returns the columns of anchors, partners and hard negatives, and that of labels, if they are read."""
    loss, names = settings.embedding_loss, columns_of(rows)
    anchor = column_of(rows, settings.text_column, ANCHOR_COLUMNS, "text_column")
    partner = column_of(rows, settings.text_pair_column, PARTNER_COLUMNS, "text_pair_column")
    wanted = [name for given in settings.negative_columns for name in given.split(",")]
    wanted = wanted or [name for name in names if _NEGATIVES.fullmatch(name.strip().lower())]
    wanted = wanted or ([None] if loss in WITH_NEGATIVES else [])
    negatives = [] if loss in SCORED else [column_of(rows, name, (), "negative_columns") for name in wanted]
    is_read = settings.label_column or loss in (*SCORED, *TAUGHT) or set(tables.NUMBER_COLUMNS) & set(names)
    label = column_of(rows, settings.label_column, tables.NUMBER_COLUMNS, "label_column") if is_read else None
    return [anchor, partner, *negatives], label


def samples(
    row: Row, texts: Sequence[str], label: str | None, settings: FineTuningConfig, split: str
) -> list[TextExample]:
    """Returns the samples of a row of a table, given its `columns`; for errors see `examples.read_examples`."""
    anchors, partners, *others = (_texts(row, name) for name in texts)
    if len(anchors) != 1 or not partners or not all(text.strip() for text in anchors + partners):
        given = " and ".join(f"{name} is {shown(row.values.get(name))}" for name in texts[:2])
        raise DataError(f"{row.place}: {given}; expected a text in each")
    cells = list(itertools.chain(*others))
    if same := {text.strip() for text in cells} & {text.strip() for text in partners}:
        raise DataError(f"{row.place}: {shown(min(same))} is both a partner and a hard negative; expected another text")
    value = label and _label(row, label, settings, len(cells), len(partners))
    kept = [number for number, text in enumerate(cells) if text.strip()]
    kept = kept[: settings.negatives] if split == "train" else kept
    if settings.embedding_loss in WITH_NEGATIVES and not kept:
        raise DataError(f"{row.place}: no hard negative; expected one with --embedding_loss={settings.embedding_loss}")
    if isinstance(value, tuple):
        value = (value[0], *(value[1 + number] for number in kept))
    negatives = [cells[number] for number in kept]
    return [TextExample(row.place, (anchors[0], partner, *negatives), value) for partner in partners]


def together(
    examples: list[TextExample], path: str, settings: FineTuningConfig, split: str, notes: FileNotes
) -> list[TextExample]:
    """Returns samples with equally many texts, see `filled`, without those whose first two do not belong together.

    Texts belong together without a label, or with one above 0. Those with other labels remain if the loss takes labels,
    or for the correlation of a scorer: if held out, and the column named.
    """
    labels, takes_labels = {each.label for each in examples}, settings.embedding_loss in (*SCORED, *TAUGHT)
    if settings.embedding_loss in SCORED and len(labels) < 2:
        raise DataError(f"{path}: each label is {labels.pop()}; expected numbers that say how alike the texts are")
    keeps_others = takes_labels or (bool(settings.label_column) and split == "eval")
    own = [each for each in examples if takes_labels or each.label is None or each.label > 0]
    if not own:
        raise DataError(f"{path}: each label is 0; expected pairs of texts that belong together")
    if len(labels) > 1 and not takes_labels:
        fate = "count in spearman alone" if keeps_others else "are left out"
        count = len(examples) - len(own)
        notes.info(f"{path}: pairs with a label above 0 belong together; the {count} others of {len(examples)} {fate}")
    return filled(examples if keeps_others else [example._replace(label=None) for example in own], path, notes)


def filled(examples: list[TextExample], path: str, notes: FileNotes) -> list[TextExample]:
    """Returns samples with equally many texts: "" stands for a hard negative that one lacks."""
    most = max(len(each.texts) for each in examples)
    if lacking := sum(len(each.texts) - each.texts.count("") < most for each in examples):
        notes.info(f"{path}: {lacking} of {len(examples)} samples have fewer than {most - 2} hard negatives")
    return [each._replace(texts=each.texts + ("",) * (most - len(each.texts))) for each in examples]


def features(examples: Sequence[TextExample]) -> dict[str, np.ndarray]:
    """Returns text_ids, int64 [n, k], equal for equal texts and 0 for none, and labels, float32 [n] or [n, k - 1]."""

    def of(text: str) -> int:
        digest = hashlib.blake2b(text.strip().encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little", signed=True) or 1

    found = {"text_ids": np.array([[of(text) if text else 0 for text in each.texts] for each in examples], np.int64)}
    labels = [example.label for example in examples]
    if isinstance(labels[0], tuple):
        labels = [
            label + (0.0,) * (len(each.texts) - 1 - len(label)) for each, label in zip(examples, labels, strict=True)
        ]
    return found if None in labels else found | {"labels": np.array(labels, np.float32)}


def _texts(row: Row, column: str) -> list[str]:
    """Returns the texts in a cell, which has one or a list; "" if it has none."""
    value = row.values.get(column)
    cells = value if isinstance(value, list) else ["" if value is None else value]
    return [text_of(Row(row.place, {column: each}), column) for each in cells]


def _label(
    row: Row, column: str, settings: FineTuningConfig, negatives: int, partners: int
) -> float | tuple[float, ...]:
    """Returns the number of a pair, or the teacher's scores of the candidates."""
    loss, value, what = settings.embedding_loss, row.values.get(column), f"{row.place}: {column}"
    if loss not in TAUGHT:
        found = number(int(value) if isinstance(value, bool) else value, what)
        if loss == "cosine" and not -1 <= found <= 1:
            raise DataError(f"{what} is {found}; expected -1 to 1 with --embedding_loss=cosine; divide by the largest")
        return found
    try:
        value = parse(value) if isinstance(value, str) else value
    except ValueError:
        value = math.nan
    scores = [number(each, what) for each in (value if isinstance(value, list) else [value])]
    if loss == "margin_mse" and len(scores) == negatives:  # the teacher's margins, partner minus negative
        scores = [0.0, *(-margin for margin in scores)]
    if partners > 1 or len(scores) != 1 + negatives:
        expected = f"expected one partner and {1 + negatives} scores, of it and of each hard negative"
        raise DataError(f"{what}: {partners} partners and {len(scores)} scores; {expected}")
    return tuple(scores)
