"""What a fine-tuned model predicts for texts: the objects that its run writes to predictions.jsonl, without labels.

Each task has a reader, which turns texts into token sequences as training does. The task's scorer makes objects of the
model's outputs.
"""

import abc
import itertools
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.finetune import conll, glue, squad
from tftrain.finetune.encoding import Encoded, ExampleEncoder, Sequences
from tftrain.finetune.scorers import SCORERS, EntityScorer, PairScorer
from tftrain.finetune.squad_answers import AnswerScorer
from tftrain.finetune.tables import TextExample
from tftrain.inference.trained_model import Sample, TrainedModel, answer_settings, count_unknown, encoder_batch

logger = logging.getLogger(__name__)

SEPARATOR = "\t"  # between both texts of a pair, or a question and its context
_IDS = tf.TensorSpec([None, None], tf.int32)

# Makes an object for each example, given the outputs of each sequence without padding.
Objects = Callable[[Sequence[np.ndarray]], Iterable[dict[str, Any]]]
Read = tuple[list[Encoded], list[Sample], Objects]  # the sequences of examples in order, what the model reads of each


class TaskReader(abc.ABC):
    """Reads texts for a task with its `encoder`, for a model that has a tokenizer."""

    pairs: bool | None = None  # whether a text must be a pair; None: it may be one
    _refusals = (  # messages for a pair, and for one text
        "a tab; expected one text: the run had no pairs",
        "no tab; expected a text, a tab and a second text: the run had pairs",
    )

    def __init__(self, model: TrainedModel, settings: FineTuningConfig, max_seq_length: int, has_null: bool):
        self._config, self._vocabulary = model.config, model.tokenizer.vocabulary
        self._settings, self._has_null = settings, has_null
        self.encoder = ExampleEncoder(model.tokenizer, max_seq_length)

    def split(self, text: str) -> tuple[str, ...]:
        """Returns one text or two with a tab between them; raises a ValueError if the task reads another number."""
        texts = tuple(text.split(SEPARATOR))
        if len(texts) > 2:
            raise ValueError(f"{len(texts) - 1} tabs; expected at most one, between both texts of a pair")
        if self.pairs is not None and len(texts) != 1 + self.pairs:
            raise ValueError(self._refusals[self.pairs])
        return texts

    @abc.abstractmethod
    def read(self, examples: Sequence[tuple[str, ...]]) -> Read:
        """Reads the texts of examples."""

    def _sample(self, parts: Sequence[np.ndarray], cut: int = 0) -> Sample:
        ids = np.concatenate(parts)
        return Sample(ids, np.zeros(0, np.int64), cut, 0, count_unknown(ids, self._vocabulary))


class TextReader(TaskReader):
    """Reads texts for classification, multi_label and regression; whether texts are pairs follows from the run."""

    @property
    def pairs(self) -> bool | None:
        """Whether the run had pairs, if its settings say what it read."""
        if self._settings.glue_task:
            return len(glue.TASKS[self._settings.glue_task].texts) == 2
        return self._settings.text_pair_column is not None if self._settings.train_file else None

    def read(self, examples: Sequence[tuple[str, ...]]) -> Read:
        """Makes a sequence of each example."""
        scorer = SCORERS[self._config.task]([TextExample("", texts, None) for texts in examples], self._config.labels)
        encoded = list(itertools.chain(*(self.encoder([texts]) for texts in examples)))
        samples = [self._sample([each.ids], each.cut) for each in encoded]
        return encoded, samples, lambda logits: scorer.predictions(np.stack(logits))


class EmbeddingReader(TaskReader):
    """Reads texts for embedding: a text has a vector, and a pair has the cosine of both vectors."""

    def read(self, examples: Sequence[tuple[str, ...]]) -> Read:
        """Makes a sequence of each text of a pair, after its prompt; raises a ConfigError if a prompt is too long."""
        columns = ([texts[n] for texts in examples if texts[n:]] for n in (0, 1))
        first, second = (iter(self.encoder.vectors_of(own, self._config, n)) for n, own in enumerate(columns))
        groups = [[next(first), *([next(second)] if texts[1:] else [])] for texts in examples]
        samples = [self._sample([each.ids for each in group], sum(each.cut for each in group)) for group in groups]

        def objects(outputs: Sequence[np.ndarray]) -> Iterator[dict[str, Any]]:
            vectors = iter(outputs)
            for texts in examples:
                own = [next(vectors) for _ in texts]
                if len(own) == 1:
                    yield {"texts": texts, "embedding": [float(each) for each in own[0]]}
                else:
                    yield from PairScorer([TextExample("", texts, None)]).predictions(np.stack(own)[np.newaxis])

        return list(itertools.chain(*groups)), samples, objects


