"""The folder that `tftrain.export` writes: SavedModels or ONNX files, the tokenizer and the names of the classes."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf

from tftrain.architecture.describe import describe
from tftrain.config.export import ExportConfig
from tftrain.files.complete_folder import complete_folder
from tftrain.formats import registry
from tftrain.host.exit_codes import RunError
from tftrain.inference import trained_model
from tftrain.inference.serving import onnx_file, report, saved_model
from tftrain.inference.serving.quantized import VARIANTS
from tftrain.inference.serving.report import Function
from tftrain.inference.serving.signature import with_own_names
from tftrain.inference.serving.signatures import ServedModel, Signature, signatures
from tftrain.inference.serving.text_graph import graph_of
from tftrain.tokenizer import tokenizer_files

logger = logging.getLogger(__name__)

VERSION = "1"  # TensorFlow Serving serves the folder with the largest number.
WITH_TEXT_OPS = "text"
LABELS = "labels.txt"  # the classes of a fine-tuned model, one a line, in the order of its logits


def write(config: ExportConfig) -> None:
    """Writes the model into a folder that appears when it is complete, and logs what it is and how it compares.

    Raises a RunError or an OSError; the message names the file or the flag.
    """
    settings = config.export
    is_onnx = settings.format == "onnx"
    if is_onnx:
        shapes, _ = registry.model_of(registry.local(config.source.place, config.source.shown))
        has_logits = shapes.tie_output and not shapes.is_fine_tuned
        table = 4 * shapes.vocab_size * shapes.hidden_size * has_logits
        onnx_file.check_size(4 * describe(shapes).parameters, table)
    original = trained_model.load(config.source)
    trained_model.check_tokens(original, config.source)
    dtype, change = VARIANTS[settings.variant]
    model = original if settings.variant == "fp32" else trained_model.load(config.source, dtype)
    if change:
        change(model.network)
    text, why = graph_of(model)
    _check_threshold(config, original.config.task, why)
    text = None if is_onnx else text
    lacking = [f"the model has no {head}, so nothing of it is exported" for head in model.missing]
    lacking += [f"no signature takes text: {why}"] if why and not is_onnx else []
    for note in [*model.notes, *lacking]:
        logger.info(note)
    source = ServedModel(model, text, settings.top_k, settings.null_score_threshold, settings.input_names)
    built = signatures(source)
    if is_onnx:
        built = {name: signature for name, signature in built.items() if signature.is_of_ids}
    with complete_folder(Path(settings.to)) as folder:
        exported = write_onnx(folder, built) if is_onnx else write_saved_models(folder, source, built)
        if model.tokenizer:
            (folder / "tokenizer").mkdir()
            positions = model.config.max_position_embeddings
            longest = model.max_seq_length if model.config.is_fine_tuned else positions
            tokenizer_files.write(folder / "tokenizer", model.tokenizer, longest)
        if labels := model.config.labels:
            (folder / LABELS).write_text("".join(f"{one_line_of(label)}\n" for label in labels), encoding="utf-8")
        lines = report.comparison(settings, original, exported, folder)
    needs_ops = text is not None and text.needs_tensorflow_text
    text_ops = f"tensorflow-text, in {WITH_TEXT_OPS}/{VERSION}" if needs_ops else ""
    for line in [*report.signatures(built, settings, text_ops), "", *lines]:
        logger.info(line)


def one_line_of(label: str) -> str:
    """Returns the name of a class as it is, or a JSON string if it is empty, has line breaks, or looks like one."""
    is_plain = label.splitlines() == [label] and not (label.startswith('"') and label.endswith('"'))
    return label if is_plain else json.dumps(label)


def _check_threshold(config: ExportConfig, task: str, why: str) -> None:
    """Raises a RunError if `--null_score_threshold` is given and there is no signature that it is for."""
    threshold = config.export.null_score_threshold
    if threshold is None or (task == "question_answering" and not why):
        return
    what = f"is for {task}, not question_answering; remove this flag"
    if task == "question_answering":
        what = f"has no signature that takes text: {why}; name a tokenizer with --tokenizer_dir, or remove this flag"
    raise RunError(f"--null_score_threshold={threshold}: {config.source.shown} {what}")


def write_saved_models(folder: Path, source: ServedModel, built: Mapping[str, Signature]) -> dict[str, Function]:
    """Writes the SavedModel that needs only TensorFlow, and one with tensorflow-text if the tokenizer needs that.

    Returns the functions on token ids of the first, by name.
    """
    bare = built
    if source.text and source.text.needs_tensorflow_text:
        bare = {name: signature for name, signature in built.items() if not signature.takes_text}
        saved_model.write(folder / WITH_TEXT_OPS / VERSION, source, built)
    saved_model.write(folder / VERSION, source, bare)
    loaded = tf.saved_model.load(str(folder / VERSION)).signatures
    return {name: with_own_names(report.of_arrays(loaded[name]), each) for name, each in bare.items() if each.is_of_ids}


def write_onnx(folder: Path, built: Mapping[str, Signature]) -> dict[str, Function]:
    """Writes an ONNX file for each signature; returns the functions of what was written, by name."""
    for name, signature in built.items():
        onnx_file.write(folder / f"{name}.onnx", signature)
    return {name: with_own_names(onnx_file.load(folder / f"{name}.onnx"), each) for name, each in built.items()}
