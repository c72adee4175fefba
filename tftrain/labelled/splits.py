"""Opens a split of labelled examples: what the files hold, in tokens, as batches of the task."""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from tftrain.config.train import TrainConfig
from tftrain.labelled import conll, squad
from tftrain.labelled.encoding import Encoder, Sequences
from tftrain.labelled.reading import check_labels, read_split
from tftrain.labelled.source import LabelledSource
from tftrain.labelled.tokenizers import tokenizer_of

logger = logging.getLogger(__name__)


def open_source(config: TrainConfig, split: str) -> LabelledSource:
    """Opens a split.

    Args:
        config: resolved, with the labels and the sizes that the data gives.
        split: "train" or "eval".

    Returns:
        The source. Its features are input_ids, input_mask and segment_ids, int32 [n, S], and labels, see the tasks.

    Raises:
        DataError: see `read_split`; a label is not one of the model's.
    """
    found = read_split(config, split)
    check_labels(found, config.model.task, config.model.labels)
    tokenizer = tokenizer_of(config)
    encoder = Encoder(tokenizer, config.data.max_seq_length)
    task, model = config.model.task, config.model
    if task == "token_classification":
        made = _of_sentences(found, encoder, model.labels, tokenizer.vocabulary.unknown_id)
    elif task == "question_answering":
        made = _of_questions(found, encoder, tokenizer.vocabulary.tokenizer_type, config.fine_tuning)
    elif task == "embedding":
        made = _of_pairs(found, encoder)
    else:
        made = _of_texts(found, encoder, task, model.labels)
    if encoder.cut:
        words = f"{encoder.cut} of {len(found)} examples"
        logger.info(f"{split}: {words} are longer than --max_seq_length={encoder.max_seq_length} and were cut")
    return made


def _of_texts(found, encoder, task, labels) -> LabelledSource:
    sequences = Sequences(encoder([example.texts for example in found]))
    if task == "multi_label":
        values = np.array([[label in example.label for label in labels] for example in found], np.float32)
    elif task == "regression":
        values = np.array([example.label for example in found], np.float32)
    else:
        ids = {label: number for number, label in enumerate(labels)}
        values = np.array([ids[example.label] for example in found], np.int32)
    widths = {"labels": len(labels) if task == "multi_label" else None}
    return _source(found, [sequences], encoder, widths, lambda numbers: values[numbers])


def _of_pairs(found, encoder) -> LabelledSource:
    sides = [Sequences(encoder([(example.texts[side],) for example in found])) for side in (0, 1)]
    return _source(found, sides, encoder, {}, None)


def _of_sentences(found, encoder, labels, unknown_id) -> LabelledSource:
    ids = {label: number for number, label in enumerate(labels)}
    parts, encoded = conll.divide(found, encoder, unknown_id)

    def values(numbers):
        rows = np.full([len(numbers), encoder.max_seq_length], -1, np.int32)
        for row, number in enumerate(numbers):
            rows[row, list(parts[number].places)] = [ids[tag] for tag in parts[number].tags]
        return rows

    return _source(parts, [Sequences(encoded)], encoder, {"labels": encoder.max_seq_length}, values)


def _of_questions(found, encoder, tokenizer_type, settings) -> LabelledSource:
    windows, encoded = squad.divide(found, encoder, tokenizer_type, settings.doc_stride, settings.max_query_length)
    answers = np.array([window.answer for window in windows], np.int32)
    pairs = [(found[window.question], window) for window in windows]
    return _source(pairs, [Sequences(encoded)], encoder, {"labels": 2}, lambda numbers: answers[numbers])


def _source(
    found: list, sides: list[Sequences], encoder: Encoder, label_widths: Mapping[str, int | None], labels: Any
) -> LabelledSource:
    """Returns a source of sequences, side by side if an example has two, and of labels, if there are any."""
    length = encoder.max_seq_length
    names = ("input_ids", "input_mask", "segment_ids")
    widths = dict.fromkeys(names, length * len(sides)) | label_widths

    def rows(numbers):
        made = [side.rows(numbers, length) for side in sides]
        features = {
            name: np.concatenate(parts, axis=1) for name, parts in zip(names, zip(*made, strict=True), strict=True)
        }
        return features | ({"labels": labels(numbers)} if labels else {})

    return LabelledSource(found, length, widths, rows)
