"""The advice on padding names flags and the factor that they give."""

import logging
import re
import time
from collections import Counter

import numpy as np
import pytest

from tests.kit import corpora
from tftrain.config.prepare import PrepareConfig
from tftrain.prepare.accounting_report import padding_advice
from tftrain.prepare.preparation import prepare

KNOWN = ["--packing=greedy", "--seq_length_buckets"]


def config(**changes):
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
        ({}, {}, []),
        ({128: 90, 10: 10}, {}, []),
        ({128: 50, 40: 50}, {}, KNOWN),
        ({128: 50, 40: 50}, {"packing": "greedy"}, []),
        ({30: 100}, {"masking": "static"}, KNOWN[1:]),
        # One in a row, and none fits a shorter batch.
        ({90: 100}, {}, []),
    ],
)
def test_nothing_is_said_without_need(lengths, changes, flags):
    line = padding_advice(Counter(lengths), config(**changes)) or ""
    assert [flag for flag in KNOWN if flag in line] == flags


def test_long_rows_take_no_long_time():
    rng = np.random.default_rng(0)
    lengths = Counter(np.minimum(65536, 5 + rng.pareto(1, 300_000) * 1000).astype(int).tolist())
    begin = time.process_time()
    assert "--packing=greedy" in padding_advice(lengths, config(max_seq_length=65536))
    assert time.process_time() - begin < 3
