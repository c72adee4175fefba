"""ONNX files: a conversion is silent unless it fails."""

import os

import pytest
import tensorflow as tf

from tftrain.host import log
from tftrain.inference.serving import onnx_file
from tftrain.inference.serving.signatures import Signature


def test_a_conversion_is_silent(tmp_path, capfd):
    pytest.importorskip("tf2onnx")
    inputs = (tf.TensorSpec([None, None], tf.int32, "input_ids"),)
    signature = Signature(inputs=inputs, function=lambda input_ids: {"doubled": input_ids * 2})
    onnx_file.write(tmp_path / "x.onnx", signature, 0)
    assert (tmp_path / "x.onnx").stat().st_size > 0
    assert capfd.readouterr() == ("", "")


def test_what_a_conversion_that_fails_has_said_is_shown(capfd):
    def fail():
        with log.native_log_on_failure():
            os.write(2, b"a reason in C++\n")
            raise ValueError("the graph")

    with pytest.raises(ValueError, match="the graph"):
        fail()
    os.write(2, b"after it\n")
    assert capfd.readouterr().err == "a reason in C++\nafter it\n"
