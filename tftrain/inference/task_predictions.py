"""What a fine-tuned model predicts for texts: the objects that its run writes to predictions.jsonl, without labels.

Each task has a reader, which turns texts into token sequences as training does, and makes objects of the model's
outputs with the task's scorer.
"""

import abc
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import tensorflow as tf

from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.formats.tokenizer import Tokenizer
from tftrain.inference.trained_model import TrainedModel, answer_settings, encoder_batch
from tftrain.labelled import conll, glue, squad
from tftrain.labelled.encoding import Encoded, Encoder, Sequences
from tftrain.labelled.examples import TextExample
from tftrain.labelled.scorers import ClassScorer, EntityScorer, MultiLabelScorer, NumberScorer, PairScorer
from tftrain.labelled.squad_answers import AnswerScorer
from tftrain.model.bert import embeddings

# Between both texts of a pair, or a question and its context.
SEPARATOR = "\t"
_IDS = tf.TensorSpec([None, None], tf.int32)


class PairError(ValueError):
    """A text is not what the task reads; the message says what is expected."""


class Reading(NamedTuple):
    """A text, or a pair, as the model reads it.

    Attributes:
        texts: one, or two.
        ids: its tokens, int32 [n].
        cut: number of tokens that did not fit.
        unknown: number of [UNK] in `ids`.
        cut_masks: 0; as in `inference.Sample`.
    """

    texts: tuple[str, ...]
    ids: np.ndarray
    cut: int
    unknown: int
    cut_masks: int = 0


class Reader(abc.ABC):
    """Reads texts for a task, and makes objects of the outputs.

    Attributes:
        pairs: whether a text must be a pair; None: it may be one.
    """

    pairs: bool | None = None

    def __init__(self, model: TrainedModel, settings: FineTuningConfig, max_seq_length: int, has_null: bool):
        """Builds the tokenizer.

        Args:
            model: fine-tuned, with a tokenizer.
            settings: of the run.
            max_seq_length: most tokens of a sequence.
            has_null: whether a question may have no answer.
        """
        self._tokenizer: Tokenizer = model.tokenizer
        self._labels, self._settings, self._has_null = model.config.labels, settings, has_null
        self._encoder = Encoder(model.tokenizer, max_seq_length)

    def split(self, text: str) -> tuple[str, ...]:
        """Returns the texts of a line: one, or two with a tab between them.

        Raises:
            PairError: there are not as many as the task reads.
        """
        texts = tuple(text.split(SEPARATOR))
        if len(texts) > 2:
            raise PairError(f"{len(texts) - 1} tabs; expected at most one, between both texts of a pair")
        if self.pairs is not None and len(texts) != 1 + self.pairs:
            raise PairError(self._expected)
        return texts

    @property
    def _expected(self) -> str:
        if self.pairs:
            return "no tab; expected a text, a tab and a second text: the run had pairs"
        return "a tab; expected one text: the run had no pairs"

    @abc.abstractmethod
    def read(self, examples: Sequence[tuple[str, ...]]) -> tuple[Any, list[Encoded], list[Reading]]:
        """Returns what `objects` needs, the sequences of examples in order, and what the model reads of each."""

    @abc.abstractmethod
    def objects(self, read: Any, outputs: Sequence[np.ndarray]) -> Iterable[dict[str, Any]]:
        """Returns an object for each example, given the outputs of each sequence without padding."""

    def _reading(self, texts: tuple[str, ...], ids: np.ndarray, cut: int) -> Reading:
        unknown = self._tokenizer.vocabulary.unknown_id
        return Reading(texts, ids, cut, 0 if unknown is None else int(np.count_nonzero(ids == unknown)))


