"""The published rows as they are read: every one of them, what is held out, and files that are wrong."""

import csv
import io
import math
import operator
import random

import pytest

from tests.plan.workloads import resized
from tftrain.bench.published import compare, encoder_format, rows
from tftrain.config.fields import ConfigError

ENCODER, TOPOLOGY, CPU_NODES, SWEEP, SELENE, FOUNDRY = rows.REFERENCE


@pytest.fixture(scope="module")
def reference():
    return {row.name: row for row in rows.read_reference()}


def test_every_line_of_every_table_is_a_row(reference):
    lines = sum(len(rows.reference_text(name).splitlines()) - 1 for name in rows.REFERENCE)
    assert len(reference) == lines == 1060


GIB = 1.073741824
LAYER = 12 * 14400**2  # weights of a block
FACTS = [
    # Held out.
    ("gpt_heads/05", "workload.model.attention_heads workload.ranks", (128, 384)),
    ("gpt_heads/05", "reference.ran reference_seconds", (False, None)),
    # 69.4 and 67 GB of tools that print GiB, and 16622.7 MiB.
    ("large_precision/01", "reference.gb", 69.4 * GIB),
    ("gpt_best_tflops_fp16/01", "reference.gb", 67 * GIB),
    ("a64fx_30b/02", "reference.gb", 16622.7 / 1024 * GIB),
    ("gpt_low_tp/08", "reference.gb reference.out_of_memory reference.ran", (None, True, False)),
    # Levers; a later value of one overrides an earlier one.
    ("large_other/17", "workload.model.layers workload.model.width workload.model.attention_heads", (24, 1024, 16)),
    ("large_other/17", "workload.fused workload.micro_batch", ({"gelu", "optimizer"}, 32)),
    ("large_other/17", "workload.dp workload.tp workload.zero_stage workload.accumulation", (2, 4, 2, "fp16")),
    ("prepretrain_5p75b/03", "workload.fused", {"ln", "gelu", "optimizer"}),
    # 32 samples on each of 8 GPUs at 79.9 samples/s a GPU.
    ("large_other/06", "reference_seconds", 32 / 79.9),
    # 8 S B (12 L h^2) / (TFLOPs * GPUs).
    ("gpt_best_tflops_fp16/01", "reference_seconds", 8 * 2048 * 2048 * 8 * LAYER / (108.47e12 * 8)),
    # Stated in milliseconds.
    ("a64fx_30b_scaling/01", "reference_seconds", 3534.8833),
    ("prepretrain_5p75b/02", "workload.micro_batches", 4),
    # "global batch 24000" of 192 GPUs with 16 samples each.
    ("xlarge_vs_xxlarge/02", "workload.micro_batches", 8),
    ("large_other/12", "workload.micro_batches", encoder_format.UNSTATED_ACCUMULATION),
    ("large_other/11", "workload.micro_batches", 1),
]


@pytest.mark.parametrize(("row", "fields", "expected"), FACTS, ids=range(len(FACTS)))  # A set has no fixed order.
def test_a_row_is_what_its_source_says(reference, row, fields, expected):
    found = operator.attrgetter(*fields.split())(reference[row])
    assert found == (pytest.approx(expected) if isinstance(expected, float) else expected)


def test_a_table_that_leaves_accumulation_out_of_its_speed_says_the_same_as_one_that_does_not(reference):
    one, other = reference["deeper/13"], reference["prepretrain_5p75b/01"]
    assert one.workload == other.workload
    assert one.reference_seconds == pytest.approx(other.reference_seconds)


def test_data_parallel_ranks_are_those_that_the_nodes_hold(reference):
    # 8 * 8 * 10 ranks are stated for 320 GPUs, and the published TFLOPs are those of 320.
    row = reference["gpt_contenders/12"]
    assert (row.workload.ranks, row.workload.dp) == (320, 4)
    assert "dp=8 * tp=8 * pp=10" in row.remark
    clamped = {row.name for row in reference.values() if row.remark}
    assert clamped == {"gpt_contenders/12", *(f"a64fx_30b_scaling/0{number}" for number in (4, 5, 6, 7))}


def lines_of(name, *wanted):
    """Returns lines of a reference file as cells by column, those with these row names, or all."""
    found = list(csv.DictReader(io.StringIO(rows.reference_text(name))))
    return [line for line in found if not wanted or line["row"] in wanted]


def written(lines):
    out = io.StringIO()
    writer = csv.DictWriter(out, list(lines[0]))
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def changed(name, row, **cells):
    """Returns what is read of one row with other cells, and of a row after it that is as it was."""
    (line,), other = lines_of(name, row), lines_of(name)[0]
    found, problems = rows.read_text(written([line | cells, other]), "rows.csv")
    assert found[-1].name == other["row"]
    return found, problems


