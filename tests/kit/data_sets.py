"""Data sets that several tests read.

What loads TensorFlow is imported where it is used: the process that deals the tests out to others needs none of it.
"""

import dataclasses
from pathlib import Path

import pytest

from tftrain.config.prepare import PrepareConfig

CAUSAL = {"objective": "causal", "tokenizer_type": "bpe", "vocab_file": None, "vocab_size": 300}


def write_corpus(folder):
    """Writes three files of text and a vocabulary."""
    from tests.kit import corpora

    folder.mkdir(parents=True, exist_ok=True)
    for number in range(3):
        (folder / f"part{number}.txt").write_text(corpora.text(40, seed=number), encoding="utf-8")
    corpora.vocab_file(folder / "vocab.vocab")


def config_of(corpus, output_dir, **changes):
    """Returns a configuration for a folder of `write_corpus`."""
    config = PrepareConfig(
        input_files=(str(corpus / "*.txt"),),
        output_dir=str(output_dir),
        max_seq_length=32,
        vocab_file=str(corpus / "vocab.vocab"),
        eval_fraction=0.1,
        num_workers=1,
        shard_mb=0.01,
    )
    return dataclasses.replace(config, **changes)


def opened_data(data, vocab_size=None, objective="masked"):
    """Returns data as a run opens it, for a small model that learns an objective."""
    from tftrain.config.model import ModelConfig
    from tftrain.data.prepared import open_data

    families = {"masked": "bert", "causal": "gpt"}
    return open_data(data, ModelConfig(model_family=families[objective], vocab_size=vocab_size))


def open_source(data, split, vocab_size, seed, objective="masked"):
    """Returns the examples of a split of what `opened_data` returns."""
    from tftrain.data import source

    return source.open_source(opened_data(data, vocab_size, objective), split, seed)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder)
    return folder


@pytest.fixture(scope="session")
def prepare_config(corpus):
    """Returns a configuration for the small corpus or a text, which each test changes as it needs."""

    def make(output_dir, text=None, **changes):
        if text is not None:
            changes["input_files"] = f"{output_dir}.text"
            Path(changes["input_files"]).write_text(text, encoding="utf-8")
        if isinstance(changes.get("input_files"), str):
            changes["input_files"] = (changes["input_files"],)
        return config_of(corpus, output_dir, **changes)

    return make


@pytest.fixture(scope="session")
def prepared(prepare_config, tmp_path_factory):
    """A dynamic data set: the folder's path."""
    return written(prepare_config(tmp_path_factory.mktemp("prepared") / "dynamic"))


@pytest.fixture(scope="session")
def prepared_packed(prepare_config, tmp_path_factory):
    """A dynamic data set with several examples in a row: the folder's path."""
    folder = tmp_path_factory.mktemp("prepared") / "packed"
    return written(prepare_config(folder, packing="greedy", short_seq_prob=0.9))


@pytest.fixture(scope="session")
def prepared_static(prepare_config, tmp_path_factory):
    """A static data set: the folder's path."""
    folder = tmp_path_factory.mktemp("prepared") / "static"
    return written(prepare_config(folder, masking="static", dupe_factor=2))


@pytest.fixture(scope="session")
def prepared_causal(prepare_config, tmp_path_factory):
    """A data set of sequences for a decoder, with byte pairs: the folder's path."""
    folder = tmp_path_factory.mktemp("prepared") / "causal"
    return written(prepare_config(folder, **CAUSAL))


def written(config):
    """Prepares a data set; returns its folder's path."""
    from tftrain.prepare.preparation import prepare

    prepare(config)
    return config.output_dir
