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


def test_large_integers_survive_and_the_order_of_the_features_changes_nothing():
    values = {"x": [-1, 0, 2**62, -(2**63)], "b": [2]}
    assert decode(encode(values), "here") == values
    assert encode(values) == encode(dict(reversed(values.items())))


def test_canonical_bytes_are_the_same_example_without_unknown_fields():
    payload, features = standard_example(np.random.default_rng(2))
    unknown = b"\x92\x01\x03abc"
    assert decode(canonical(payload + unknown, "here"), "here") == features
    assert len(canonical(payload + unknown, "here")) == len(canonical(payload, "here"))
    for read in (decode, canonical):
        with pytest.raises(DataError, match=r"shard: byte 7: the record is not a tf.train.Example"):
            read(payload[:-1], "shard: byte 7")


def test_checks_before_the_start_load_no_tensorflow():
    code = (
        "import sys, tftrain.data.preflight, tftrain.data.records, tftrain.data.manifest, tftrain.files.errors;"
        "sys.exit('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