BERT_LEVERS = lines_of(ENCODER, "large_other/11")[0]["levers"]


@pytest.mark.parametrize(
    ("name", "row", "cells", "words"),
    [
        (SWEEP, "sweep_single_node/0002", {"hidden": "x"}, "hidden=x: expected a whole number from 1"),
        (SWEEP, "sweep_single_node/0002", {"pp": "4"}, "dp=2 * tp=2 * pp=4: expected a product of its 8 GPUs"),
        (SWEEP, "sweep_single_node/0002", {"gpus": "0", "dp": "0"}, "gpus=0: expected a whole number"),
        (SWEEP, "sweep_single_node/0002", {"nodes": "8"}, "nodes=8"),
        (SWEEP, "sweep_single_node/0002", {"heads": "7"}, "heads=7: expected a divisor of hidden=1024"),
        (SWEEP, "sweep_single_node/0002", {"layers": "24.5"}, "layers=24.5: expected a whole number"),
        (SWEEP, "sweep_single_node/0002", {"layers": ""}, "layers=: expected a whole number"),
        (SWEEP, "sweep_single_node/0002", {"precision": "fp8"}, "precision=fp8: expected one of fp32, fp16, bf16"),
        (SWEEP, "sweep_single_node/0002", {"precision": "FP32"}, "precision=FP32: expected one of"),
        (SWEEP, "sweep_single_node/0002", {"sec_per_iteration": "0"}, "sec_per_iteration=0: expected a number above 0"),
        (SWEEP, "sweep_single_node/0002", {"sec_per_iteration": "nan"}, "sec_per_iteration=nan: expected a number"),
        (
            SWEEP,
            "sweep_single_node/0002",
            {"global_batch": "4", "micro_batch": "8"},
            "global_batch=4: expected at least micro_batch=8 on each of dp=2",
        ),
        (TOPOLOGY, "gpt_contenders/03", {"zero_stage": "7"}, "zero_stage=7: expected a whole number from 0 to 3"),
        (TOPOLOGY, "gpt_contenders/03", {"flops_formula": "older"}, "flops_formula=older: expected one of old, new"),
        (TOPOLOGY, "gpt_contenders/03", {"max_gb": "0"}, "max_gb=0: expected a number above 0"),
        (TOPOLOGY, "gpt_contenders/03", {"dp": "3"}, "dp=3 * tp=8 * pp=12: expected a product of 384"),
        (TOPOLOGY, "gpt_contenders/03", {"nodes": "1"}, "dp=4 * tp=8 * pp=12: expected a product of 8"),
        (CPU_NODES, "a64fx_30b/05", {"dp": "1"}, "dp=1 * tp=4 * pp=48: expected a product of 3072"),
        (CPU_NODES, "a64fx_30b/05", {"activation_checkpointing": "no idea"}, "activation_checkpointing=no idea"),
        (SELENE, "selene/03", {"global_batch": "3"}, "such as 8, not 3"),
        (FOUNDRY, "foundry_h100_80gb/001", {"card": "b200"}, "card=b200: expected one of a100_40gb, a100_80gb, h100"),
        (FOUNDRY, "foundry_h100_80gb/001", {"sharding": "zero4"}, "sharding=zero4: expected one of zero2, zero3"),
        (FOUNDRY, "foundry_h100_80gb/001", {"gpus": "64"}, "dp=512 * tp=1 * pp=1: expected a product of its 64 GPUs"),
        (FOUNDRY, "foundry_h100_80gb/001", {"grad_accum": "2"}, "grad_accum=2: expected global_batch / (dp * micro_ba"),
        (ENCODER, "large_other/11", {"grad_accum_steps": "0"}, "grad_accum_steps=0: expected a whole number"),
        (ENCODER, "large_other/11", {"gpus": "9"}, "gpus=9: expected at most the 8 of nodes=1"),
        *(
            (ENCODER, "large_other/11", {"levers": f"{BERT_LEVERS} {lever}"}, words)
            for lever, words in (
                ("magic=true", "magic=true: expected flag=value, with one of the flags activation, "),
                ("max_steps=10", "max_steps=10: expected flag=value"),
                ("ln_impl", "ln_impl: expected flag=value"),
                ("precision=bf99", "--precision=bf99: expected one of"),
                ("split_opt_state=True", "split_opt_state=True: expected true or false"),
                ("hidden_dropout_prob=some", "hidden_dropout_prob=some: expected a number"),
                ("state_split_strategy=greedy:x", "--state_split_strategy=greedy:x: expected even"),
                ("state_split_strategy=greedy:9", "--state_split_strategy=greedy:9: expected at most the 8"),
                ("tensor_parallel_size=3", "--tensor_parallel_size=3: expected a divisor of the 8 ranks"),
            )
        ),
    ],
)
def test_a_wrong_row_is_named_with_its_column_and_the_others_are_read(name, row, cells, words):
    found, (problem,) = changed(name, row, **cells)
    assert str(problem).startswith("--rows_file=line 2 of rows.csv: ")
    assert words in str(problem)
    assert len(found) == 1


