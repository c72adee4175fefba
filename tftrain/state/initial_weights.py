"""`--init_checkpoint`: a run that begins with the weights of another model, of any format that can be converted.

The model's flags follow from the weights. The weights become the fp32 master weights before anything is rounded.
"""

import dataclasses
import logging
from collections.abc import Collection

from tftrain.checkpoint.errors import CheckpointError
from tftrain.config.convert import parse_place, place_problems
from tftrain.config.data import DataConfig
from tftrain.config.fields import Problem
from tftrain.config.model import ModelConfig
from tftrain.config.run import RunConfig
from tftrain.config.train import TrainConfig
from tftrain.files.errors import FormatError
from tftrain.finetune.classes import head_rows
from tftrain.finetune.preflight import with_glue
from tftrain.formats import registry
from tftrain.formats.run_folder import of_data
from tftrain.formats.weights import ReorderedWeights, Weights, heads_of, structure, without
from tftrain.host.text import listed
from tftrain.tokenizer.tokenizer_files import Tokenizer

NEW_HEAD = "classifier"

logger = logging.getLogger(__name__)


def with_model_of_weights(config: TrainConfig, named: Collection[str]) -> tuple[TrainConfig, list[Problem]]:
    """Takes the flags of the model that the command line does not give from the weights that a run begins with.

    A configuration that continues a run names no initial weights.

    Returns:
        The configuration, and its problems: weights that can't be read, flags that contradict them, and data whose
        vocabulary is another one.
    """
    config, settings = with_glue(config), config.run
    if settings.init_checkpoint is None:
        if not settings.init_missing:
            return config, []
        return config, [Problem("init_missing", True, "remove this flag, or add --init_checkpoint")]
    if problems := place_problems("init_checkpoint", settings.init_checkpoint, exists=True):
        return config, problems
    source = parse_place(settings.init_checkpoint)
    try:
        model, tokenizer = registry.model_of(source)
    except (FormatError, CheckpointError) as error:
        return config, [Problem("init_checkpoint", settings.init_checkpoint, str(error))]
    values = structure(model)
    has_task = config.model.is_fine_tuned or "task" in named
    if (has_task and config.model.task != model.task) or config.model.labels:
        values = {name: value for name, value in values.items() if name not in ("task", "labels")}
    if model.is_custom and "task" in values and "task" not in named:
        expected = f"code that only {settings.init_checkpoint} names; give this flag if you trust it"
        return config, [Problem("task", model.task, expected)]
    # A new classifier may read either, and a head of the next sentence may be left out, or be new with --init_missing.
    of_heads = {"next_sentence"} if model.predicts_samples else {"next_sentence", "classifier_pooling"}
    values = {name: value for name, value in values.items() if name not in of_heads.intersection(named)}
    # A flag that structure leaves out, such as dropout, has the default of the weights' family.
    if "model_family" not in named:
        of_family = dataclasses.replace(config.model, model_family=model.model_family).with_family_defaults(named)
        config = dataclasses.replace(config, model=of_family)
    problems = []
    for name, value in values.items():
        own = getattr(config.model, name)
        if name in named and own != value and _effective(config.model, name) != _effective(model, name):
            expected = f"expected {str(value).lower()}, as in {settings.init_checkpoint}; correct or remove this flag"
            problems.append(Problem(name, own, expected))
    if tokenizer and (data := config.phases[0].data).folder:
        problems += _vocabulary_problems(settings.init_checkpoint, data, tokenizer)
    return dataclasses.replace(config, model=dataclasses.replace(config.model, **values)), problems


def _effective(model: ModelConfig, name: str) -> object:
    """Returns the value of a flag, or what its default stands for."""
    if name == "norm_position":
        return model.is_pre_norm
    if name == "num_key_value_heads":
        return model.key_value_heads
    return model.feed_forward_size if name == "intermediate_size" else getattr(model, name)


def _vocabulary_problems(init_checkpoint: str, data: DataConfig, tokenizer: Tokenizer) -> list[Problem]:
    try:
        theirs, ours = tokenizer.vocabulary.tokens, of_data(data.folder, data.cache).vocabulary.tokens
    except FormatError:
        return []  # The checks of the data say more.
    if theirs == ours:
        return []
    first = next((index for index, pair in enumerate(zip(theirs, ours, strict=False)) if pair[0] != pair[1]), None)
    difference = f"token {first} is {theirs[first]!r}, there {ours[first]!r}" if first is not None else "one is longer"
    expected = (
        f"its vocabulary is not that of the data in {data.folder}: {difference}; prepare the text with --vocab_file"
    )
    return [Problem("init_checkpoint", init_checkpoint, expected)]


def open_for(settings: RunConfig, model: ModelConfig) -> Weights | None:
    """Opens the weights that a run of a model begins with; None: its initial weights are random.

    Raises:
        FormatError, CheckpointError: they can't be read, or lack a head, and `--init_missing` is not given.
    """
    if settings.init_checkpoint is None:
        return None
    weights = registry.open_weights(parse_place(settings.init_checkpoint))
    for note in weights.notes:
        logger.info(note)
    weights = _with_classes(weights, model, f"--init_checkpoint={settings.init_checkpoint}", settings.mode)
    # A new task begins with a new classifier.
    needed = [head for head in heads_of(model) if head != NEW_HEAD or settings.mode == "evaluate"]
    missing = [head for head in needed if head not in weights.parts]
    if missing and not settings.init_missing:
        raise FormatError(
            f"--init_checkpoint={settings.init_checkpoint}: it lacks output heads ({', '.join(missing)}); "
            "--init_missing gives them random initial weights"
        )
    return weights


def _with_classes(weights: Weights, model: ModelConfig, what: str, mode: str) -> Weights:
    """Returns weights whose classifier has the classes of a model in their order, or none if it is for other classes.

    Raises:
        FormatError: it is for other classes, and there is no training.
    """
    theirs = weights.model
    if (model.task, model.labels) == (theirs.task, theirs.labels):
        return weights
    rows = head_rows(model.labels, theirs.labels) if model.task == theirs.task else None
    if rows is not None:
        return ReorderedWeights(weights, model.labels, NEW_HEAD, rows)
    if NEW_HEAD in weights.parts:
        other = f"its {NEW_HEAD} is for {theirs.task} with the classes {listed(theirs.labels, 10)}"
        if mode == "evaluate" and model.task == theirs.task:
            raise FormatError(f"{what}: {other}, and --labels names others; remove --labels")
        logger.info(f"{what}: {other}; that of {model.task} begins with random weights")
    return without(weights, NEW_HEAD)