class WordReader(TaskReader):
    """Reads texts for token_classification: words are divided by spaces, see `conll.words_of`."""

    _warned = False

    def split(self, text: str) -> tuple[str, ...]:
        """Returns the text; a tab is a space."""
        return (text,)

    def read(self, examples: Sequence[tuple[str, ...]]) -> Read:
        """Divides long texts between words."""
        words = [tuple(conll.words_of(text)) for (text,) in examples]
        glued = next((word for each in words for word in each if re.search(r"\w[.,;:!?]$", word)), None)
        if glued and not self._warned:
            remedy = "put a space before a mark that is a word of its own, as in training"
            logger.warning(f"{glued!r} is one word; {remedy}")
        self._warned = self._warned or bool(glued)
        sentences = [conll.Sentence("", n, each, ("",) * len(each)) for n, each in enumerate(words) if each]
        parts, encoded = conll.divide(sentences, self.encoder, self._vocabulary.unknown_id)
        ids = [[np.zeros([0], np.int32)] for _ in examples]
        for part, rows in zip(parts, encoded, strict=True):
            ids[part.number].append(rows.ids)
        scorer = EntityScorer(parts, self._config.labels)

        def objects(logits: Sequence[np.ndarray]) -> list[dict[str, Any]]:
            predictions = scorer.predictions([each.argmax(-1) for each in logits])
            return [next(predictions) if each else {"words": [], "prediction": []} for each in words]

        return encoded, list(map(self._sample, ids)), objects


class QuestionReader(TaskReader):
    """Reads lines for question_answering: a question, a tab, and the context."""

    pairs = True
    _refusals = ("", "no tab; expected a question, a tab and the context")

    def read(self, examples: Sequence[tuple[str, ...]]) -> Read:
        """Makes several sequences of a long context."""
        settings = self._settings
        questions = [squad.Question(f"text {n}", str(n), *texts, (), ()) for n, texts in enumerate(examples)]
        kept = squad.longest_query(settings.max_query_length, self.encoder.max_seq_length, self.encoder.roles)
        kind = self._vocabulary.tokenizer_type
        windows, encoded = squad.divide(questions, self.encoder, kind, settings.doc_stride, kept)
        asked = self.encoder.tokenize([question for question, _ in examples])
        ids = [[query[:kept]] for query in asked]
        for window, encoding in zip(windows, encoded, strict=True):
            ids[window.question].append(encoding.ids[window.first : -1][window.is_best])
        cut = [max(len(query) - kept, 0) for query in asked]
        samples = list(map(self._sample, ids, cut))
        asked_in = [(questions[window.question], window) for window in windows]
        return encoded, samples, AnswerScorer(asked_in, settings, self._has_null).predictions


READERS: dict[str, type[TaskReader]] = {
    **dict.fromkeys(("classification", "multi_label", "regression"), TextReader),
    "token_classification": WordReader,
    "question_answering": QuestionReader,
    "embedding": EmbeddingReader,
}


class TaskPredictions:
    """Predicts what a model with a tokenizer was fine-tuned for, with the `reader` of its task.

    Args:
        null_score_threshold, n_best: how answers are chosen, see `answer_settings`; None: every question has an answer.
        batch_size: how many sequences the model reads at once.
    """

    def __init__(
        self, model: TrainedModel, max_seq_length: int, null_score_threshold: float | None, n_best: int, batch_size: int
    ):
        network, config = model.network, model.config
        settings, has_null = answer_settings(model, null_score_threshold, n_best), null_score_threshold is not None
        self.reader = READERS[config.task](model, settings, max_seq_length, has_null)
        self._config, self._batch_size = config, batch_size
        self._padding_id = model.tokenizer.vocabulary.padding_id

        @tf.function(input_signature=[_IDS] * 3 + [tf.TensorSpec([None], tf.int32)], autograph=False)
        def run(ids: tf.Tensor, mask: tf.Tensor, token_types: tf.Tensor, unpooled: tf.Tensor) -> tf.Tensor:
            batch = encoder_batch(ids, mask, token_types) | {"unpooled": unpooled}
            return tf.cast(network.task_outputs(batch), tf.float32)

        self._run, self._is_of_tokens = run, config.task in ("token_classification", "question_answering")

    def __call__(self, examples: Sequence[tuple[str, ...]]) -> tuple[list[Sample], list[dict[str, Any]]]:
        """Returns what the model reads of each example, and an object with its prediction."""
        encoded, samples, objects = self.reader.read(examples)
        predicted = objects(self._outputs(encoded))
        return samples, [{name: each[name] for name in each if name not in ("id", "label")} for each in predicted]

    def vectors(self, texts: Sequence[str], column: int) -> np.ndarray:
        """Returns the vectors of texts of a column, fp32 [n, D]; those of about the same length are read at once."""
        order, vectors = sorted(range(len(texts)), key=lambda place: len(texts[place])), {}
        encoder = self.reader.encoder
        before = encoder.cut
        with tqdm(total=len(texts), unit="text", desc="vectors", disable=None, leave=False) as bar:
            for begin in range(0, len(texts), self._batch_size):
                places = order[begin : begin + self._batch_size]
                encoded = encoder.vectors_of([texts[place] for place in places], self._config, column)
                vectors |= dict(zip(places, self._outputs(encoded), strict=True))
                bar.update(len(places))
        if cut := encoder.cut - before:
            most = encoder.max_seq_length
            logger.warning(f"{cut} of {len(texts)} texts are cut: the model reads at most {most} tokens")
        return np.stack([vectors[place] for place in range(len(texts))])

    def _outputs(self, encoded: Sequence[Encoded]) -> list[np.ndarray]:
        outputs = []
        for begin in range(0, len(encoded), self._batch_size):
            part = encoded[begin : begin + self._batch_size]
            lengths = [len(each.ids) for each in part]
            sequences = Sequences(part, self._padding_id)
            array = self._run(*sequences.rows(np.arange(len(part)), max(1, *lengths)), sequences.unpooled).numpy()
            outputs += [row[:length] if self._is_of_tokens else row for row, length in zip(array, lengths, strict=True)]
        return outputs
