"""The published rows as they are read: every one of them, what is held out, and files that are wrong."""

from importlib import resources

import pytest

from tftrain.fields import ConfigError
from tftrain.plan import formats, rows

FOLDER = resources.files("tftrain.plan") / "reference"


@pytest.fixture(scope="module")
def reference():
    return {row.name: row for row in rows.read_reference()}


def test_every_line_of_every_table_is_a_row(reference):
    lines = sum(len((FOLDER / name).read_text().splitlines()) - 1 for name in rows.REFERENCE)
    assert len(reference) == lines == 936


def test_a_held_out_row_has_a_workload_and_no_figures(reference):
    row = reference["gpt_heads/05"]
    assert row.workload.heads == 128
    assert row.workload.ranks == 8 * row.nodes == 384
    assert not row.reference.ran
    assert row.reference_seconds is None


def test_out_of_memory_is_not_a_figure(reference):
    found = reference["gpt_low_tp/08"].reference
    assert (found.gb, found.out_of_memory, found.ran) == (None, True, False)


def test_levers_become_the_workload(reference):
    work = reference["large_other/17"].workload
    assert (work.layers, work.hidden, work.heads, work.micro_batch) == (24, 1024, 16, 32)
    assert work.fused == {"gelu", "optimizer"}
    assert (work.dp, work.tp, work.zero_stage, work.accumulation) == (2, 4, 2, "fp16")
    # A later value of a lever overrides an earlier one.
    assert "softmax" not in reference["prepretrain_5p75b/03"].workload.fused


def test_seconds_follow_from_whatever_the_source_states(reference):
    # 32 samples on each of 8 GPUs at 79.9 samples/s a GPU.
    assert reference["large_other/06"].reference_seconds == pytest.approx(32 / 79.9)
    # 8 S B (12 L h^2) / (TFLOPs * GPUs).
    blocks = 12 * 8 * 14400**2
    assert reference["gpt_best_tflops_fp16/01"].reference_seconds == pytest.approx(
        8 * 2048 * 2048 * blocks / (108.47e12 * 8)
    )
    # Stated in milliseconds.
    assert reference["a64fx_30b_scaling/01"].reference_seconds == pytest.approx(3534.8833)


def test_a_table_that_leaves_accumulation_out_of_its_speed_says_the_same_as_one_that_does_not(reference):
    one, other = reference["deeper/13"], reference["prepretrain_5p75b/01"]
    assert one.workload == other.workload
    assert one.reference_seconds == pytest.approx(other.reference_seconds)


def test_micro_batches_are_stated_or_follow_from_a_stated_global_batch(reference):
    assert reference["prepretrain_5p75b/02"].workload.micro_batches == 4
    # "global batch 24000" of 192 GPUs with 16 samples each.
    assert reference["xlarge_vs_xxlarge/02"].workload.micro_batches == 8
    assert reference["large_other/12"].workload.micro_batches == formats.UNSTATED_ACCUMULATION
    assert reference["large_other/11"].workload.micro_batches == 1


def test_data_parallel_ranks_are_those_that_the_nodes_hold(reference):
    # 8 * 8 * 10 ranks are stated for 320 GPUs, and the published TFLOPs are those of 320.
    row = reference["gpt_contenders/12"]
    assert row.workload.ranks == 320
    for row in reference.values():
        assert row.workload.ranks <= 8 * row.nodes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", "columns of a reference table"),
        ("", "columns of a reference table"),
        ("{head}\nx/01,x,24,x,16,,1024,fp16,1,8,2,2,2,4,32,0.2\n", "line 2"),
        ("{head}\nx/01,x,24,1024,16,,1024,fp16,1,8,2,2,4,4,32,0.2\n", "dp=2 * tp=2 * pp=4 to be its 8 GPUs"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(tmp_path, text, words):
    head = (FOLDER / "decoder_sweep_a100.csv").read_text().splitlines()[0]
    path = tmp_path / "rows.csv"
    path.write_text(text.replace("{head}", head))
    with pytest.raises(ConfigError, match=words.replace("*", r"\*")):
        rows.read_file(str(path))


def test_a_lever_that_is_no_flag_is_refused(tmp_path):
    head, first = (FOLDER / "encoder_a100.csv").read_text().splitlines()[:2]
    path = tmp_path / "rows.csv"
    path.write_text(f"{head}\n{first.replace(',,16,', ',magic=true,16,')}\n")
    with pytest.raises(ConfigError, match="magic"):
        rows.read_file(str(path))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="readable CSV"):
        rows.read_file(str(tmp_path / "none.csv"))


def test_a_file_in_each_format_reads_as_the_table_it_is(tmp_path, reference):
    for name in rows.REFERENCE:
        path = tmp_path / name
        path.write_text("\n".join((FOLDER / name).read_text().splitlines()[:3]) + "\n")
        assert all(reference[row.name] == row for row in rows.read_file(str(path)))