class TextReader(Reader):
    """Of classification, multi_label and regression."""

    _SCORERS: ClassVar = {"classification": ClassScorer, "multi_label": MultiLabelScorer}

    def __init__(self, model: TrainedModel, settings: FineTuningConfig, max_seq_length: int, has_null: bool):
        """See `Reader`; whether texts are pairs follows from the run."""
        super().__init__(model, settings, max_seq_length, has_null)
        self._task = model.config.task
        if settings.glue_task:
            self.pairs = len(glue.TASKS[settings.glue_task].texts) == 2
        elif settings.train_file:
            self.pairs = settings.text_pair_column is not None

    def read(self, examples: Sequence[tuple[str, ...]]) -> tuple[Any, list[Encoded], list[Reading]]:
        """See `Reader.read`."""
        encoded, readings = [], []
        for texts in examples:
            pieces = self._encoder.tokenize(list(texts))
            encoded.append(self._encoder.join(pieces))
            ids = encoded[-1].ids
            readings.append(self._reading(texts, ids, sum(map(len, pieces)) + 1 + len(pieces) - len(ids)))
        return [TextExample("", texts, None) for texts in examples], encoded, readings

    def objects(self, read: Any, outputs: Sequence[np.ndarray]) -> Iterable[dict[str, Any]]:
        """See `Reader.objects`; the outputs are logits, [classes]."""
        make = self._SCORERS.get(self._task)
        scorer = make(read, self._labels) if make else NumberScorer(read)
        return scorer.predictions(np.stack(outputs))


class WordReader(Reader):
    """Of token_classification: words are divided by spaces."""

    def split(self, text: str) -> tuple[str, ...]:
        """Returns the text; a tab is a space."""
        return (text,)

    def read(self, examples: Sequence[tuple[str, ...]]) -> tuple[Any, list[Encoded], list[Reading]]:
        """See `Reader.read`."""
        words = [tuple(text.split()) for (text,) in examples]
        sentences = [conll.Sentence("", n, each, ("",) * len(each)) for n, each in enumerate(words) if each]
        parts, encoded = conll.divide(sentences, self._encoder, self._tokenizer.vocabulary.unknown_id)
        ids: dict[int, list[np.ndarray]] = {}
        for part, each in zip(parts, encoded, strict=True):
            ids.setdefault(part.number, []).append(each.ids)
        nothing = [np.zeros([0], np.int32)]
        readings = [
            self._reading(texts, np.concatenate(ids.get(number, nothing)), 0) for number, texts in enumerate(examples)
        ]
        return (words, parts), encoded, readings

    def objects(self, read: Any, outputs: Sequence[np.ndarray]) -> Iterable[dict[str, Any]]:
        """See `Reader.objects`; the outputs are logits, [tokens, classes]."""
        words, parts = read
        found = EntityScorer(parts, self._labels).predictions([each.argmax(-1) for each in outputs])
        return [next(found) if each else {"words": [], "prediction": []} for each in words]


class QuestionReader(Reader):
    """Of question_answering: a question, a tab, and the context."""

    pairs = True
    _expected = "no tab; expected a question, a tab and the context"

    def read(self, examples: Sequence[tuple[str, ...]]) -> tuple[Any, list[Encoded], list[Reading]]:
        """See `Reader.read`; a long context has several sequences."""
        settings = self._settings
        questions = [
            squad.Question(f"text {number}", str(number), question, context, (), ())
            for number, (question, context) in enumerate(examples)
        ]
        kept = squad.longest_query(settings.max_query_length, self._encoder.max_seq_length)
        kind = self._tokenizer.vocabulary.tokenizer_type
        windows, encoded = squad.divide(questions, self._encoder, kind, settings.doc_stride, kept)
        ids, asked = [[] for _ in questions], self._encoder.tokenize([question for question, _ in examples])
        for window, each in zip(windows, encoded, strict=True):
            ids[window.question].append(each.ids[window.first : -1][window.is_best])
        readings = [
            self._reading(texts, np.concatenate([query[:kept], *parts]), max(len(query) - kept, 0))
            for texts, query, parts in zip(examples, asked, ids, strict=True)
        ]
        return [(questions[window.question], window) for window in windows], encoded, readings

    def objects(self, read: Any, outputs: Sequence[np.ndarray]) -> Iterable[dict[str, Any]]:
        """See `Reader.objects`; the outputs are logits of both ends, [tokens, 2]."""
        return AnswerScorer(read, self._settings, self._has_null).predictions(outputs)


