"""Opens a split of labelled examples: what the files hold, in tokens, as batches of the task."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.config.model import ModelConfig
from tftrain.data.example_source import Batch, ExampleSource, Order
from tftrain.files.errors import DataError
from tftrain.finetune import completions, conll, squad, text_groups
from tftrain.finetune.classes import doubts
from tftrain.finetune.encoding import ExampleEncoder, Sequences
from tftrain.finetune.entities import Scheme
from tftrain.finetune.retrieval import Ranked
from tftrain.finetune.squad_answers import exact_match, whole_words
from tftrain.host.user_code import UserCodeError
from tftrain.tokenizer.tokenizer_model import Tokenizer

logger = logging.getLogger(__name__)

_NAMES = ("input_ids", "input_mask", "segment_ids")
Values = Callable[[np.ndarray], np.ndarray]
Rows = Callable[[np.ndarray], Mapping[str, np.ndarray]]


class MemorySource(ExampleSource):
    """Rows in memory, with the `examples` that they come from for a scorer.

    `compared` has what a loss that compares samples needs beside vectors, see `text_groups.features`.
    """

    compared: Mapping[str, np.ndarray]  # what a loss that compares samples needs, see `text_groups.features`

    def __init__(self, examples: Any, count: int, max_seq_length: int, rows: Rows):
        """Takes what maps int64 [n] numbers of `count` rows to features, [n] or [n, width]."""
        first = rows(np.zeros([1], np.int64))
        widths = {name: values.shape[1] if values.ndim > 1 else None for name, values in first.items()}
        super().__init__(count, max_seq_length, widths)
        self.examples, self._rows = examples, rows
        self._dtypes = [values.dtype for values in first.values()]

    def batch(self, first_sample: tf.Tensor, count: int, order: Order) -> Batch:
        """Returns `count` consecutive samples; the dtypes are those of the rows."""

        def read(first: np.ndarray) -> list[np.ndarray]:
            return list(self._rows(order(np.arange(first, first + count))).values())

        return dict(zip(self.widths, tf.numpy_function(read, [first_sample], self._dtypes), strict=True))


class JoinedSource(MemorySource):
    """The rows of several sources of a task, one source after another."""

    def __init__(self, sources: Sequence[MemorySource]):
        ends = np.cumsum([each.num_examples for each in sources])
        begins = ends - [each.num_examples for each in sources]

        def rows(numbers: np.ndarray) -> Mapping[str, np.ndarray]:
            owners = np.searchsorted(ends, numbers, side="right")
            places = np.argsort(np.argsort(owners, kind="stable"))  # among the rows by source
            found = [sources[each]._rows(numbers[owners == each] - begins[each]) for each in np.unique(owners)]
            return {name: np.concatenate([part[name] for part in found])[places] for name in found[0]}

        super().__init__([], int(ends[-1]), sources[0].max_seq_length, rows)
        self.real_examples = sum(each.real_examples for each in sources)


def open_source(
    examples: list, split: str, tokenizer: Tokenizer, model: ModelConfig, settings: FineTuningConfig, length: int
) -> MemorySource:
    """Opens the examples of a split, "train" or "eval".

    Features are input_ids, int32 [n, S] with S = `length`; input_mask and segment_ids, int8 [n, S], as a batch may have
    65,536 samples; and labels, see the tasks; for completion those of `completions.CompletionRows`.

    Args:
        examples: as the task has them, with classes of the model.
        model: with the classes of the model.

    Raises:
        DataError: an example can't be made of tokens.
    """
    task, labels = model.task, model.labels
    if split == "train" and task in ("classification", "multi_label") and not settings.glue_task:
        for doubt in doubts(labels, len(examples), task):
            logger.warning(f"{settings.train_file}: {doubt}")
    if task == "completion":
        return _of_completions(examples, tokenizer, length, split)
    encoder = ExampleEncoder(tokenizer, length)
    if task == "token_classification":
        if split == "eval" and (scheme := Scheme(labels)).name != "BIO":
            logger.info(f"entities: {scheme.name}")
        source = _of_sentences(examples, encoder, labels, tokenizer.vocabulary.unknown_id)
    elif task == "question_answering":
        kind = tokenizer.vocabulary.tokenizer_type
        parts = sum(not exact_match(whole_words(each, kind), each.answers[0]) for each in examples if each.answers)
        if parts:
            parts = f"{parts} of {len(examples)} answers are parts of words"
            logger.info(f"{split}: {parts}, and the model gives whole words")
        windows, encoded = squad.divide(examples, encoder, kind, settings.doc_stride, settings.max_query_length)
        answers = np.array([window.answer for window in windows], np.int32)
        pairs = [(examples[window.question], window) for window in windows]
        source = _of_sequences(pairs, [Sequences(encoded, encoder.padding_id)], length, labels=answers.__getitem__)
    elif task == "embedding":
        if isinstance(examples[0], Ranked):  # documents, which are partners, and then queries
            count = sum(not each.query for each in examples)
            texts = [each.texts[0] for each in examples]
            encoded = [[*encoder.vectors_of(texts[:count], model, 1), *encoder.vectors_of(texts[count:], model, 0)]]
        else:
            sides = zip(*(example.texts for example in examples), strict=True)
            encoded = [encoder.vectors_of(each, model, side) for side, each in enumerate(sides)]
        sequences = [Sequences(each, encoder.padding_id) for each in encoded]
        compared, unpooled = text_groups.features(examples), np.stack([each.unpooled for each in sequences], axis=1)
        others = compared | ({"unpooled": unpooled} if unpooled.any() else {})
        values = {name: each.__getitem__ for name, each in others.items()}
        source = _of_sequences(examples, sequences, length, **values)
        source.compared = compared
    else:
        source = _of_texts(examples, encoder, task, labels)
    if encoder.cut:
        texts = sum(text != "" for example in examples for text in example.texts) if task == "embedding" else 0
        words = f"{texts} texts" if task == "embedding" else f"{len(examples)} examples"
        logger.info(f"{split}: {encoder.cut} of {words} are longer than --max_seq_length={length} and were cut")
    return source


def encode(
    tokenizer: Tokenizer, texts: Sequence[str | tuple[str, str]], per_example: int, length: int
) -> dict[str, np.ndarray]:
    """Returns the features of texts or pairs for an encoder, int32 [n, S], or [n, K, S] with K = `per_example` > 1.

    S is `length`.
    """
    encoder = ExampleEncoder(tokenizer, length)
    encoded = encoder([(text,) if isinstance(text, str) else text for text in texts])
    sequences = Sequences(encoded, encoder.padding_id)
    if encoder.cut:
        logger.info(f"{encoder.cut} of {len(texts)} texts are longer than --max_seq_length={length} and were cut")
    shape = [-1, length] if per_example == 1 else [-1, per_example, length]
    rows = sequences.rows(np.arange(len(texts)), length)
    return {name: feature.reshape(shape) for name, feature in zip(_NAMES, rows, strict=True)}


def of_arrays(given: Any, model: ModelConfig, length: int) -> MemorySource:
    """Returns a source of the rows of arrays that a user's code gave; a UserCodeError says why that is impossible.

    A batch has all dimensions of a row as one. Sequences have `length` tokens.
    """
    ends = {"input_ids": model.vocab_size, "labels" if model.is_causal else "input_mask": model.vocab_size}
    ends |= {"segment_ids": model.type_vocab_size} if model.family.token_types else {}
    names = list(given) if isinstance(given, Mapping) else []
    if not ends.keys() <= set(names) or "example_weights" in names:
        raise UserCodeError(f"returned {names or type(given)}; expected a dict with {', '.join(ends)}, and yours")
    arrays = {name: np.asarray(values) for name, values in given.items()}
    shape = arrays["input_ids"].shape
    if len(shape) not in (2, 3) or 0 in shape or shape[-1] != length:
        raise UserCodeError(f"returned input_ids of shape {shape}; expected (n, {length}) or (n, K, {length})")
    for name, array in arrays.items():
        expected = shape if name in ends else shape[:1]
        first, end = -int(name == "labels"), ends.get(name)
        if array.dtype.kind not in "biuf" or array.shape[: len(expected)] != expected:
            raise UserCodeError(f"returned {name}, {array.dtype} {array.shape}; expected numbers of {expected}")
        if end and not (first <= array.min() and array.max() < end):
            raise UserCodeError(f"returned {name} from {array.min()} to {array.max()}; expected {first} to {end - 1}")
        arrays[name] = array.astype(np.int32 if end else np.float32 if array.dtype.kind == "f" else array.dtype)
    if model.first_row:  # Padding, which may be before a text, has no position, see `BertEncoder.with_positions`.
        real = arrays["input_mask"]
        arrays.setdefault("position_ids", np.cumsum(real, -1, np.int32) * real - 1)
    flat = {name: array.reshape(len(array), -1) if array.ndim > 1 else array for name, array in arrays.items()}
    return MemorySource(arrays, len(arrays["input_ids"]), length, _of_features(flat))


def _of_features(features: Mapping[str, np.ndarray]) -> Rows:
    return lambda numbers: {name: values[numbers] for name, values in features.items()}


def _of_completions(examples: list[completions.Example], tokenizer: Tokenizer, length: int, split: str) -> MemorySource:
    try:
        packed = completions.CompletionRows(examples, completions.encode(examples, tokenizer), length)
    except DataError as error:
        raise DataError(f"{examples[0].place.rpartition(', line')[0]}: {error}") from error
    if packed.cut or packed.left_out:
        logger.info(
            f"{split}: of {len(examples)} examples {packed.cut} are cut at --max_seq_length={length}, and "
            f"{packed.left_out} are left out, since nothing of their completion fits"
        )
    logger.info(f"{split}: {len(examples) - packed.left_out} examples are packed into {len(packed.examples)} rows")

    source = MemorySource(packed.examples, len(packed.examples), length, _of_features(packed.features))
    source.real_examples = sum(map(len, packed.examples))
    return source


def _of_sequences(examples: list, sides: Sequence[Sequences], length: int, **others: Values) -> MemorySource:
    """Returns labelled examples: sequences, side by side if an example has several, and other features.

    Functions map int64 [n] example numbers to their values, [n, width] or [n].
    """

    def rows(numbers: np.ndarray) -> dict[str, np.ndarray]:
        shape = len(numbers), len(sides) * length
        features = {name: np.zeros(shape, np.int32 if name == "input_ids" else np.int8) for name in _NAMES}
        for place, side in enumerate(sides):
            side.write(numbers, *(each[:, place * length :][:, :length] for each in features.values()))
        return features | {name: values(numbers) for name, values in others.items()}

    return MemorySource(examples, len(examples), length, rows)


def _of_texts(examples: list, encoder: ExampleEncoder, task: str, labels: Sequence[str]) -> MemorySource:
    if task == "multi_label":
        values = np.array([[label in example.label for label in labels] for example in examples], np.float32)
    elif task == "regression":
        values = np.array([example.label for example in examples], np.float32)
    else:
        ids = {label: number for number, label in enumerate(labels)}
        values = np.array([ids[example.label] for example in examples], np.int32)
    sequences = Sequences(encoder([example.texts for example in examples]), encoder.padding_id)
    return _of_sequences(examples, [sequences], encoder.max_seq_length, labels=values.__getitem__)


def _of_sentences(
    sentences: list[conll.Sentence], encoder: ExampleEncoder, labels: Sequence[str], unknown_id: int
) -> MemorySource:
    ids, length = {label: number for number, label in enumerate(labels)}, encoder.max_seq_length
    parts, encoded = conll.divide(sentences, encoder, unknown_id)

    def values(numbers: np.ndarray) -> np.ndarray:
        rows = np.full([len(numbers), length], -1, np.int32)
        for row, number in enumerate(numbers):
            rows[row, list(parts[number].places)] = [ids[tag] for tag in parts[number].tags]
        return rows

    return _of_sequences(parts, [Sequences(encoded, encoder.padding_id)], length, labels=values)
