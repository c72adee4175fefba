"""Predicts masked tokens, or the next one, or what a model was fine-tuned for.

    python -m tftrain.predict --output_dir=runs/x "Paris is [MASK]."

docs/predict.md describes the output.
"""

import functools
import itertools
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

from tftrain.cli.program import Program
from tftrain.config.predict import STANDARD_INPUT, PredictConfig
from tftrain.files.errors import DataError
from tftrain.host import log
from tftrain.host.exit_codes import RunError
from tftrain.host.text import printable, reason
from tftrain.inference import prediction_text

logger = logging.getLogger("tftrain.predict")

# A file of texts that all have the same fault gives so many warnings, and their number at the end.
MAX_WARNINGS = 20


def main(argv: Sequence[str]) -> int:
    """Predicts what the command line says; returns the exit code."""
    texts: list[str] = []
    return program(texts).main(lambda config: predict(config, texts), argv, texts)


def program(texts: Sequence[str]) -> Program:
    """Returns the frame of the program, which checks its flags when it has its texts."""
    return Program(
        "predict",
        PredictConfig,
        target=lambda _: "standard output",
        problems=lambda config: config.problems(len(texts)),
        stream="stderr",
    )


def predict(config: PredictConfig, texts: Sequence[str]) -> None:
    """Prints the predictions for the texts, or for the lines of a file; raises what `predictions` raises.

    What a decoder appends to the only text appears on a terminal token by token.
    """
    from tqdm import tqdm

    settings = config.predict
    if len(texts) == 1 and settings.max_new_tokens and settings.format == "text" and sys.stdout.isatty():

        def show(piece: str) -> None:
            print(printable(piece, kept="\n\t"), end="", flush=True)

        show(texts[0])
        (rest,) = predictions(config, texts, show)
        print(f"\n{rest}")
        return
    total = None if settings.input_file else len(texts)
    for printed in tqdm(predictions(config, texts), total=total, unit="text", disable=None):
        tqdm.write(printed, file=sys.stdout)
    sys.stdout.flush()


def predictions(
    config: PredictConfig, texts: Sequence[str], show: Callable[[str], None] | None = None
) -> Iterator[str]:
    """Yields what is printed for each text, or for each line of a file, and logs warnings.

    `show` is called with each piece that a decoder appends to the only text, of which the result is then the rest.

    Raises:
        RunError, OSError: the message names the file or the flag.
    """
    with log.native_log_on_failure():
        from tftrain.inference import trained_model

    settings = config.predict
    model = trained_model.load(config.source, embeds=settings.embedding is not None)
    for note in model.notes:
        logger.warning(note)
    run = of_task(model, config) if model.config.is_fine_tuned else of_tokens(model, config, show)
    doubts = Doubts(settings.max_seq_length or model.max_seq_length if model.config.is_fine_tuned else model.longest)
    arguments = ((f"text {number}", text) for number, text in enumerate(texts, 1))
    lines = lines_of(model, settings.input_file) if settings.input_file else arguments
    for batch in batches(lines, settings.batch_size):
        samples, printed = run(batch)
        doubts.report(batch, samples)
        yield from printed
    doubts.finish()


# Maps names and texts to what the model reads of each, and what is printed for each.
Run = Callable[[Sequence[tuple[str, str]]], tuple[Sequence, Sequence[str]]]


def of_tokens(model, config: PredictConfig, show: Callable[[str], None] | None = None) -> Run:
    """Returns what predicts masked tokens, or the next one; for `show`, see `predictions`.

    Raises:
        RunError: the model lacks something, or a flag is not for it; the message names the flag.
    """
    from tftrain.inference import candidates, trained_model
    from tftrain.inference.generation import Sampling

    settings = config.predict
    trained_model.require(model, config.source, ("masked_lm",))
    prompt, stop = chat_of(model, config) if settings.chat else (str, settings.stop)
    refuse(config, "max_seq_length", "is not fine-tuned; remove this flag")
    refuse(config, "null_score_threshold", "is not fine-tuned; remove this flag")
    if model.config.is_causal:
        refuse(config, "embedding", "is a decoder; remove this flag")
        sampling = Sampling(settings.temperature, settings.top_k, settings.top_p, settings.seed, stop)
        run = candidates.NextTokens(model, settings.shown, settings.max_new_tokens, sampling)
        run = functools.partial(run, show=show)
    else:
        refuse(config, "max_new_tokens", "is an encoder; remove this flag")
        run = candidates.MaskedTokens(model, settings.shown)
    encode = trained_model.TextEncoder(model, with_special_tokens=settings.chat)
    as_text = functools.partial(prediction_text.as_text, streamed=show is not None)
    printed = prediction_text.as_json if settings.format == "jsonl" else as_text

    def predict_batch(batch):
        samples = encode([prompt(text) for _, text in batch])
        predictions = zip(batch, samples, run(samples), strict=True)
        return samples, [printed(text, sample, each) for (_, text), sample, each in predictions]

    return predict_batch


def chat_of(model, config: PredictConfig) -> tuple[Callable[[str], str], tuple[str, ...]]:
    """Returns what makes a prompt of a message, and the strings that end an answer; raises PredictError without it."""
    from tftrain.finetune import completions

    if not model.tokenizer.chat_template:
        raise PredictError(f"--chat=true: {config.source.shown} has no chat template; remove this flag")
    try:
        template = completions.compiled_template(model.tokenizer)
        end = completions.end_of_answer(template)
    except DataError as error:
        raise PredictError(f"--chat=true: {config.source.shown}: {error}") from error
    if not end:
        logger.warning("the chat template writes nothing after an answer; --max_new_tokens or --stop ends it")
    return functools.partial(completions.question, template=template), (*config.predict.stop, *([end] if end else []))


