"""What joins a task with data: the source of its examples, and what judges its predictions for them.

What only this module calls of a user's class is private, so that it takes no name of theirs.
"""

import dataclasses
import functools
import itertools
import logging
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from tftrain.data import source as pretraining
from tftrain.data.example_source import ExampleSource
from tftrain.data.mixture import Mixture
from tftrain.data.opened import OpenedData
from tftrain.data.phase_data import PhaseData
from tftrain.finetune import splits, squad_answers
from tftrain.finetune.corpus_search import CorpusScorer
from tftrain.finetune.retrieval import Ranked
from tftrain.finetune.scorers import SCORERS, Scorer
from tftrain.finetune.splits import MemorySource
from tftrain.host.user_code import UserCodeError
from tftrain.inputs.labelled import Labelled
from tftrain.tasks.custom import CustomTask
from tftrain.tasks.fine_tuning import FineTuning
from tftrain.tasks.task import Task

logger = logging.getLogger(__name__)


def open_source(task: Task, data: PhaseData, split: str, seed: int) -> ExampleSource:
    """Opens the examples of a split, "train" or "eval", of what a run or one of its phases reads.

    Raises a DataError or a UserCodeError if a file can't be read, or can't be used for the task.
    """
    if isinstance(data, OpenedData):
        return pretraining.open_source(data, split, seed)
    if isinstance(task, CustomTask):
        return _custom_source(task, data, split)
    config, examples = task.config, data.examples(split)
    given = {"split": split, "tokenizer": data.tokenizer, "model": config.model, "length": config.data.max_seq_length}
    if split == "eval" or not data.sources:
        return splits.open_source(examples, settings=config.fine_tuning, **given)
    rows, parts = iter(examples), {}
    for source, own in data.sources:
        count, settings = own.count(split), dataclasses.replace(config.fine_tuning, train_file=source.path)
        logger.info(f"{source.path}: {count} examples of {source.name}")
        parts[source] = splits.open_source(list(itertools.islice(rows, count)), settings=settings, **given)
    joined, block = splits.JoinedSource(list(parts.values())), config.batch.global_batch_size
    sizes = {source: part.num_examples for source, part in parts.items()}
    joined.mixture = Mixture(sizes, block if config.data.mix_by == "batch" else 1)
    return joined


def scorer_of(task: Task, source: ExampleSource) -> Scorer | None:
    """Returns what judges the predictions for a split; None if the means of the task say all."""
    if isinstance(task, CustomTask):
        return _CustomScorer(task, source.examples) if task.scored else None
    if not isinstance(task, FineTuning):
        return None
    model = task.config.model
    if model.task == "question_answering":
        return squad_answers.AnswerScorer(source.examples, task.config.fine_tuning)
    if model.task == "embedding" and isinstance(source.examples[0], Ranked):
        return CorpusScorer(source.examples)
    return SCORERS[model.task](source.examples, model.labels)


def _custom_source(task: CustomTask, data: Labelled, split: str) -> MemorySource:
    """Returns the rows that a user's class reads; those of a held-out file have the shapes of the training file."""
    length, path = task.config.data.max_seq_length, getattr(task.config.fine_tuning, f"{split}_file")
    encode = functools.partial(splits.encode, data.tokenizer, length=length)
    build = functools.cache(data.tokenizer.build)
    task._texts = SimpleNamespace(encode=encode, tokenize=lambda texts: build()(texts))
    with task._named(f"read({path!r})"):
        source = splits.of_arrays(task.read(path), task.config.model, length)
        task._take_shapes({name: array.shape[1:] for name, array in source.examples.items()})
    return source


class _CustomScorer(Scorer):
    """Calls `CustomTask.score`."""

    def __init__(self, task: CustomTask, examples: Mapping[str, np.ndarray]):
        self._task, self._examples = task, examples

    def scores(self, outputs: np.ndarray) -> dict[str, float]:
        task = self._task
        with task._named("score"):
            scores = task.score(outputs, {name: array[: len(outputs)] for name, array in self._examples.items()})
            if missing := [name for name in task.scored if name not in scores]:
                raise UserCodeError(f"returned no {missing[0]}, which is in scored")
            return {name: float(scores[name]) for name in task.scored}

    def predictions(self, outputs: np.ndarray) -> Iterator[dict[str, Any]]:
        yield from ({"prediction": output.tolist()} for output in outputs)
