"""Exports a model for programs that serve it: `python -m tftrain.export --output_dir=runs/x --to=FOLDER`.

A SavedModel needs only TensorFlow, an ONNX file only a runtime of ONNX; docs/export.md shows how each is loaded.
"""

import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tftrain.cli.program import Program
from tftrain.config.export import ExportConfig
from tftrain.files.complete_folder import complete_folder
from tftrain.host import log
from tftrain.host.exit_codes import RunError

logger = logging.getLogger("tftrain.export")

# TensorFlow Serving takes the folder with the largest number as the version to serve.
VERSION = "1"
WITH_TEXT_OPS = "text"
# The classes of a fine-tuned model, one a line, in the order of its logits.
LABELS = "labels.txt"
# Characters at which some reader ends a line, and the one that shows them, as strings of JSON have them.


def main(argv: Sequence[str]) -> int:
    """Exports what the command line says; returns the exit code."""
    program = Program("export", ExportConfig, lambda config: f"--to={config.export.to}", left="; nothing was written")
    return program.main(export, argv)


def export(config: ExportConfig) -> None:
    """Writes the model into a folder that appears when it is complete, and prints what it is and how it compares.

    Raises:
        RunError, OSError: the message names the file or the flag.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    with log.native_log_on_failure():
        from tftrain.inference import trained_model
    from tftrain.architecture.describe import describe
    from tftrain.formats import registry
    from tftrain.inference.serving import onnx_file, report
    from tftrain.inference.serving.quantized import VARIANTS
    from tftrain.inference.serving.signatures import ServedModel, signatures
    from tftrain.inference.serving.text_graph import TextGraph, has_ops
    from tftrain.tokenizer import tokenizer_files

    settings = config.export
    if settings.format == "onnx":
        shapes, _ = registry.model_of(registry.local(config.source.place, config.source.shown))
        has_logits = shapes.tie_output and not shapes.is_fine_tuned
        table = 4 * shapes.vocab_size * shapes.hidden_size * has_logits
        onnx_file.check_size(4 * describe(shapes).parameters, table)
    original = trained_model.load(config.source)
    trained_model.check_tokens(original, config.source)
    check_threshold(config, original.config.task, has_ops(original.tokenizer))
    dtype, change = VARIANTS[settings.variant]
    model = original if settings.variant == "fp32" else trained_model.load(config.source, dtype)
    if change:
        change(model.network)
    for note in [*model.notes, *left_out(model, settings.format)]:
        logger.info(note)
    text = TextGraph(model) if settings.format == "saved_model" and has_ops(model.tokenizer) else None
    source = ServedModel(model, text, settings.top_k, settings.null_score_threshold, settings.input_names)
    built = signatures(source)
    if settings.format == "onnx":
        built = {name: signature for name, signature in built.items() if signature.is_of_ids}
    with complete_folder(Path(settings.to)) as folder:
        write = write_onnx if settings.format == "onnx" else write_saved_models
        exported = write(folder, source, built)
        if model.tokenizer:
            (folder / "tokenizer").mkdir()
            positions = model.config.max_position_embeddings
            longest = model.max_seq_length if model.config.is_fine_tuned else positions
            tokenizer_files.write(folder / "tokenizer", model.tokenizer, longest)
        if labels := model.config.labels:
            (folder / LABELS).write_text("".join(f"{one_line_of(label)}\n" for label in labels), encoding="utf-8")
        lines = report.comparison(settings, original, exported, folder)
    for line in [*report.signatures(built, settings), "", *lines]:
        logger.info(line)


def one_line_of(label: str) -> str:
    """Returns the name of a class as it is, or a JSON string if it is empty, has line breaks, or looks like one."""
    is_plain = label.splitlines() == [label] and not (label.startswith('"') and label.endswith('"'))
    return label if is_plain else json.dumps(label)


class ExportError(RunError):
    """The model can't have what a flag asks for; the message names the flag."""


def check_threshold(config: ExportConfig, task: str, has_ops: bool) -> None:
    """Raises an ExportError if `--null_score_threshold` is given and there is no signature that it is for."""
    threshold = config.export.null_score_threshold
    if threshold is None or (task == "question_answering" and has_ops):
        return
    what = f"is for {task}, not question_answering; remove this flag"
    if task == "question_answering":
        what = "has no tokenizer, so no signature takes text; name one with --tokenizer_dir, or remove this flag"
    raise ExportError(f"--null_score_threshold={threshold}: {config.source.shown} {what}")


def left_out(model, file_format: str) -> list[str]:
    """Returns what an export can't have, a line each."""
    from tftrain.inference.serving.text_graph import has_ops

    lines = [f"the model has no {head}, so nothing of it is exported" for head in model.missing]
    if file_format == "saved_model" and not has_ops(model.tokenizer):
        why = "byte-level BPE has no ops" if model.tokenizer else "no tokenizer is beside the weights"
        if model.tokenizer and model.tokenizer.has_added_tokens:
            why = "there are no ops for added tokens, which tokenizer.json has beside vocab.txt"
        lines.append(f"no signature takes text: {why}")
    return lines


def write_saved_models(folder: Path, source, built) -> dict:
    """Writes the SavedModel that needs only TensorFlow, and one with tensorflow-text if the tokenizer needs that.

    Returns:
        The functions on token ids of what was written, by name.
    """
    import tensorflow as tf

    from tftrain.inference.serving import report, saved_model
    from tftrain.inference.serving.signature import with_own_names
    from tftrain.inference.serving.text_graph import needs_tensorflow_text

    bare = built
    if source.text and needs_tensorflow_text(source.model.tokenizer):
        bare = {name: signature for name, signature in built.items() if not signature.takes_text}
        saved_model.write(folder / WITH_TEXT_OPS / VERSION, source, built)
    saved_model.write(folder / VERSION, source, bare)
    loaded = tf.saved_model.load(str(folder / VERSION)).signatures
    return {name: with_own_names(report.of_arrays(loaded[name]), each) for name, each in bare.items() if each.is_of_ids}


def write_onnx(folder: Path, source, built) -> dict:
    """Writes an ONNX file for each signature; returns the functions of what was written, by name."""
    from tftrain.inference.serving import onnx_file
    from tftrain.inference.serving.signature import with_own_names

    count = sum(variable.shape.num_elements() for variable in source.model.network.named_variables().values())
    for name, signature in built.items():
        onnx_file.write(folder / f"{name}.onnx", signature, 4 * count)
    return {name: with_own_names(onnx_file.load(folder / f"{name}.onnx"), each) for name, each in built.items()}


if __name__ == "__main__":
    sys.exit(main(sys.argv))