class EmbeddingReader(Reader):
    """Of embedding: a text has a vector, and a pair has the cosine of both vectors."""

    def read(self, examples: Sequence[tuple[str, ...]]) -> tuple[Any, list[Encoded], list[Reading]]:
        """See `Reader.read`; each text of a pair is a sequence of its own."""
        encoded, readings = [], []
        for texts in examples:
            pieces = self._encoder.tokenize(list(texts))
            sides = [self._encoder.join([each]) for each in pieces]
            encoded += sides
            ids = np.concatenate([side.ids for side in sides])
            readings.append(self._reading(texts, ids, sum(map(len, pieces)) + 2 * len(sides) - len(ids)))
        return [TextExample("", texts, None) for texts in examples], encoded, readings

    def objects(self, read: Any, outputs: Sequence[np.ndarray]) -> Iterable[dict[str, Any]]:
        """See `Reader.objects`; the outputs are embeddings, [H]."""
        vectors = iter(outputs)
        for example in read:
            own = [next(vectors) for _ in example.texts]
            if len(own) == 1:
                yield {"texts": example.texts, "embedding": [float(each) for each in own[0]]}
            else:
                yield from PairScorer([example]).predictions(np.stack(own)[np.newaxis])


READERS: dict[str, type[Reader]] = {
    "classification": TextReader,
    "multi_label": TextReader,
    "regression": TextReader,
    "token_classification": WordReader,
    "question_answering": QuestionReader,
    "embedding": EmbeddingReader,
}


def reader_of(model: TrainedModel, max_seq_length: int, null_score_threshold: float | None, n_best: int) -> Reader:
    """Returns the reader of a fine-tuned model with a tokenizer.

    Args:
        model: which one; its run's settings count, if they are known.
        max_seq_length: most tokens of a sequence.
        null_score_threshold: as `--null_score_threshold`; None: every question has an answer.
        n_best: answers to find for each question; the run's number if that is larger.
    """
    settings, has_null = answer_settings(model, null_score_threshold, n_best), null_score_threshold is not None
    return READERS[model.config.task](model, settings, max_seq_length, has_null)


class TaskPredictions:
    """Predicts what a model was fine-tuned for."""

    def __init__(self, model: TrainedModel, reader: Reader, batch_size: int, pooling: str = "mean"):
        """Traces nothing yet.

        Args:
            model: fine-tuned, with a tokenizer.
            reader: of the model's task.
            batch_size: sequences that the model reads at once.
            pooling: of a model for embedding, see `embeddings`.
        """
        network, is_embedding = model.network, model.config.task == "embedding"
        self._reader, self._batch_size = reader, batch_size

        @tf.function(input_signature=[_IDS] * 3, autograph=False)
        def run(ids, mask, segments):
            batch = encoder_batch(ids, mask, segments)
            outputs = network.task_outputs(batch)
            return tf.cast(embeddings(outputs, mask, pooling) if is_embedding else outputs, tf.float32)

        self._run, self._is_of_tokens = run, model.config.task in ("token_classification", "question_answering")

    def __call__(self, examples: Sequence[tuple[str, ...]]) -> tuple[list[Reading], list[dict[str, Any]]]:
        """Returns what the model reads of each example, and an object with its prediction."""
        read, encoded, readings = self._reader.read(examples)
        outputs = []
        for begin in range(0, len(encoded), self._batch_size):
            part = encoded[begin : begin + self._batch_size]
            lengths = [len(each.ids) for each in part]
            rows = Sequences(part).rows(np.arange(len(part)), max(lengths))
            found = self._run(*rows).numpy()
            outputs += [row[:length] if self._is_of_tokens else row for row, length in zip(found, lengths, strict=True)]
        objects = self._reader.objects(read, outputs)
        return readings, [{name: each[name] for name in each if name not in ("id", "label")} for each in objects]