def of_task(model, config: PredictConfig) -> Run:
    """Returns what predicts what a model was fine-tuned for; see `of_tokens`."""
    from tftrain.inference import task_predictions, trained_model

    settings, task = config.predict, model.config.task
    trained_model.require(model, config.source)
    refuse(config, "max_new_tokens", "is an encoder; remove this flag")
    if model.config.is_custom:
        advice = "evaluate with tftrain.run --mode=evaluate, or add --embedding=mean for the vectors of texts"
        raise PredictError(f"{config.source.shown}: --task={task}: its class reads files of its own; {advice}")
    if task != "question_answering":
        refuse(config, "null_score_threshold", f"is for {task}, not question_answering; remove this flag")
    length = settings.max_seq_length or model.max_seq_length
    if length > model.longest:
        raise PredictError(f"--max_seq_length={length}: expected at most {model.longest}, the positions of the model")
    reader = task_predictions.reader_of(model, length, settings.null_score_threshold, settings.shown)
    run = task_predictions.TaskPredictions(model, reader, settings.batch_size, settings.embedding or "mean")
    flag = "--input_file=" if settings.input_file not in (None, STANDARD_INPUT) else ""

    def predict_batch(batch):
        examples = []
        for name, text in batch:
            try:
                examples.append(reader.split(text))
            except ValueError as error:
                raise PredictError(f"{flag}{name}: {error}") from error
        samples, predictions = run(examples)
        if settings.format == "jsonl":
            return samples, [prediction_text.json_line(each) for each in predictions]
        pairs = zip(batch, predictions, strict=True)
        return samples, [prediction_text.of_task(text, task, each, settings.shown) for (_, text), each in pairs]

    return predict_batch


def refuse(config: PredictConfig, name: str, why: str) -> None:
    """Raises a PredictError with the model and `why` if a flag is given that is not for the model."""
    value = getattr(config.predict, name)
    if value not in (None, 0) or isinstance(value, float):
        raise PredictError(f"--{name}={value}: {config.source.shown} {why}")


class PredictError(RunError):
    """A text can't be read, or the model can't do what a flag asks for; the message names the file or the flag."""


def lines_of(model, path: str) -> Iterator[tuple[str, str]]:
    """Yields places and texts of a table, see `labelled_texts.read`, or of each line of another file.

    Raises:
        PredictError: the file can't be read.
    """
    from tftrain.inference import labelled_texts

    try:
        texts = None if path == STANDARD_INPUT else labelled_texts.read(path, model.config.task, model.fine_tuning)
        yield from read_lines(path) if texts is None else texts
    except DataError as error:
        raise PredictError(f"--input_file={error}") from error


def read_lines(path: str) -> Iterator[tuple[str, str]]:
    """Yields a name for messages and the text of each line of a file; - is standard input.

    Raises:
        PredictError: the file can't be read, or is not UTF-8.
    """
    name = "standard input" if path == STANDARD_INPUT else path
    try:
        with open(sys.stdin.fileno() if path == STANDARD_INPUT else path, "rb", closefd=path != STANDARD_INPUT) as file:
            for number, line in enumerate(file, 1):
                text = line.decode("utf-8" if number > 1 else "utf-8-sig").rstrip("\r\n")
                yield f"{name}: line {number}", text
    except UnicodeDecodeError as error:
        raise PredictError(
            f"--input_file={path}: line {number}, byte {error.start} of it: not UTF-8; convert the file, for instance "
            "with iconv -t UTF-8"
        ) from error
    except OSError as error:
        raise PredictError(f"--input_file={path}: {reason(error)}") from error


def batches(lines: Iterable[tuple[str, str]], size: int) -> Iterator[list[tuple[str, str]]]:
    """Yields the elements in lists of `size`; the last one may be shorter."""
    lines = iter(lines)
    while batch := list(itertools.islice(lines, size)):
        yield batch


class Doubts:
    """Warns of texts that are cut or have unknown words, MAX_WARNINGS at most, and counts the rest."""

    def __init__(self, longest: float):
        self._longest, self._count = longest, 0  # The longest text that the model reads, in tokens.

    def report(self, batch, samples) -> None:
        """Warns of the samples of a batch, given their names and texts."""
        for (name, _), sample in zip(batch, samples, strict=True):
            for warning in self._of(sample):
                self._count += 1
                if self._count <= MAX_WARNINGS:
                    logger.warning(f"{name}: {warning}")

    def finish(self) -> None:
        """Says how many warnings there would have been."""
        if self._count > MAX_WARNINGS:
            logger.warning(f"and {self._count - MAX_WARNINGS} more such warnings")

    def _of(self, sample) -> Iterator[str]:
        if sample.cut:
            masks = f", {sample.cut_masks} [MASK] among them" if sample.cut_masks else ""
            yield f"{sample.cut} tokens are left out{masks}: the model reads at most {self._longest}"
        if sample.unknown:
            yield f"not in the vocabulary: {sample.unknown} of {len(sample.ids)} tokens, which become [UNK]"


if __name__ == "__main__":
    sys.exit(main(sys.argv))
