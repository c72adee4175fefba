"""Opens a split of labelled examples: what the files hold, in tokens, as batches of the task."""

import logging
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from tftrain.config.train import TrainConfig
from tftrain.input.errors import DataError
from tftrain.input.example_source import Batch, ExampleSource, Order
from tftrain.labelled import completions, conll, squad
from tftrain.labelled.encoding import Encoder, Sequences
from tftrain.labelled.preflight import check_labels, read_split
from tftrain.labelled.tokenizers import tokenizer_of

logger = logging.getLogger(__name__)

_NAMES = ("input_ids", "input_mask", "segment_ids")
Labels = Callable[[np.ndarray], np.ndarray]
Rows = Callable[[np.ndarray], Mapping[str, np.ndarray]]


class MemorySource(ExampleSource):
    """Rows in memory, with the `examples` that they come from for a scorer."""

    def __init__(self, examples: list, max_seq_length: int, widths: Mapping[str, int | None], rows: Rows):
        """Takes what maps int64 [n] row numbers to the features of `widths`, in their order."""
        super().__init__(len(examples), max_seq_length, widths)
        self.examples, self._rows = examples, rows
        self._dtypes = [values.dtype for values in rows(np.zeros([1], np.int64)).values()]

    def batch(self, first_sample: tf.Tensor, count: int, order: Order) -> Batch:
        """Returns `count` consecutive samples; the dtypes are those of the rows."""

        def read(first):
            return list(self._rows(order(np.arange(first, first + count))).values())

        return dict(zip(self.widths, tf.numpy_function(read, [first_sample], self._dtypes), strict=True))


def open_source(config: TrainConfig, split: str) -> MemorySource:
    """Opens a split, "train" or "eval"; the configuration has the labels and the sizes that the data gives.

    Features are input_ids, input_mask and segment_ids, int32 [n, S], and labels, see the tasks; for completion those of
    `completions.Rows`.

    Raises:
        DataError: see `read_split`; a label is not one of the model's.
    """
    task, labels, length = config.model.task, config.model.labels, config.data.max_seq_length
    tokenizer = tokenizer_of(config)
    examples = read_split(config, split, tokenizer)
    check_labels(examples, task, labels)
    if task == "completion":
        return _of_completions(examples, tokenizer, length, split)
    encoder = Encoder(tokenizer, length)
    if task == "token_classification":
        source = _of_sentences(examples, encoder, labels, tokenizer.vocabulary.unknown_id)
    elif task == "question_answering":
        settings, kind = config.fine_tuning, tokenizer.vocabulary.tokenizer_type
        windows, encoded = squad.divide(examples, encoder, kind, settings.doc_stride, settings.max_query_length)
        answers = np.array([window.answer for window in windows], np.int32)
        pairs = [(examples[window.question], window) for window in windows]
        source = _of_sequences(pairs, [Sequences(encoded)], length, answers.__getitem__, 2)
    elif task == "embedding":
        sides = [Sequences(encoder([(example.texts[side],) for example in examples])) for side in (0, 1)]
        source = _of_sequences(examples, sides, length)
    else:
        source = _of_texts(examples, encoder, task, labels)
    if encoder.cut:
        words = f"{encoder.cut} of {len(examples)} examples"
        logger.info(f"{split}: {words} are longer than --max_seq_length={length} and were cut")
    return source


def _of_completions(examples, tokenizer, length, split) -> MemorySource:
    try:
        packed = completions.Rows(examples, completions.encode(examples, tokenizer), length)
    except DataError as error:
        raise DataError(f"{examples[0].place.rpartition(', line')[0]}: {error}") from error
    if packed.cut or packed.left_out:
        logger.info(
            f"{split}: of {len(examples)} examples {packed.cut} are cut at --max_seq_length={length}, and "
            f"{packed.left_out} are left out, since nothing of their completion fits"
        )
    logger.info(f"{split}: {len(examples) - packed.left_out} examples are packed into {len(packed.examples)} rows")

    def rows(numbers):
        return {name: values[numbers] for name, values in packed.features.items()}

    source = MemorySource(packed.examples, length, dict.fromkeys(packed.features, length), rows)
    source.real_examples = sum(map(len, packed.examples))
    return source


def _of_sequences(
    examples: list,
    sides: Sequence[Sequences],
    length: int,
    labels: Labels | None = None,
    label_width: int | None = None,
) -> MemorySource:
    """Returns labelled examples: sequences, side by side if an example has two, and labels, if there are any.

    `labels` maps int64 [n] example numbers to labels, [n, label_width] or [n].
    """

    def rows(numbers):
        parts_of_sides = zip(*(side.rows(numbers, length) for side in sides), strict=True)
        features = {name: np.concatenate(parts, axis=1) for name, parts in zip(_NAMES, parts_of_sides, strict=True)}
        return features | ({"labels": labels(numbers)} if labels else {})

    widths = dict.fromkeys(_NAMES, length * len(sides)) | ({"labels": label_width} if labels else {})
    return MemorySource(examples, length, widths, rows)


def _of_texts(examples, encoder, task, labels) -> MemorySource:
    width = None
    if task == "multi_label":
        width = len(labels)
        values = np.array([[label in example.label for label in labels] for example in examples], np.float32)
    elif task == "regression":
        values = np.array([example.label for example in examples], np.float32)
    else:
        ids = {label: number for number, label in enumerate(labels)}
        values = np.array([ids[example.label] for example in examples], np.int32)
    sequences = Sequences(encoder([example.texts for example in examples]))
    return _of_sequences(examples, [sequences], encoder.max_seq_length, values.__getitem__, width)


def _of_sentences(sentences, encoder, labels, unknown_id) -> MemorySource:
    ids, length = {label: number for number, label in enumerate(labels)}, encoder.max_seq_length
    parts, encoded = conll.divide(sentences, encoder, unknown_id)

    def values(numbers):
        rows = np.full([len(numbers), length], -1, np.int32)
        for row, number in enumerate(numbers):
            rows[row, list(parts[number].places)] = [ids[tag] for tag in parts[number].tags]
        return rows

    return _of_sequences(parts, [Sequences(encoded)], length, values, length)
