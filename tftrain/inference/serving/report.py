"""What an export prints: the signatures, and the exported model beside the original one."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from tftrain.config.export import ExportFlags
from tftrain.files.errors import FormatError
from tftrain.inference.serving import signatures as table
from tftrain.inference.trained_model import Sample, TextEncoder, TrainedModel, padded
from tftrain.prepare import builtin_corpus

_FILES = 100  # files of this package: more text than a comparison takes
Function = Callable[..., Mapping[str, np.ndarray]]

# Differences are larger in long sequences; speed is measured on short ones, which take less time.
_SEQUENCES, _LENGTH, _TIMED_LENGTH = 8, 512, 128
_WARM_UP, _TIMED = 2, 15
_LOGITS = "logits"  # whose best class is compared too


def signatures(built: Mapping[str, table.Signature], settings: ExportFlags, text_ops: str) -> list[str]:
    """Returns the lines of a table of signatures, with the shape of each input and output; ? is any size.

    `text_ops` says what signatures on texts need beside TensorFlow; "" for nothing.
    """
    rows = [("signature", "input", "output")]
    for name, signature in built.items():
        outputs = signature.traced.structured_outputs
        needs = f" ({text_ops})" if signature.takes_text and text_ops else ""
        inputs = [_described(spec.name, spec) + needs for spec in signature.inputs]
        results = [_described(key, spec) for key, spec in sorted(outputs.items())]
        for row in range(max(len(inputs), len(results))):
            cells = (inputs[row : row + 1] or [""]) + (results[row : row + 1] or [""])
            rows.append((name if row == 0 else "", *cells))
    return [f"{settings.to}", *_aligned(rows)]


def comparison(
    settings: ExportFlags, original: TrainedModel, exported: Mapping[str, Callable], folder: Path
) -> list[str]:
    """Returns the lines of a table that compares the files in `folder` with the original model, in fp32.

    `exported` are the functions on token ids, by the names of their signatures.
    """
    source = table.ServedModel(original, None, settings.top_k)
    own = {name: of_arrays(each.traced) for name, each in table.signatures(source).items() if name in exported}
    inputs = [spec.name for spec in table.encode(source).inputs]
    if original.tokenizer:
        text = _text(settings.text_file)
        sequences, tokens = of_text(text, TextEncoder(original), original.config.longest_sequence), "tokens of text"
    else:
        sequences, tokens = random(original.config.vocab_size, original.config.longest_sequence), "random tokens"
    batch = batch_of(sequences, inputs)
    by_class, by_token = "predictions with the same best class", "positions with the same most probable token"
    pairs = [(own[name], function) for name, function in exported.items()]
    weights = 4e-6 * sum(variable.shape.num_elements() for variable in original.network.named_variables().values())
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6
    speeds = sequences_per_second([own["encode"], exported["encode"]], batch)
    rows, length = batch["input_ids"].shape
    source_of_text = f" ({settings.text_file})" if settings.text_file and original.tokenizer else ""
    return [
        f"compared with the model in fp32, on {rows} sequences of up to {length} {tokens}{source_of_text}:",
        *_differences(pairs, batch, by_class if original.config.labels else by_token),
        f"size: {size:.1f} MB; the weights in fp32: {weights:.1f} MB",
        f"encode: {speeds[1]:.0f} sequences/s; the model in fp32, in this process: {speeds[0]:.0f} sequences/s",
    ]


def _text(path: str | None) -> str:
    """Returns a text to compare on: a file, which must not be empty (FormatError), or this package's documentation."""
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


def of_arrays(function: Callable) -> Function:
    """Returns a function of tensors as one of arrays."""
    return lambda **inputs: function(**{name: tf.constant(values) for name, values in inputs.items()})


def _described(name: str, spec: tf.TensorSpec | tf.Tensor) -> str:
    sizes = ", ".join("?" if size is None else str(size) for size in spec.shape)
    return f"{name} {spec.dtype.name}[{sizes}]"


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def of_text(text: str, encode: Callable[[Sequence[str]], Sequence[Sample]], longest: float) -> list[np.ndarray]:
    """Returns up to 8 sequences of the tokens of a text, one after the other, at most 512 tokens or `longest` each."""
    length, words, sequences = int(min(longest, _LENGTH)), text.split(), []
    while words and len(sequences) < _SEQUENCES:
        # A token has at least one character, and hardly ever more than three words fit into one.
        (sample,) = encode([" ".join(words[: 3 * length])])
        sequences.append(sample.ids[:length])
        words = words[max(1, round(len(words[: 3 * length]) * length / (len(sample.ids) + sample.cut))) :]
    return sequences


def random(tokens: int, longest: float) -> list[np.ndarray]:
    """Returns 8 sequences of random tokens, for a model without a tokenizer, at most 512 tokens each."""
    length = int(min(longest, _LENGTH))
    return list(np.random.default_rng(1).integers(0, tokens, (_SEQUENCES, length), np.int32))


def batch_of(sequences: Sequence[np.ndarray], inputs: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns the named inputs for sequences of which each is shorter than the one before it, int32 [n, S].

    The last row has a quarter of its tokens, so that padding is compared too.
    """
    shares = np.linspace(1, 0.25, len(sequences))
    cut = [each[: max(1, int(share * len(each)))] for each, share in zip(sequences, shares, strict=True)]
    ids, lengths = padded(cut)
    mask = (np.arange(ids.shape[1]) < lengths[:, np.newaxis]).astype(np.int32)
    features = {"input_ids": ids, "input_mask": mask, "token_type_ids": np.zeros_like(ids)}
    return {name: features[name] for name in inputs}


def _differences(pairs: list[tuple[Function, Function]], batch: Mapping[str, np.ndarray], what: str) -> list[str]:
    """Returns a line for each output of original functions with the largest difference of the exported ones.

    Places that are padding are not compared. The last line is the share of equal best classes, called `what`.
    """
    real = np.array(batch["input_mask"], bool) if "input_mask" in batch else np.ones(batch["input_ids"].shape, bool)
    lines, same_best = [], []
    for original, exported in pairs:
        expected, actual = original(**batch), exported(**batch)
        for name, values in expected.items():
            places = real if np.ndim(values) == 3 else slice(None)
            values, other = np.asarray(values)[places], np.asarray(actual[name])[places]
            error, largest = np.abs(values - other).max(), np.abs(values).max()
            lines.append(f"largest difference of {name}: {error:.2e} (largest value: {largest:.2f})")
            if name == "embedding":
                cosines = np.sum(values * other, -1) / (
                    np.linalg.norm(values, axis=-1) * np.linalg.norm(other, axis=-1)
                )
                lines.append(f"cosine of {name}: {cosines.mean():.6f} on average, {cosines.min():.6f} at least")
            if name == _LOGITS:
                same_best = [f"{what}: {100 * np.mean(values.argmax(-1) == other.argmax(-1)):.2f}%"]
    return lines + same_best


def sequences_per_second(functions: list[Function], batch: Mapping[str, np.ndarray]) -> list[float]:
    """Returns the speed of each function on up to 128 tokens: its fastest call of 15. The functions take turns."""
    batch = {name: values[:, :_TIMED_LENGTH] for name, values in batch.items()}
    seconds = [[] for _ in functions]
    for _ in range(_WARM_UP + _TIMED):
        for function, times in zip(functions, seconds, strict=True):
            begin = time.perf_counter()
            for values in function(**batch).values():
                np.asarray(values)
            times.append(time.perf_counter() - begin)
    return [len(batch["input_ids"]) / min(times[_WARM_UP:]) for times in seconds]
