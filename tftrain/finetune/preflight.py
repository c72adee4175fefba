"""Labelled files before TensorFlow starts: their examples, classes and problems, the sizes, and their identity."""

import dataclasses
import hashlib
import logging
from collections.abc import Sequence

from tftrain.config.data_sizes import Sizes, example_length
from tftrain.config.fields import Problem
from tftrain.config.model import WITH_CLASSES
from tftrain.config.train import TrainConfig
from tftrain.data.preflight import identity as identity_of_data
from tftrain.files.errors import DataError
from tftrain.finetune import classes, completions, conll, examples, glue, squad
from tftrain.finetune.scorers import METRICS
from tftrain.finetune.tables import RowError, read_bytes
from tftrain.finetune.tokenizers import tokenizer_of
from tftrain.host.text import listed
from tftrain.host.user_code import file_of
from tftrain.tokenizer.tokenizer_model import Tokenizer

logger = logging.getLogger(__name__)


def read_split(config: TrainConfig, split: str, tokenizer: Tokenizer | None = None, reports: bool = False) -> list:
    """Reads the examples of a split, "train" or "eval", as the task has them: texts, sentences or questions.

    Chats need the tokenizer; None: it is read again. With `reports`, the log has the number of lines that are left out.

    Raises:
        DataError: the file can't be read, or an example is damaged; the message names the line.
    """
    try:
        return _read_split(config, split, tokenizer, reports)
    except RowError as error:
        raise DataError(f"{error}; correct it, or leave such rows out with --skip_bad_rows") from error


def _read_split(config: TrainConfig, split: str, tokenizer: Tokenizer | None, reports: bool) -> list:
    task, settings = config.model.task, config.fine_tuning
    if config.model.is_custom:  # Its class reads the file.
        read_bytes(examples.path_of(settings, split))
        return []
    if task == "token_classification":
        columns = (settings.text_column, settings.label_column)
        return conll.read_sentences(examples.path_of(settings, split), *columns, settings.skip_bad_rows, reports)
    if task == "question_answering":
        return squad.read_questions(examples.path_of(settings, split), settings.skip_bad_rows, reports)
    if task == "completion":
        path = examples.path_of(settings, split)
        return completions.read_examples(path, settings, tokenizer or tokenizer_of(config), reports)
    return examples.read_examples(settings, task, split, reports)


def labels_of(config: TrainConfig, rows: Sequence | None = None) -> tuple[str, ...]:
    """Returns the classes of the training examples `rows`, by default those in the file; none for other tasks.

    Raises:
        DataError: see `read_split`; there are too few classes, or far too many.
    """
    task, settings = config.model.task, config.fine_tuning
    if task not in WITH_CLASSES:
        return ()
    if settings.glue_task:
        return glue.TASKS[settings.glue_task].labels
    return examples.labels_of(read_split(config, "train") if rows is None else rows, task)


def with_model_labels(rows: list, task: str, labels: Sequence[str], reports: bool = False) -> list:
    """Returns examples with the model's names of their classes, see `classes.meant`; with `reports`, the log has them.

    Raises:
        DataError: a class is none of the model's; the message names the line.
    """
    if task not in WITH_CLASSES:
        return rows
    names = {name for example in rows for name in examples.classes_of(example, task)}
    found = classes.meant(sorted(names), labels)
    for example in rows if len(found) < len(names) else ():
        if unknown := [name for name in examples.classes_of(example, task) if name not in found]:
            other = f"is not one of the model's: {listed(labels, 10)}; name classes as the model does, or give --labels"
            raise DataError(f"{example.place}: the label {unknown[0]!r} {other}")
    if not (others := [f"{name} as {label}" for name, label in found.items() if name != label]):
        return rows
    if reports:
        logger.info(f"classes are read by the names of the model: {listed(others, 10)}")
    return examples.with_classes(rows, task, found)


def with_glue(config: TrainConfig) -> TrainConfig:
    """Returns a configuration with the task and the metric of `--glue_task`, where the flags do not say them."""
    settings = config.fine_tuning
    if settings.glue_task not in glue.TASKS:
        return config
    layout = glue.TASKS[settings.glue_task]
    task = layout.task if config.model.task == "pretraining" else config.model.task
    settings = dataclasses.replace(settings, best_metric=settings.best_metric or layout.metric)
    return dataclasses.replace(config, model=dataclasses.replace(config.model, task=task), fine_tuning=settings)


