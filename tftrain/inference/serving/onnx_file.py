"""ONNX files of signatures on token ids, by tf2onnx."""

import logging
from pathlib import Path

import tensorflow as tf

from tftrain.files.errors import FormatError
from tftrain.host import log
from tftrain.inference.serving.signatures import Signature

OPSET = 17
# A file of protobuf holds no more; ONNX's files beside it are not written here.
MAX_BYTES = 2**31 - 1
_AXES = ("batch", "length")


def write(path: Path, signature: Signature) -> None:
    """Writes a signature on token ids, whose weights fit a file, see `check_size`."""
    import onnx
    import tf2onnx

    logging.getLogger("tf2onnx").setLevel(logging.ERROR)

    function = tf.function(lambda *values: signature.function(*values), signature.inputs, autograph=False)
    with log.native_log_on_failure():  # tf2onnx calls TensorFlow's optimizer.
        model, _ = tf2onnx.convert.from_function(function, input_signature=signature.inputs, opset=OPSET)
    for value in (*model.graph.input, *model.graph.output):
        for axis, dimension in enumerate(value.type.tensor_type.shape.dim):
            if not dimension.HasField("dim_value"):  # An axis of any size.
                dimension.dim_param = _AXES[axis]
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())


def check_size(weights: int, table: int = 0) -> None:
    """Raises a FormatError if bytes of weights, and of a tied table that is there twice, do not fit a file."""
    if weights + table > MAX_BYTES:
        twice = f", of which {table / 1e9:.1f} GB are the token embedding once more" if table else ""
        size = f"a file would have {(weights + table) / 1e9:.1f} GB{twice}"
        raise FormatError(f"--format=onnx: {size}; expected at most 2.1 GB, or --format=saved_model")


def load(path: Path):
    """Returns a file as a function of arrays by name, which returns arrays by name."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    return lambda **inputs: dict(zip(names, session.run(names, inputs), strict=True))
