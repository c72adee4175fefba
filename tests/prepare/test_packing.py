"""Packing: no example is lost, no row is too full, few positions are padding; and what the packed batches contain."""

import logging
import re
import time
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tests.data.test_pipeline import joined, source_of
from tests.kit import corpora
from tests.prepare.test_prepare import examples
from tftrain.config.data import DataConfig
from tftrain.config.prepare import PrepareConfig
from tftrain.data.manifest import read_manifest
from tftrain.data.pipeline import eval_batches
from tftrain.prepare.accounting_report import padding_advice
from tftrain.prepare.packing import pack
from tftrain.prepare.preparation import prepare

LENGTH = 32  # tokens in a row of the small corpus


@given(lengths=st.lists(st.integers(1, 40), max_size=200), longest=st.integers(40, 60), most=st.integers(1, 9))
def test_every_example_is_in_one_row_and_no_row_is_too_full(lengths, longest, most):
    rows = pack(np.array(lengths, np.int64), longest, most)
    assert sorted(rows[rows >= 0].tolist()) == list(range(len(lengths)))
    for row in rows.tolist():
        used = [number for number in row if number >= 0]
        assert used == row[: len(used)]  # -1 only after the examples
        assert 1 <= len(used) <= most == len(row)
        assert sum(lengths[number] for number in used) <= longest
    np.testing.assert_array_equal(rows, pack(np.array(lengths, np.int64), longest, most))


def test_rows_may_have_more_tokens_than_sixteen_bits_count():
    assert pack(np.array([70_000, 10, 65_536, 100_000]), 1 << 17, 3).tolist() == [[3, 1, -1], [0, -1, -1], [2, -1, -1]]
    assert pack(np.array([65_536, 1]), 1 << 16, 3).tolist() == [[0, -1, -1], [1, -1, -1]]


