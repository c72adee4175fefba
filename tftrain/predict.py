"""Predicts masked tokens, or the next one: `python -m tftrain.predict --output_dir=runs/x "Paris is [MASK]."`.

docs/predict.md describes the output.
"""

import json
import logging
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence

from tftrain import flags, log
from tftrain.exit_codes import RunError
from tftrain.fields import ConfigError, one_line
from tftrain.files import reason
from tftrain.predict_config import STANDARD_INPUT, PredictConfig

logger = logging.getLogger("tftrain.predict")

PROGRAM = "python -m tftrain.predict"
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
# A file of texts that all have the same fault gives so many warnings, and their number at the end.
MAX_WARNINGS = 20


def main(argv: Sequence[str]) -> int:
    """Predicts what the command line says.

    Args:
        argv: the name of the program, its flags and the texts.

    Returns:
        The exit status.
    """
    log.configure(program="predict", stream="stderr")
    texts: list[str] = []
    try:
        config, problems, _ = flags.read(PredictConfig, [PROGRAM, *argv[1:]], texts)
        misread = {problem.flag for problem in problems}
        problems += [problem for problem in config.problems(len(texts)) if problem.flag not in misread]
        if problems:
            raise ConfigError(problems)
    except ConfigError as error:
        flags.refuse("predict", error)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        predict(config, texts)
    except RunError as error:
        logger.error(error)
        return EXIT_FAILED
    except BrokenPipeError:  # The reader has enough.
        log.detach("stdout")
        return EXIT_FAILED
    except OSError as error:
        logger.error(f"{error.filename or 'standard output'}: {reason(error)}")
        log.detach("stdout")
        return EXIT_FAILED
    except KeyboardInterrupt:
        logger.error("interrupted")
        return EXIT_INTERRUPTED
    return 0


def predict(config: PredictConfig, texts: Sequence[str]) -> None:
    """Prints the predictions for the texts, or for the lines of a file.

    Raises:
        RunError, OSError: the message names the file or the flag.
    """
    from tqdm import tqdm

    from tftrain import candidates, inference

    settings = config.predict
    model = inference.load(config.source)
    is_decoder = model.config.is_decoder
    inference.require(model, config.source, () if is_decoder else ("masked_lm",))
    if settings.max_new_tokens and not is_decoder:
        given = f"--max_new_tokens={settings.max_new_tokens}"
        raise PredictError(f"{given}: {config.source.shown} is an encoder; expected 0, or a decoder")

    for note in model.notes:
        logger.warning(note)
    encode, doubts = inference.TextEncoder(model), Doubts(model.longest)
    if is_decoder:
        run = candidates.NextTokens(model, settings.top_k, settings.max_new_tokens)
    else:
        run = candidates.MaskedTokens(model, settings.top_k)
    show = {"text": as_text, "jsonl": as_json}[settings.format]
    lines = read_lines(settings.input_file) if settings.input_file else named_arguments(texts)
    total = None if settings.input_file else len(texts)
    with tqdm(total=total, unit="text", disable=None) as bar:
        for batch in batches(lines, settings.batch_size):
            samples = encode([text for _, text in batch])
            doubts.report(batch, samples)
            for (_, text), sample, found in zip(batch, samples, run(samples), strict=True):
                tqdm.write(show(text, sample, found), file=sys.stdout)
            bar.update(len(batch))
    sys.stdout.flush()
    doubts.finish()


class PredictError(RunError):
    """A text can't be read, or the model can't do what a flag asks for; the message names the file or the flag."""


def named_arguments(texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields a name for messages and the text of each argument."""
    for number, text in enumerate(texts, 1):
        yield f"text {number}", text


def read_lines(path: str) -> Iterator[tuple[str, str]]:
    """Yields a name for messages and the text of each line of a file; - is standard input.

    Raises:
        PredictError: the file can't be read, or is not UTF-8.
    """
    name = "standard input" if path == STANDARD_INPUT else path
    try:
        with open(sys.stdin.fileno() if path == STANDARD_INPUT else path, "rb", closefd=path != STANDARD_INPUT) as file:
            for number, line in enumerate(file, 1):
                yield f"{name}: line {number}", line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise PredictError(
            f"--input_file={path}: line {number}, byte {error.start} of it: not UTF-8; convert the file, for instance "
            "with iconv -t UTF-8"
        ) from error
    except OSError as error:
        raise PredictError(f"--input_file={path}: {reason(error)}") from error


def batches(lines: Iterable[tuple[str, str]], size: int) -> Iterator[list[tuple[str, str]]]:
    """Yields the elements in lists of `size`; the last one may be shorter."""
    batch = []
    for line in lines:
        batch.append(line)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


class Doubts:
    """Warns of texts that are cut or have unknown words, MAX_WARNINGS at most, and counts the rest."""

    def __init__(self, longest: float):
        """Has warned of nothing yet; `longest` is that of the model, in tokens."""
        self._longest, self._count = longest, 0

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


def as_text(text: str, sample, found) -> str:
    """Returns the lines that are printed for a text."""
    lines = [one_line(text, len(text))]
    if not isinstance(found, list):
        lines.append(f"  next: {_listed(found.candidates, quote=True)}")
        lines += [f"  continued: {json.dumps(found.text, ensure_ascii=False)}"] if found.text else []
    elif not found:
        lines.append("  no [MASK]")
    else:
        lines += [f"  token {place}: {_listed(each)}" for place, each in zip(sample.masks, found, strict=True)]
    return "\n".join(lines)


def _listed(candidates, quote: bool = False) -> str:
    shown = (json.dumps(token, ensure_ascii=False) if quote else token for token, _ in candidates)
    return ", ".join(f"{token} {each.probability:.4f}" for token, each in zip(shown, candidates, strict=True))


def as_json(text: str, sample, found) -> str:
    """Returns the JSON object of a text, in one line."""
    if isinstance(found, list):
        masks = zip(sample.masks.tolist(), found, strict=True)
        values = {"masks": [{"position": place, "candidates": _objects(each)} for place, each in masks]}
    else:
        values = {"candidates": _objects(found.candidates), "continuation": found.text}
    return json.dumps({"text": text, **values}, ensure_ascii=False)


def _objects(candidates) -> list[dict]:
    return [each._asdict() for each in candidates]


if __name__ == "__main__":
    sys.exit(main(sys.argv))
