"""From the flags of `tftrain.predict` to what it prints: masked tokens, or the next one, or the task of a model."""

import dataclasses
import functools
import itertools
import logging
import re
from collections.abc import Callable, Iterator, Sequence

from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.config.predict import STANDARD_INPUT, PredictConfig
from tftrain.files.errors import DataError
from tftrain.finetune import completions
from tftrain.host.exit_codes import RunError
from tftrain.inference import candidates, input_texts, mining, prediction_text, trained_model
from tftrain.inference.task_predictions import TaskPredictions
from tftrain.inference.trained_model import Sample, TrainedModel
from tftrain.tokenizer.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

# A file whose texts all have the same fault gives this number of warnings, and a count of the others at the end.
MAX_WARNINGS = 20
_NOT_UTF_8 = re.compile("[\ud800-\udfff]")  # Python has these in place of bytes of an argument that are not UTF-8.

Batch = Sequence[tuple[str, str]]  # names for messages, and texts
# Returns what the model reads of each text, and what is printed for each.
Run = Callable[[Batch], tuple[Sequence[Sample], Sequence[str]]]


def predictions(
    config: PredictConfig, texts: Sequence[str], show: Callable[[str], None] | None = None
) -> Iterator[str]:
    """Yields what is printed for each text, or for each line of a file, and logs warnings.

    `show` is called with each part that a decoder appends to the only text, of which the result is then the rest.

    Raises:
        RunError, OSError: the message names the file or the flag.
    """
    settings = config.predict
    if damaged := [number for number, text in enumerate(texts, 1) if _NOT_UTF_8.search(text)]:
        raise RunError(f"text {damaged[0]}: not UTF-8; convert it, for instance with iconv -t UTF-8")
    model = trained_model.load(config.source, pooling=settings.embedding or ("auto" if settings.mine else None))
    for note in model.notes:
        logger.warning(note)
    if settings.text_prompt is not None:
        if model.config.task != "embedding":
            _refuse(config, "text_prompt", f"is for {model.config.task}; remove this flag, or add --embedding")
        model = model._replace(config=dataclasses.replace(model.config, text_prompt=settings.text_prompt))
    if settings.mine:
        yield from map(prediction_text.json_line, _mined(model, config))
        return
    run = _run_of_task(model, config) if model.config.is_fine_tuned else _run_of_tokens(model, config, show)
    longest = model.config.longest_sequence
    if model.config.is_fine_tuned:
        longest = settings.max_seq_length or model.max_seq_length
    lines, warnings = ((f"text {number}", text) for number, text in enumerate(texts, 1)), 0
    if settings.input_file:
        lines = _lines(model, settings.input_file)
    while batch := list(itertools.islice(lines, settings.batch_size)):
        samples, printed = run(batch)
        for warning in _doubts(batch, samples, longest, model.tokenizer.vocabulary):
            warnings += 1
            if warnings <= MAX_WARNINGS:
                logger.warning(warning)
        yield from printed
    if warnings > MAX_WARNINGS:
        logger.warning(f"and {warnings - MAX_WARNINGS} more such warnings")


def _mined(model: TrainedModel, config: PredictConfig) -> Iterator[dict[str, str]]:
    settings, columns = config.predict, model.fine_tuning or FineTuningConfig()
    trained_model.require(model, config.source)
    run = _predictions_of(model, config)
    # The file has pairs, whatever the model learned from.
    pairs = {"embedding_loss": "in_batch", "negative_columns": (), "train_file": settings.input_file}
    try:
        yield from mining.mined(run, settings, dataclasses.replace(columns, **pairs))
    except DataError as error:
        raise RunError(f"--mine, --input_file: {error}") from error


def _lines(model: TrainedModel, path: str) -> Iterator[tuple[str, str]]:
    try:
        yield from input_texts.read(path, model.config.task, model.fine_tuning)
    except DataError as error:
        raise RunError(f"--input_file={error}") from error


