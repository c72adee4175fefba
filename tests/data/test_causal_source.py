"""Documents of a decoder's rows: their numbers and places, from the records of prepared data."""

import numpy as np
import pytest
import tensorflow as tf

from tests.kit.data_sets import open_source
from tftrain.config.data import DataConfig
from tftrain.data import pipeline
from tftrain.data.causal_source import documents
from tftrain.data.manifest import read_manifest
from tftrain.prepare.preparation import prepare
from tftrain.tokenizer.vocabulary import read_vocabulary


def by_hand(ids, end_id):
    numbers, places = np.zeros_like(ids), np.zeros_like(ids)
    for row, tokens in enumerate(ids):
        number, place = 1, 0
        for column, token in enumerate(tokens):
            if column and token == end_id:
                number, place = number + 1, 0
            numbers[row, column], places[row, column] = number, place
            place += 1
    return {"sequence_ids": numbers, "position_ids": places}


@pytest.mark.parametrize("length", [1, 2, 7, 8, 33])
@pytest.mark.parametrize("words", [1, 3, 40])
def test_an_end_token_begins_the_next_document(length, words):
    ids = np.random.default_rng(length).integers(0, words, [50, length]).astype(np.int32)
    for name, expected in by_hand(ids, 0).items():
        np.testing.assert_array_equal(documents(tf.constant(ids), 0)[name], expected, err_msg=name)


def test_batches_of_prepared_data_have_them(prepare_config, tmp_path):
    prepare(prepare_config(tmp_path / "data", objective="causal"))
    data = DataConfig(data_dir=str(tmp_path / "data"), document_mask=True)
    manifest = read_manifest(data.data_dir)
    vocabulary = read_vocabulary(manifest.path(manifest.vocab_file), manifest.tokenizer_type)
    for split in ("train", "eval"):
        source = open_source(data, split, manifest.vocab_size, 1, "causal")
        batch = next(iter(pipeline.eval_batches(source, data, 64, 0, 64)))
        for name, expected in by_hand(batch["input_ids"].numpy(), vocabulary.end_id).items():
            np.testing.assert_array_equal(batch[name], expected, err_msg=name)
            assert batch[name].shape == batch["labels"].shape
            assert batch[name].dtype == tf.int32
        assert split == "eval" or batch["sequence_ids"].numpy().max() > 1