def test_more_ranks_than_the_nodes_hold_are_lowered_and_said():
    (row, _), problems = changed(TOPOLOGY, "gpt_contenders/03", dp="12")
    assert not problems
    assert row.workload.dp == 4
    assert "dp=12 * tp=8 * pp=12 are more than the 384 devices" in row.remark
    # On A64FX by whatever number.
    (row, _), problems = changed(CPU_NODES, "a64fx_30b/05", dp="23")
    assert (row.workload.dp, problems) == (16, [])


def test_every_lever_that_the_planner_knows_is_read():
    def work(lever):
        (row, _), problems = changed(ENCODER, "large_other/11", levers=f"{BERT_LEVERS} {lever}")
        assert not problems
        return row.workload

    plain = work("")
    assert work("activation_checkpointing=full") == plain._replace(checkpointing="full")
    assert work("activation=geglu") == resized(plain, activation="geglu")
    assert work("split_grad_accum=true") == plain._replace(zero_stage=2)
    assert work("split_opt_state=false") == plain._replace(zero_stage=0)
    assert work("optimizer=fused_adamw") == plain
    for lever in encoder_format.WITHOUT_EFFECT:
        assert work(f"{lever}=true") == plain


def test_a_remainder_of_the_batch_is_no_reason_to_refuse_a_row():
    (row, _), problems = changed(TOPOLOGY, "gpt_contenders/03", global_batch="2043")
    assert not problems
    assert row.workload.micro_batches == 2043 / 16


@pytest.mark.parametrize(
    "text", ["\ufeff{}", "{}\n\n  ,,,\n", "{blanks}"], ids=["byte order mark", "empty lines", "blanks around cells"]
)
def test_what_a_spreadsheet_adds_is_no_part_of_the_cells(tmp_path, reference, text):
    lines = rows.reference_text(SWEEP).splitlines()[:3]
    blanks = "\n".join(" , ".join(line.split(",")) for line in lines)
    path = tmp_path / "rows.csv"
    path.write_text(text.format("\n".join(lines), blanks=blanks), encoding="utf-8")
    found, problems = rows.read_file(str(path))
    assert found == [reference["sweep_single_node/0001"], reference["sweep_single_node/0002"]]
    assert not problems


def test_a_missing_column_is_named():
    (line,) = lines_of(SWEEP, "sweep_single_node/0002")
    del line["hidden"]
    _, (problem,) = rows.read_text(written([line]), "rows.csv")
    assert "hidden: expected this column" in str(problem)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", "columns of a reference table"),
        ("", "columns of a reference table"),
        (rows.reference_text(SWEEP).splitlines()[0], "expected rows"),
        ("\0", "columns of a reference table"),
        (f'{rows.reference_text(SWEEP).splitlines()[0]}\n"1', "readable CSV"),
        (f'{rows.reference_text(SWEEP).splitlines()[0]}\n"1"2', "readable CSV"),
    ],
)
def test_a_file_that_is_no_table_is_refused(text, words):
    with pytest.raises(ConfigError, match=words):
        rows.read_text(text, "rows.csv")


def test_a_file_in_each_format_reads_as_the_table_it_is(tmp_path, reference):
    for name in rows.REFERENCE:
        path = tmp_path / name
        path.write_text("\n".join(rows.reference_text(name).splitlines()[:3]) + "\n")
        found, _ = rows.read_file(str(path))
        assert len(found) == 2
        assert all(reference[row.name] == row for row in found)


@pytest.mark.parametrize("name", rows.REFERENCE)
def test_whatever_cells_hold_a_row_is_refused_or_planned(name):
    draw, every = random.Random(name), lines_of(name)
    odd = ["", "0", "-1", "1", "2", "3", "7", "64", "1e9", "1e99", "nan", "inf", "x", "OOM", "fp32", "\t", "é", "a=b"]
    refused = planned = 0
    for _ in range(300):
        line = dict(draw.choice(every))
        for column in draw.sample(list(line), draw.randint(1, 2)):
            if column not in ("row", "table"):
                line[column] = draw.choice(odd)
        found, problems = rows.read_text(written([line]), "rows.csv")
        assert len(found) + len(problems) == 1
        refused += len(problems)
        for each in compare.plan_all(found):
            planned += 1
            assert math.isfinite(each.gb + each.seconds + each.tflops_per_gpu + each.samples_per_sec_per_gpu)
            assert min(each.gb, each.seconds) > 0
            assert compare.cells(each)
            assert compare.summarize([each])
    assert refused > 30
    assert planned > 30