def _run_of_tokens(model: TrainedModel, config: PredictConfig, show: Callable[[str], None] | None) -> Run:
    """Returns what predicts masked tokens, or the next one; for `show`, see `predictions`.

    Raises:
        RunError: the model lacks something, or a flag is not for it; the message names the flag.
    """
    settings = config.predict
    trained_model.require(model, config.source, ("masked_lm",))
    prompt, stop = _chat(model, config) if settings.chat else (str, settings.stop)
    for flag in ("max_seq_length", "null_score_threshold"):
        _refuse(config, flag, "is not fine-tuned; remove this flag")
    if model.config.is_causal:
        run = candidates.next_tokens(model, dataclasses.replace(settings, stop=stop), show)
    else:
        _refuse(config, "max_new_tokens", "is an encoder; remove this flag")
        run = candidates.masked_tokens(model, settings.shown)
    encode = trained_model.TextEncoder(model, with_special_tokens=settings.chat)
    as_text = functools.partial(
        prediction_text.as_text, mask=model.tokenizer.vocabulary.of_role("mask"), streamed=show is not None
    )
    printed = prediction_text.as_json if settings.format == "jsonl" else as_text

    def predict_batch(batch: Batch) -> tuple[Sequence[Sample], Sequence[str]]:
        samples = encode([prompt(text) for _, text in batch])
        predicted = zip(batch, samples, run(samples), strict=True)
        return samples, [printed(text, sample, each) for (_, text), sample, each in predicted]

    return predict_batch


def _chat(model: TrainedModel, config: PredictConfig) -> tuple[Callable[[str], str], tuple[str, ...]]:
    """Returns what makes a prompt of a message, and the strings that end an answer; raises RunError without it."""
    if not model.tokenizer.chat_template:
        raise RunError(f"--chat=true: {config.source.shown} has no chat template; remove this flag")
    try:
        template = completions.Template(model.tokenizer)
        end = completions.end_of_answer(template)
    except DataError as error:
        raise RunError(f"--chat=true: {config.source.shown}: {error}") from error
    if not end:
        logger.warning("the chat template writes nothing after an answer; --max_new_tokens or --stop ends it")
    return functools.partial(completions.question, template=template), (*config.predict.stop, *([end] if end else []))


def _run_of_task(model: TrainedModel, config: PredictConfig) -> Run:
    settings, task = config.predict, model.config.task
    trained_model.require(model, config.source)
    of_tokens = "gives vectors" if model.config.is_causal else "is an encoder"
    _refuse(config, "max_new_tokens", f"{of_tokens}; remove this flag")
    if model.config.is_custom:
        advice = "evaluate with tftrain.run --mode=evaluate, or add --embedding=mean for the vectors of texts"
        raise RunError(f"{config.source.shown}: --task={task}: its class reads files of its own; {advice}")
    if task != "question_answering":
        _refuse(config, "null_score_threshold", f"is for {task}, not question_answering; remove this flag")
    run = _predictions_of(model, config)
    flag = "--input_file=" if settings.input_file not in (None, STANDARD_INPUT) else ""

    def predict_batch(batch: Batch) -> tuple[Sequence[Sample], Sequence[str]]:
        examples = []
        for name, text in batch:
            try:
                examples.append(run.reader.split(text))
            except ValueError as error:
                raise RunError(f"{flag}{name}: {error}") from error
        samples, predicted = run(examples)
        if settings.format == "jsonl":
            return samples, list(map(prediction_text.json_line, predicted))
        pairs = zip(batch, predicted, strict=True)
        return samples, [prediction_text.of_task(text, task, each, settings.shown) for (_, text), each in pairs]

    return predict_batch


def _predictions_of(model: TrainedModel, config: PredictConfig) -> TaskPredictions:
    settings, most = config.predict, model.config.longest_sequence
    length = settings.max_seq_length or model.max_seq_length
    if length > most:
        raise RunError(f"--max_seq_length={length}: expected at most {most}, the positions of the model")
    return TaskPredictions(model, length, settings.null_score_threshold, settings.shown, settings.batch_size)


def _refuse(config: PredictConfig, name: str, why: str) -> None:
    """Raises a RunError with the model and `why` if a flag is given that is not for the model."""
    value = getattr(config.predict, name)
    if value not in (None, 0) or isinstance(value, float):
        raise RunError(f"--{name}={value}: {config.source.shown} {why}")


def _doubts(batch: Batch, samples: Sequence[Sample], longest: float, vocabulary: Vocabulary) -> Iterator[str]:
    """Yields a warning for each text that is cut to the `longest` that the model reads, or has unknown words."""
    for (name, _), sample in zip(batch, samples, strict=True):
        if sample.cut:
            masks = f", {sample.cut_masks} {vocabulary.of_role('mask')} among them" if sample.cut_masks else ""
            yield f"{name}: {sample.cut} tokens are left out{masks}: the model reads at most {longest}"
        if sample.unknown:
            words = f"{sample.unknown} of {len(sample.ids)} tokens, which become {vocabulary.of_role('unknown')}"
            yield f"{name}: not in the vocabulary: {words}"
