"""tf.train.Example without TensorFlow is TensorFlow's."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests.kit.corpora import standard_example
from tftrain.data.example import canonical, decode, encode
from tftrain.files.errors import DataError


def test_decodes_what_tensorflow_writes():
    payload, features = standard_example(np.random.default_rng(0))
    assert decode(payload, "here") == features


def test_tensorflow_decodes_what_we_write():
    _, features = standard_example(np.random.default_rng(1))
    example = tf.train.Example.FromString(encode(features))
    assert {
        name: list(kind.int64_list.value) or list(kind.float_list.value)
        for name, kind in example.features.feature.items()
    } == features


def test_negative_and_large_integers_survive():
    values = [-1, 0, 2**62, -(2**63)]
    assert decode(encode({"x": values}), "here")["x"] == values


def test_bytes_do_not_depend_on_the_order_of_the_features():
    assert encode({"a": [1], "b": [2], "c": [3]}) == encode({"c": [3], "a": [1], "b": [2]})


def test_what_is_no_example_is_named():
    with pytest.raises(DataError, match=r"shard: byte 7: the record is not a tf.train.Example"):
        decode(b"\xff\xff\xff", "shard: byte 7")


def test_canonical_bytes_are_the_same_example_without_unknown_fields():
    payload, features = standard_example(np.random.default_rng(2))
    unknown = b"\x92\x01\x03abc"
    assert decode(canonical(payload + unknown, "here"), "here") == features
    assert len(canonical(payload + unknown, "here")) == len(canonical(payload, "here"))
    with pytest.raises(DataError, match=r"shard: byte 7: the record is not a tf.train.Example"):
        canonical(payload[:-1], "shard: byte 7")


def test_checks_before_the_start_load_no_tensorflow():
    code = "import sys, tftrain.inputs.inputs;sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