@pytest.mark.parametrize("shape", ["uniform", "around a half", "full and short"])
def test_hardly_any_position_is_padding_where_examples_are_half_as_long_as_rows(shape):
    random = np.random.default_rng(0)
    lengths = {
        "uniform": random.integers(1, 513, 20_000),
        "around a half": np.clip(random.normal(256, 80, 20_000).astype(int), 5, 512),
        "full and short": np.where(random.random(20_000) < 0.2, 512, random.integers(5, 400, 20_000)),
    }[shape]
    assert 0.45 < lengths.mean() / 512 < 0.6
    assert lengths.sum() / (len(pack(lengths, 512, 3)) * 512) >= 0.99


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A corpus of documents of a few words, most of them shorter than a half of a row."""
    folder = tmp_path_factory.mktemp("short")
    (folder / "part.txt").write_text(corpora.text(300, sentences=1), encoding="utf-8")
    return str(folder / "part.txt")


@pytest.fixture(scope="module")
def folders(prepare_config, texts, tmp_path_factory):
    """The same text prepared without packing and with it."""
    folder = tmp_path_factory.mktemp("packing")
    for name, changes in (("none", {}), ("greedy", {"packing": "greedy", "max_sequences_per_pack": 4})):
        prepare(prepare_config(folder / name, input_files=texts, **changes))
    return {name: str(folder / name) for name in ("none", "greedy")}


def examples_of(record):
    """Returns the examples of a packed record: tokens, start of the second segment, label."""
    ends = np.cumsum(record["sequence_lengths"])
    parts = np.split(np.array(record["input_ids"]), ends[:-1])
    tokens = [tuple(part.tolist()) for part in parts]
    return list(zip(tokens, record["second_segment_start"], record["next_sentence_labels"], strict=True))


@pytest.mark.parametrize("split", ["train", "eval"])
def test_packed_records_hold_the_same_examples(folders, split):
    packed = [example for record in examples(folders["greedy"], split) for example in examples_of(record)]
    plain = [
        (tuple(record["input_ids"]), *record["second_segment_start"], *record["next_sentence_labels"])
        for record in examples(folders["none"], split)
    ]
    assert sorted(packed) == sorted(plain)
    manifest = read_manifest(folders["greedy"])
    assert manifest.packed_examples(split) == len(plain)
    assert manifest.examples(split) < 0.7 * len(plain)


def test_a_packed_batch_has_each_example_apart(folders):
    data = DataConfig(data_dir=folders["greedy"])
    source = source_of(data, "eval")
    batch = joined(eval_batches(source, data, 5, 0, 5))
    records = examples(folders["greedy"], "eval")
    assert source.max_predictions_per_seq == 5 + 4
    for row, record in enumerate(records):
        apart, sizes = examples_of(record), record["sequence_lengths"]
        size, most = sum(sizes), 4 - len(sizes)
        starts = np.cumsum([0, *sizes])[:-1].tolist()
        number = np.repeat(np.arange(len(sizes)), sizes)
        positions = np.concatenate([np.arange(each) for each in sizes])
        seconds = np.array(record["second_segment_start"])[number]
        expected = {
            "input_mask": [1] * size,
            "sequence_ids": (number + 1).tolist(),
            "position_ids": positions.tolist(),
            "segment_ids": (positions >= seconds).astype(int).tolist(),
        }
        for name, values in expected.items():
            assert batch[name][row].tolist() == values + [0] * (LENGTH - size), name
        assert batch["sequence_starts"][row].tolist() == starts + [0] * most
        assert batch["sequence_weights"][row].tolist() == [1] * len(sizes) + [0] * most
        assert batch["next_sentence_labels"][row].tolist() == record["next_sentence_labels"] + [0] * most

        used = batch["masked_lm_weights"][row] > 0
        masked, labels = batch["masked_lm_positions"][row][used], batch["masked_lm_ids"][row][used]
        ids = batch["input_ids"][row].copy()
        unchanged = np.setdiff1d(np.arange(size), masked)
        np.testing.assert_array_equal(ids[unchanged], np.array(record["input_ids"])[unchanged])
        ids[masked] = labels
        assert ids[:size].tolist() == [token for tokens, _, _ in apart for token in tokens]
        of_each = np.bincount(number[masked], minlength=len(sizes))
        share = [max(1, round(0.15 * (each - 3))) for each in sizes]
        assert of_each.tolist() == share
    fill = batch["example_weights"] == 0
    assert fill.sum() == -len(records) % 5
    assert not batch["sequence_weights"][fill].any()
    assert not batch["masked_lm_weights"][fill].any()


def test_an_example_is_masked_alike_whatever_its_neighbours_are(folders):
    source = source_of(DataConfig(data_dir=folders["greedy"]))
    random = np.random.default_rng(0)

    def masked(second):
        tokens = np.concatenate([first, second, third]).astype(np.int32)
        lengths = tf.constant([[len(first), len(second), len(third), 0]], tf.int64)
        return {
            name: value.numpy()[0]
            for name, value in source._masking.packed(tf.constant(tokens), lengths, tf.constant(7, tf.int64)).items()
        }

    first, third = random.integers(5, 30, 10), random.integers(5, 30, 8)
    one, other = masked(random.integers(5, 30, 9)), masked(random.integers(5, 30, 9))
    for part in (slice(0, 10), slice(19, None)):
        np.testing.assert_array_equal(one["input_ids"][part], other["input_ids"][part])
    assert (one["input_ids"] != other["input_ids"]).any()


KNOWN = ["--packing=greedy", "--seq_length_buckets"]


def advised(**changes):
    return PrepareConfig(input_files=("x",), output_dir="y", **changes)


def test_factors_are_those_that_the_flags_give(prepare_config, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    text = "\n\n".join(corpora.text(1, seed, 1 + seed % 3) for seed in range(1200))
    changes = {"text": text, "max_seq_length": 128, "shard_mb": 1.0, "eval_fraction": 0.0}
    prepare(prepare_config(tmp_path / "padded", **changes))
    (line,) = [line for line in caplog.messages if "padding;" in line]
    share, packed, most, cut, buckets = re.fullmatch(
        r"(\d+)% of the positions are padding; estimated factor in real examples a second: ([\d.]+) with "
        r"--packing=greedy --max_sequences_per_pack=(\d+), or ([\d.]+) with --seq_length_buckets=([\d,]+) of "
        r"tftrain.run \(positions now / positions then\)",
        line,
    ).groups()
    assert int(share) > 60
    assert (float(cut) > 2, buckets) == (True, "32,64")
    caplog.clear()
    made = prepare(prepare_config(tmp_path / "packed", packing="greedy", max_sequences_per_pack=int(most), **changes))
    assert made.packed_examples("train") / made.examples("train") == pytest.approx(float(packed), rel=0.05)
    assert not [line for line in caplog.messages if "padding;" in line]


@pytest.mark.parametrize(
    ("lengths", "changes", "flags"),
    [
        *(({}, {}, []), ({128: 90, 10: 10}, {}, []), ({128: 50, 40: 50}, {}, KNOWN)),
        *(({128: 50, 40: 50}, {"packing": "greedy"}, []), ({30: 100}, {"masking": "static"}, KNOWN[1:])),
        # One in a row, and none fits a shorter batch.
        ({90: 100}, {}, []),
    ],
)
def test_nothing_is_said_without_need(lengths, changes, flags):
    line = padding_advice(Counter(lengths), advised(**changes)) or ""
    assert [flag for flag in KNOWN if flag in line] == flags


def test_long_rows_take_no_long_time():
    rng = np.random.default_rng(0)
    lengths = Counter(np.minimum(65536, 5 + rng.pareto(1, 300_000) * 1000).astype(int).tolist())
    begin = time.process_time()
    assert "--packing=greedy" in padding_advice(lengths, advised(max_seq_length=65536))
    assert time.process_time() - begin < 3
