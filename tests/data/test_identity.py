"""Data is the same wherever it lies, and another if its manifest or its files are."""

import json
import shutil

import numpy as np

from tests.kit import corpora
from tests.kit.data_sets import opened_data
from tftrain.config.data import DataConfig


def test_a_copy_is_the_same_data_and_another_preparation_is_not(prepared, tmp_path):
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    original = opened_data(DataConfig(data_dir=prepared)).identity
    assert original
    assert opened_data(DataConfig(data_dir=str(tmp_path))).identity == original
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "seed": 99}))
    changed = opened_data(DataConfig(data_dir=str(tmp_path))).identity
    assert [name for name in original if changed[name] != original[name]] == ["manifest.json of the data"]


def test_records_are_told_apart_by_names_and_sizes(tmp_path):
    rng = np.random.default_rng(0)
    payloads = [corpora.standard_example(rng)[0] for _ in range(3)]
    for folder, name, count in (("a", "x", 2), ("b", "x", 2), ("c", "y", 2), ("d", "x", 3)):
        (tmp_path / folder).mkdir()
        corpora.write_tfrecords(tmp_path / folder / name, payloads[:count])
    a, b, c, d = (opened_data(DataConfig(train_files=f"{tmp_path}/{folder}/*")).identity for folder in "abcd")
    assert a == b
    assert a != c
    assert a != d
    assert opened_data(DataConfig(synthetic_data=True)).identity == {}
