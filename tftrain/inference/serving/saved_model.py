"""SavedModels of signatures. They hold what the functions read and nothing else: no class of this project."""

from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf

from tftrain.inference.serving.signatures import ServedModel, Signature

DEFAULT = "serving_default"  # which TensorFlow Serving calls where a request names none


def write(path: Path, source: ServedModel, signatures: Mapping[str, Signature]) -> None:
    """Writes a SavedModel into a folder that does not exist yet; the default of a fine-tuned model is its task."""
    functions = {name: signature.traced for name, signature in signatures.items()}
    root = tf.Module()
    # A SavedModel holds what its root leads to: the variables that the functions read, and the tables of the tokenizer.
    variables = {variable.ref(): variable for each in functions.values() for variable in each.graph.variables}
    root.variables_read = list(variables.values())
    root.text = source.text if any(signature.takes_text for signature in signatures.values()) else None
    of_task = [name for name, each in signatures.items() if each.is_of_ids and source.model.config.is_fine_tuned]
    default = functions[[*functions, *of_task][-1] if of_task else next(iter(functions))]
    tf.saved_model.save(root, str(path), signatures={**functions, DEFAULT: default})
