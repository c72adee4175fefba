"""`--init_checkpoint`: a run that begins with the weights of another model, of any format that can be converted.

The model's flags follow from the weights. The weights become the fp32 master weights before anything is rounded.
"""

import dataclasses
import functools
import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from tftrain.architecture.describe import is_pre_norm
from tftrain.checkpoint.errors import CheckpointError
from tftrain.config.convert import parse_place, place_problems
from tftrain.config.fields import Problem
from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.config.model import VECTOR_FLAGS, ModelConfig
from tftrain.config.train import TrainConfig
from tftrain.files.errors import FormatError
from tftrain.finetune import glue
from tftrain.finetune.classes import head_rows
from tftrain.formats import registry
from tftrain.formats.weights import PROJECTION, Weights, heads_of, reordered, structure, without
from tftrain.host.text import listed
from tftrain.tokenizer.tokenizer_files import Tokenizer

NEW_HEAD = "classifier"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class InitialWeights:
    """The weights that a run begins with, `value` of --init_checkpoint; what is not their numbers is read once."""

    value: str

    @functools.cached_property
    def _description(self) -> tuple[ModelConfig, Tokenizer | None]:
        return registry.model_of(parse_place(self.value))

    @property
    def model(self) -> ModelConfig:
        """The model that they are of; raises FormatError or CheckpointError."""
        return self._description[0]

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer beside them; raises FormatError or CheckpointError."""
        return self._description[1]

    def open(self, model: ModelConfig, mode: str, may_lack_heads: bool, kind: str = "trained") -> Weights:
        """Opens the numbers for a model that a run trains or only evaluates, as `mode` says; `kind` is one of WEIGHTS.

        With `may_lack_heads`, output heads that the numbers lack are random, as with --init_missing. Raises a
        FormatError or a CheckpointError if the numbers can't be read, or if they lack a head.
        """
        weights = registry.open_weights(parse_place(self.value), weights=kind)
        for note in weights.notes:
            logger.info(note)
        weights = _with_classes(weights, model, f"--init_checkpoint={self.value}", mode)
        if model.embedding_dense != weights.model.embedding_dense:
            weights = without(weights, PROJECTION)
        # A new task begins with a new layer.
        needed = [head for head in heads_of(model) if head not in (NEW_HEAD, PROJECTION) or mode == "evaluate"]
        missing = [head for head in needed if head not in weights.parts]
        if missing and not may_lack_heads:
            raise FormatError(
                f"--init_checkpoint={self.value}: it lacks output heads ({', '.join(missing)}); "
                "--init_missing gives them random initial weights"
            )
        return weights


def with_model_of_weights(
    config: TrainConfig, named: Collection[str]
) -> tuple[TrainConfig, list[Problem], InitialWeights | None]:
    """Takes the flags of the model that the command line does not give from the weights that a run begins with.

    Returns the configuration; its problems, which are weights that can't be read and flags that contradict them; and
    the weights. A configuration that continues a run names no initial weights.
    """
    model, examples = _with_glue(config.model, config.fine_tuning)
    config, settings = dataclasses.replace(config, model=model, fine_tuning=examples), config.run
    if settings.init_checkpoint is None:
        problem = Problem("init_missing", True, "remove this flag, or add --init_checkpoint")
        return config, [problem] if settings.init_missing else [], None
    initial = InitialWeights(settings.init_checkpoint)
    if problems := place_problems("init_checkpoint", initial.value, exists=True):
        return config, problems, initial
    try:
        model = initial.model
    except (FormatError, CheckpointError) as error:
        return config, [Problem("init_checkpoint", initial.value, str(error))], initial
    values = structure(model)
    has_task = config.model.is_fine_tuned or "task" in named
    if (has_task and config.model.task != model.task) or config.model.labels:
        values = {name: value for name, value in values.items() if name not in ("task", "labels", *VECTOR_FLAGS)}
    if model.is_custom and "task" in values and "task" not in named:
        expected = f"code that only {initial.value} names; give this flag if you trust it"
        return config, [Problem("task", model.task, expected)], initial
    # A new classifier may read either, and a head of the next sentence may be left out, or be new with --init_missing.
    # Vectors may be made of the same hidden states in another way.
    of_heads = {"next_sentence", *VECTOR_FLAGS} | (set() if model.predicts_samples else {"classifier_pooling"})
    values = {name: value for name, value in values.items() if name not in of_heads.intersection(named)}
    # A flag that structure leaves out, such as dropout, has the default of the weights' family.
    if "model_family" not in named:
        of_family = dataclasses.replace(config.model, model_family=model.model_family).with_family_defaults(named)
        config = dataclasses.replace(config, model=of_family)
    problems = []
    for name, value in values.items():
        own = getattr(config.model, name)
        if name in named and own != value and _effective(config.model, name) != _effective(model, name):
            expected = f"expected {str(value).lower()}, as in {initial.value}; correct or remove this flag"
            problems.append(Problem(name, own, expected))
    return dataclasses.replace(config, model=dataclasses.replace(config.model, **values)), problems, initial


def _with_glue(model: ModelConfig, settings: FineTuningConfig) -> tuple[ModelConfig, FineTuningConfig]:
    """Returns the sections with the task and the metric of `--glue_task`, where the flags do not say them."""
    if settings.glue_task not in glue.TASKS:
        return model, settings
    layout = glue.TASKS[settings.glue_task]
    task = layout.task if model.task == "pretraining" else model.task
    metric = settings.best_metric or layout.metric
    return dataclasses.replace(model, task=task), dataclasses.replace(settings, best_metric=metric)


def _effective(model: ModelConfig, name: str) -> Any:
    """Returns the value of a flag, or what its default stands for."""
    if name == "norm_position":
        return is_pre_norm(model)
    if name == "num_key_value_heads":
        return model.key_value_heads
    return model.feed_forward_size if name == "intermediate_size" else getattr(model, name)


def _with_classes(weights: Weights, model: ModelConfig, what: str, mode: str) -> Weights:
    """Returns weights whose classifier has the classes of a model in their order, or none if it is for other classes.

    Raises a FormatError if it is for other classes and there is no training.
    """
    theirs = weights.model
    if (model.task, model.labels) == (theirs.task, theirs.labels):
        return weights
    rows = head_rows(model.labels, theirs.labels) if model.task == theirs.task else None
    if rows is not None:
        return reordered(weights, model.labels, NEW_HEAD, rows)
    if NEW_HEAD in weights.parts:
        other = f"its {NEW_HEAD} is for {theirs.task} with the classes {listed(theirs.labels, 10)}"
        if mode == "evaluate" and model.task == theirs.task:
            raise FormatError(f"{what}: {other}, and --labels names others; remove --labels")
        logger.info(f"{what}: {other}; that of {model.task} begins with random weights")
    return without(weights, NEW_HEAD)