def problems(config: TrainConfig) -> list[Problem]:
    """Returns all conflicts between a configuration of fine-tuning, valid or not, and its labelled files."""
    settings, model, problems = config.fine_tuning, config.model, []
    metrics = METRICS.get(model.task, ())
    if metrics and settings.best_metric not in (None, *metrics):
        problems.append(Problem("best_metric", settings.best_metric, f"expected one of {', '.join(metrics)}"))
    if settings.glue_task and glue.TASKS[settings.glue_task].task != model.task:
        expected = f"expected {glue.TASKS[settings.glue_task].task} with --glue_task={settings.glue_task}"
        return [*problems, Problem("task", model.task, expected)]
    tokenizer = None
    try:
        tokenizer = tokenizer_of(config)
    except DataError as error:
        problems.append(_problem(error, config, "tokenizer_dir" if settings.tokenizer_dir else "init_checkpoint"))
        if model.task == "completion":  # Its files can't be read without.
            return problems
    labels = model.labels
    for split in ("train", "eval"):
        flag = "glue_dir" if settings.glue_task else f"{split}_file"
        if flag in {problem.flag for problem in problems}:
            continue
        if getattr(settings, flag) is None:
            if split == "eval" and config.run.mode == "evaluate":
                problems.append(Problem("eval_file", None, "expected held-out examples, which --mode=evaluate reads"))
            continue
        try:
            rows = read_split(config, split, tokenizer)
            labels = labels or (labels_of(config, rows) if split == "train" else ())
            if labels:
                with_model_labels(rows, model.task, labels)
        except completions.TemplateError as error:
            of_template = ("chat_template", "tokenizer_dir")
            flag = next((name for name in of_template if getattr(settings, name)), "init_checkpoint")
            return [*problems, _problem(error, config, flag)]
        except DataError as error:
            problems.append(_problem(error, config, flag))
    every = config.evaluation.eval_every
    if every > 0 and not (settings.glue_task or settings.eval_file):
        problems.append(Problem("eval_every", every, "expected 0, or --eval_file: nothing is held out"))
    return problems


def _problem(error: DataError, config: TrainConfig, flag: str) -> Problem:
    """Returns an error as a problem of a flag; the message may begin with the flag."""
    value = getattr(config.fine_tuning, flag, None) or getattr(config.run, flag, None)
    message = str(error)
    for prefix in (f"--{flag}={value}: ", f"{value}: ", f"{value}, "):
        message = message.removeprefix(prefix)
    if message.startswith("--"):
        name, _, rest = message.removeprefix("--").partition(" is not given; ")
        if rest:
            return Problem(name, None, rest)
        flag_text, _, message = message.removeprefix("--").partition(": ")
        flag, _, value = flag_text.partition("=")
    return Problem(flag, value, message)


def sizes(config: TrainConfig) -> Sizes:
    """Returns the sizes that model and data share, of a valid configuration; raises DataError without a tokenizer."""
    tokens = len(tokenizer_of(config).vocabulary)
    return Sizes(config.model.vocab_size or tokens, example_length(config.data, config.model), 1)


def with_labels(config: TrainConfig) -> TrainConfig:
    """Returns the configuration with the classes of the training file, where the flags name none; see `labels_of`."""
    labels = config.model.labels or labels_of(config)
    return dataclasses.replace(config, model=dataclasses.replace(config.model, labels=labels))


def identity(config: TrainConfig) -> dict[str, str]:
    """Returns the properties of a run's data that must be equal on all ranks and after a resume.

    Raises:
        DataError: the data can't be read.
    """
    if not config.model.reads_examples:
        first, *others = (identity_of_data(phase.data) for phase in config.phases)
        numbered = [(number, what, value) for number, own in enumerate(others, 2) for what, value in own.items()]
        return first | {f"{what} of phase {n}": value for n, what, value in numbered if first.get(what) != value}
    settings, tokenizer = config.fine_tuning, tokenizer_of(config)
    vocabulary = tokenizer.vocabulary
    digest = hashlib.sha256("\n".join(vocabulary.tokens).encode()).hexdigest()
    identity = {"the vocabulary": f"{len(vocabulary)} tokens with SHA-256 {digest[:16]}"}
    if config.model.task == "completion" and tokenizer.chat_template:
        identity["the chat template"] = f"SHA-256 {hashlib.sha256(tokenizer.chat_template.encode()).hexdigest()[:16]}"
    if config.model.task == "completion" and tokenizer.begins_with_bos:
        identity["the token before a text"] = tokenizer.named_tokens["bos_token"]
    if config.model.is_custom and (path := file_of(config.model.task)):
        identity["the file of --task"] = f"SHA-256 {hashlib.sha256(read_bytes(path)).hexdigest()[:16]}"
    for split in ("train", "eval"):
        if settings.glue_task or getattr(settings, f"{split}_file"):
            digest = hashlib.sha256(read_bytes(examples.path_of(settings, split))).hexdigest()
            identity[f"the labelled {split} file"] = f"SHA-256 {digest[:16]}"
    return identity
