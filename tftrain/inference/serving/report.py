"""What an export prints: the signatures, and the exported model beside the original one."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import tensorflow as tf

from tftrain.config.export import ExportFlags
from tftrain.formats.errors import FormatError
from tftrain.inference.serving import comparison as measured
from tftrain.inference.serving import signatures as table
from tftrain.inference.trained_model import TextEncoder, TrainedModel
from tftrain.prepare import builtin_corpus

_FILES = 100  # of this package, with more text than a comparison takes


def signatures(made: Mapping[str, table.Signature], settings: ExportFlags) -> list[str]:
    """Returns the lines of a table of signatures, with the shape of each input and output; ? is any size."""
    rows = [("signature", "input", "output")]
    for name, signature in made.items():
        outputs = signature.traced.structured_outputs
        inputs = [_described(spec.name, spec) for spec in signature.inputs]
        results = [_described(key, spec) for key, spec in sorted(outputs.items())]
        for row in range(max(len(inputs), len(results))):
            cells = (inputs[row : row + 1] or [""]) + (results[row : row + 1] or [""])
            rows.append((name if row == 0 else "", *cells))
    return [f"{settings.to}", *_aligned(rows)]


def comparison(
    settings: ExportFlags, original: TrainedModel, exported: Mapping[str, Callable], folder: Path
) -> list[str]:
    """Measures what was exported.

    Args:
        settings: of the export.
        original: the model in fp32.
        exported: the functions on token ids, by the names of their signatures.
        folder: that has been written.

    Returns:
        The lines of a table.
    """
    source = table.Source(original, None, settings.top_k)
    own = {name: _of_arrays(signature) for name, signature in table.signatures(source).items()}
    inputs = [spec.name for spec in table.encode(source).inputs]
    if original.tokenizer:
        text = _text(settings.text_file)
        sequences, tokens = measured.of_text(text, TextEncoder(original), original.longest), "tokens of text"
    else:
        sequences, tokens = measured.random(original.config.vocab_size, original.longest), "random tokens"
    batch = measured.batch_of(sequences, inputs)
    result = measured.compare([(own[name], function) for name, function in exported.items()], batch)
    errors = [
        f"largest difference of {name}: {error:.2e} (largest value: {result.largest[name]:.2f})"
        for name, error in result.error.items()
    ]
    if result.same_best is not None:
        what = (
            "predictions with the same best class"
            if original.config.labels
            else "places with the same most probable token"
        )
        errors.append(f"{what}: {100 * result.same_best:.2f}%")
    weights = 4e-6 * sum(variable.shape.num_elements() for variable in original.network.named_variables().values())
    speeds = measured.sequences_per_second([own["encode"], exported["encode"]], batch)
    rows, length = batch["input_ids"].shape
    source_of_text = f" ({settings.text_file})" if settings.text_file and original.tokenizer else ""
    return [
        f"compared with the model in fp32, on {rows} sequences of up to {length} {tokens}{source_of_text}:",
        *errors,
        f"size: {measured.megabytes(folder):.1f} MB; the weights in fp32: {weights:.1f} MB",
        f"encode: {speeds[1]:.0f} sequences/s; the model in fp32, in this process: {speeds[0]:.0f} sequences/s",
    ]


def _text(path: str | None) -> str:
    """Returns a text to compare on: that of a file, or else the documentation strings of this package.

    Raises:
        FormatError: the file is not UTF-8, or empty.
    """
    if path is None:
        files = sorted(Path(__file__).parents[2].rglob("*.py"))[:_FILES]
        return "\n".join(paragraph for file in files for paragraph in builtin_corpus.extract(str(file)))
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"--text_file={path}: byte {error.start}: not UTF-8") from error
    if not text.strip():
        raise FormatError(f"--text_file={path}: empty; expected a text")
    return text


def _of_arrays(signature: table.Signature) -> Callable:
    return lambda **inputs: signature.traced(**{name: tf.constant(values) for name, values in inputs.items()})


def _described(name: str, spec: tf.TensorSpec | tf.Tensor) -> str:
    sizes = ", ".join("?" if size is None else str(size) for size in spec.shape)
    return f"{name} {spec.dtype.name}[{sizes}]"


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
