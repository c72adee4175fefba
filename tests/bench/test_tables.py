"""Every table is data that the program can show and choose from."""

import re

import pytest

from tftrain.bench import __main__ as program
from tftrain.bench.kernels.table import CAUSAL_SIZES
from tftrain.bench.kernels.traffic import TRAFFIC, UPDATE_BYTES
from tftrain.bench.table import BenchTable, groups
from tftrain.bench.tables import TABLES

KERNEL_COLUMNS = "op pass dtype shape device implementation time_us gb_per_s share_of_copy speedup_over_tf"
ATTENTION_COLUMNS = "core dtype seq_length pass time_us peak_mb"
PEER_COLUMNS = "implementation dtype task samples_per_sec real_samples_per_sec real_tokens_per_sec ratio_to_best_peer"


@pytest.fixture(params=TABLES.values(), ids=TABLES.keys())
def table(request) -> BenchTable:
    return request.param


def test_row_names_are_unique(table):
    names = [row.name for row in table.rows]
    assert len(set(names)) == len(names) > 0


def test_rows_of_a_group_stand_together(table):
    assert [row for group in groups(list(table.rows)) for row in group] == list(table.rows)


def test_columns_are_those_that_other_programs_read():
    assert [column.name for column in TABLES["kernels"].columns] == KERNEL_COLUMNS.split()
    assert [column.name for column in TABLES["peers"].columns] == PEER_COLUMNS.split()
    assert [column.name for column in TABLES["attention"].columns] == ATTENTION_COLUMNS.split()


def test_every_op_has_rows_at_both_sizes_and_in_its_formats():
    rows = {row.name for row in TABLES["kernels"].rows}
    decoders = {f"attention_softmax_causal/{dtype}/{size}" for dtype in ("fp32", "bf16") for size in CAUSAL_SIZES}
    assert rows - decoders == {
        f"{op}/{dtype}/{size}" for op in TRAFFIC for dtype in ("fp32", "bf16") for size in ("base", "large")
    } | {f"{op}/{dtype}/{size}" for op in UPDATE_BYTES for dtype in ("fp32", "bf16") for size in ("base", "large")}
    assert decoders <= rows


def test_rows_are_chosen_by_globs_in_the_tables_order():
    chosen = [row.name for row in TABLES["peers"].matching("text_512/tftrain/fp32, */tf_models_*/bf16")]
    peers = [f"{task}/tf_models_{mode}/bf16" for task in ("synthetic_128", "text_512") for mode in ("graph", "xla")]
    assert chosen == [*peers, "text_512/tftrain/fp32"]


def test_the_listing_has_a_line_for_each_table_and_that_of_one_table_its_rows(capsys):
    assert program.main(["bench", "--list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == len(TABLES) + 1
    for line, table in zip(listed, TABLES.values(), strict=False):
        assert re.fullmatch(rf"{table.name} +{len(table.rows)} rows  {re.escape(table.about)}", line)
    assert program.main(["bench", "--list=kernels"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[2:] == [f"  {row.name}" for row in TABLES["kernels"].rows]


# tests/bad_inputs has wrong tables, rows and flags.
def test_the_listing_of_a_table_that_is_none_is_refused(capsys):
    with pytest.raises(SystemExit):
        program.main(["bench", "--list=kernel"])
    assert "--list=kernel: expected one of kernels, peers" in capsys.readouterr().err
