"""What a run writes and shows."""

import errno
import io
import json
import math
import os
import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from tftrain.host import devices, log
from tftrain.observe import rows
from tftrain.observe.metrics import MetricsWriter, read_rows
from tftrain.observe.rows import EvalRow, RollbackRow, SpikeRow, TrainRow
from tftrain.plan import cluster
from tftrain.tasks.bert_pretraining import BertPretraining
from tftrain.tasks.causal_pretraining import CausalPretraining

MEANS = BertPretraining.means

# As design.md lists them for the programs that read the file.
NAMES = (
    "step loss mlm_loss nsp_loss mlm_accuracy learning_rate grad_norm loss_scale global_batch_size consumed_samples "
    "consumed_tokens step_time_s samples_per_sec tokens_per_sec real_samples_per_sec real_tokens_per_sec utilisation "
    "tflops_per_device mfu peak_memory_gb peak_memory_rank skipped_steps nan_steps failed_saves phase max_seq_length"
)
TRAIN_FIELDS = NAMES.split()
SPIKE_FIELDS = [f"spike_{name}" for name in ("loss", "loss_zscore", "grad_norm", "grad_norm_zscore", "skipped")]
EVAL_FIELDS = ["step", "eval_mlm_loss", "eval_mlm_accuracy", "eval_nsp_accuracy", "eval_unigram_nats"]


def row(step=10, means=(), **changes):
    values = {
        **{"step": step, "loss": 7.5, "learning_rate": 1e-4, "grad_norm": 1.5, "loss_scale": 1.0},
        **{"means": {"mlm_loss": 6.875, "nsp_loss": 0.625, "mlm_accuracy": 0.125} | dict(means)},
        **{"global_batch_size": 32, "consumed_samples": 32 * step, "consumed_tokens": 4096 * step},
        **{"step_time_s": 0.5, "samples_per_sec": 64.0, "tokens_per_sec": 8192.0, "real_samples_per_sec": 128.0},
        **{"real_tokens_per_sec": 8110.0, "utilisation": 0.99, "tflops_per_device": 0.25, "mfu": None},
        **{"peak_memory_gb": 1.25, "peak_memory_rank": 1, "skipped_steps": 2, "nan_steps": 1, "failed_saves": 2},
        **{"phase": 1, "max_seq_length": 128},
    }
    return TrainRow(**values | changes)


def evaluation(step=10):
    means = {"eval_mlm_loss": 5.5, "eval_mlm_accuracy": 0.25, "eval_nsp_accuracy": 0.5}
    return EvalRow(step, means, 6.25)


SPIKE = SpikeRow(7, 9.25, 7.5, 3.0, -0.25)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_rows_have_exactly_the_documented_fields_in_order(tmp_path):
    writer = MetricsWriter(tmp_path / "new" / "run", 100, MEANS)
    writer.train(row())
    writer.evaluation(evaluation())
    writer.spike(SPIKE)
    # Before close: each row is on disk once it is written.
    found = [json.loads(line) for line in (tmp_path / "new/run/metrics.jsonl").read_text().splitlines()]
    writer.close()
    spike = {"step": 7, **dict(zip(SPIKE_FIELDS, [9.25, 7.5, 3.0, -0.25, 0], strict=True))}
    assert list(map(list, found)) == [TRAIN_FIELDS, EVAL_FIELDS, list(spike)]
    assert found == [rows.fields(row()), rows.fields(evaluation()), spike]


def test_numbers_that_are_not_finite_are_null_in_json_and_words_on_the_console(tmp_path, capsys):
    writer = MetricsWriter(tmp_path, 100, MEANS, "megatron")
    writer.train(row(means={"mlm_loss": math.nan, "nsp_loss": np.float32(-math.inf).item()}, grad_norm=math.inf))
    writer.close()

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    found = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=refuse)
    assert (found["mlm_loss"], found["grad_norm"], found["nsp_loss"], found["loss"]) == (None, None, None, 7.5)
    output = capsys.readouterr().out
    assert "lm loss: nan" in output
    assert "grad norm: inf" in output


@pytest.mark.parametrize(
    ("write", "parts"),
    [
        (
            lambda writer: writer.train(row()),
            "iteration 10/ 100 | consumed samples: 320 | consumed tokens: 40960 | elapsed time per iteration (s): 0.500"
            " | learning rate: 1.000E-04 | global batch size: 32 | lm loss: 6.8750 | nsp loss: 0.6250 | loss scale: 1.0"
            " | grad norm: 1.500 | skipped iterations: 2 | nan iterations: 1 | failed saves: 2"
            " | samples per second: 64.0 | real samples per second: 128.0 | utilisation: 99.0% | TFLOPs: 0.250"
            " | peak memory (GB): 1.25 (rank 1)",
        ),
        (
            lambda writer: writer.spike(SPIKE),
            "spike at 7/ 100 | loss: 9.2500 (+7.5 standard deviations) | grad norm: 3.000 (-0.2)",
        ),
        (
            lambda writer: writer.evaluation(evaluation()),
            "held-out at 10/ 100 | lm loss: 5.5000 | unigram entropy: 6.2500 | learned from context: 0.7500"
            " | lm accuracy: 0.2500 | nsp accuracy: 0.5000",
        ),
    ],
    ids=["step", "spike", "evaluation"],
)
def test_a_line_in_the_manner_of_megatron_names_everything(tmp_path, capsys, write, parts):
    writer = MetricsWriter(tmp_path, 100, MEANS, "megatron")
    writer.advance(10)
    write(writer)
    writer.close()
    assert re.sub(" +", " ", capsys.readouterr().out.partition("] ")[2].strip()) == parts


def test_a_progress_bar_stands_under_the_lines_of_a_terminal_only(tmp_path, monkeypatch):
    terminal, file, of_warnings = Terminal(), io.StringIO(), Terminal()
    for place in (terminal, file, of_warnings):
        monkeypatch.setattr(sys, "stdout", place)
        log.configure(level="warning" if place is of_warnings else "info")
        writer = MetricsWriter(tmp_path, 40, MEANS)
        for step in range(31, 36):
            writer.advance(step)
        writer.train(row(35))
        writer.close()
    assert "35/40 [" in terminal.getvalue()
    assert terminal.getvalue().count("step 35/40  loss") == 1
    assert file.getvalue().count("\n") == 1
    assert "\r" not in file.getvalue()
    assert of_warnings.getvalue() == ""


def test_a_step_has_one_short_line_and_its_whole_line_in_a_file(tmp_path, capsys):
    writer = MetricsWriter(tmp_path, 1200, MEANS)
    writer.train(row(25, skipped_steps=0), seconds_left=587.5)
    writer.close()
    losses = "loss 7.5000 (lm 6.875 nsp 0.625)"
    short = f"step   25/1200  {losses}  lr 1.0e-04  64.0 samples/s  8110 tok/s  1.25 GB  eta 0:09:48"
    shown = capsys.readouterr().out
    assert re.fullmatch(rf"\d\d:\d\d:\d\d  {re.escape(short)}\n", shown)
    whole = (tmp_path / "log.txt").read_text()
    line = rows.train_line(row(25, skipped_steps=0), 1200, MEANS)
    assert re.fullmatch(rf"\[{time.strftime('%Y')}-\d\d-\d\d \d\d:\d\d:\d\d\] {re.escape(line)}\n", whole)


@pytest.mark.parametrize(
    "line",
    [
        rows.short_train_line(row(10**4, skipped_steps=0, peak_memory_gb=139), 10**4, MEANS, math.nan),
        rows.short_train_line(
            row(999, samples_per_sec=9999.9, real_tokens_per_sec=1e8, skipped_steps=0), 10**4, MEANS, 3599
        ),
        rows.short_train_line(row(10**6, means={"lm_loss": 7.5}), 10**6, CausalPretraining.means, 1e8),
        rows.short_eval_line(evaluation(10**6), 10**6, MEANS),
        rows.short_spike_line(SpikeRow(10**6, 10.5, 99.9, 1234.5, -99.9), 10**6),
    ],
)
def test_a_short_line_takes_about_120_columns_behind_the_time_of_day(line):
    assert len(f"12:34:56  {line}") <= 124
    assert "\n" not in line


def test_skipped_steps_are_named_in_the_short_line():
    assert rows.short_train_line(row(), 100, MEANS, 45).endswith("  eta 0:00:45  skipped 2")


def test_short_lines_have_the_parts_of_a_loss_only_where_there_are_several():
    assert " eval lm 5.5000 " in rows.short_eval_line(evaluation(), 100, MEANS)
    found = row(means={"lm_loss": 7.5}), EvalRow(10, {"eval_lm_loss": 5.5, "eval_lm_accuracy": 0.25}, 6.25)
    assert " loss 7.5000  lr " in rows.short_train_line(found[0], 100, CausalPretraining.means, 45)
    assert " eval loss 5.5000 " in rows.short_eval_line(found[1], 100, CausalPretraining.means)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0:00:00"), (3599.6, "1:00:00"), (359_999, "99:59:59"), (360_000, "4.2 days"), (math.nan, "-")],
)
def test_the_time_that_is_left_is_short(seconds, words):
    assert rows.duration(seconds) == words


def test_resuming_drops_later_rows_and_a_half_written_line(tmp_path):
    writer = MetricsWriter(tmp_path, 100, MEANS)
    for step in (10, 20, 30):
        writer.train(row(step))
        writer.evaluation(evaluation(step))
    writer.close()
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 40, "lo')
    resumed = MetricsWriter(tmp_path, 100, MEANS)
    resumed.truncate_after(20)
    resumed.train(row(30, loss=1.0))
    assert [found["step"] for found in read_rows(path)] == [10, 10, 20, 20, 30]
    assert read_rows(path)[-1]["loss"] == 1.0
    resumed.truncate_after(0)
    resumed.close()
    assert read_rows(path) == [], "a start from the beginning"
    assert sorted(found.name for found in tmp_path.iterdir()) == ["log.txt", "metrics.jsonl", "tensorboard"]


def test_a_row_of_a_rollback_stays_as_long_as_the_run_has_it(tmp_path):
    writer, path = MetricsWriter(tmp_path, 100, MEANS), tmp_path / "metrics.jsonl"
    for number, step in ((1, 30), (2, 20), (3, 20)):
        writer.train(row(40))
        writer.rollback(RollbackRow(step, number, 45, 0, 9), 10)

    def of_rollbacks():
        return [(found["rollbacks"], found["step"]) for found in read_rows(path)]

    assert of_rollbacks() == [(1, 30), (2, 20), (3, 20)]
    writer.truncate_after(20, 2)  # A resume from a checkpoint that has two windows meets the third spike again.
    writer.rollback(RollbackRow(20, 3, 45, 0, 9), 10)
    assert of_rollbacks() == [(1, 30), (2, 20), (3, 20)]
    writer.close()


@pytest.mark.parametrize("damage", ["{]\n", "[1]\n", "{}\n", '{"step": null}\n', "7\n"])
def test_damage_within_the_file_is_named_and_kept_aside_and_the_good_lines_stay(tmp_path, damage, capsys):
    path = tmp_path / "metrics.jsonl"
    for number in (1, 2):
        text = f'{{"step": {number}}}\n{damage}{{"step": 3}}\n{{"step": 9}}\n'
        path.write_text(text)
        with pytest.raises(ValueError, match=re.escape(f"{path}, line 2")):
            read_rows(path)
        writer = MetricsWriter(tmp_path, 100, MEANS)
        writer.truncate_after(3)
        writer.close()
        aside = tmp_path / f"metrics.jsonl.damaged-{number}"
        assert aside.read_text() == text
        assert f"{path}: damaged in line 2; the file is kept as {aside}" in capsys.readouterr().err
        assert read_rows(path) == [{"step": number}, {"step": 3}]


def test_a_full_disk_costs_rows_and_does_not_end_the_run(tmp_path, monkeypatch, capsys):
    """A disk that takes half of a line and then is full leaves whole lines only."""
    writer, write, is_full = MetricsWriter(tmp_path, 100, MEANS), os.write, True

    def half(file, data):
        if not is_full:
            return write(file, data)
        if len(data) > 100:
            return write(file, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    writer.train(row(1))
    monkeypatch.setattr(os, "write", half)
    writer.train(row(2))
    writer.train(row(3))
    is_full = False
    writer.train(row(4))
    writer.close()
    assert [found["step"] for found in read_rows(tmp_path / "metrics.jsonl")] == [1, 4]
    assert len((tmp_path / "log.txt").read_text().splitlines()) == 2
    errors = capsys.readouterr().err
    for name in ("metrics.jsonl", "log.txt"):
        assert errors.count(f"{name}: can't be written: [Errno 28] No space left on device") == 1


@pytest.mark.parametrize("fails", ["start", "later"])
def test_tensorboard_that_can_not_be_written_does_not_end_the_run(tmp_path, monkeypatch, capsys, fails):
    def full(*_):
        raise tf.errors.ResourceExhaustedError(None, None, "the disk is full")

    if fails == "start":
        monkeypatch.setattr(EventFileWriter, "__init__", full)
    writer = MetricsWriter(tmp_path, 100, MEANS)
    writer.train(row(1))
    monkeypatch.setattr(EventFileWriter, "flush", full)
    writer.train(row(2))
    writer.train(row(3))
    writer.close()
    assert len(read_rows(tmp_path / "metrics.jsonl")) == 3
    assert capsys.readouterr().err.count("tensorboard: can't be written: the disk is full") == 1


def test_tensorboard_shows_the_same_numbers_and_forgets_what_a_resumed_run_repeats(tmp_path):
    writer = MetricsWriter(tmp_path, 100, MEANS)
    for step in (10, 20, 30):
        writer.train(row(step))
    writer.evaluation(evaluation(30))
    writer.close()
    resumed = MetricsWriter(tmp_path, 100, MEANS)
    resumed.truncate_after(20)
    resumed.train(row(25, means={"mlm_loss": 6.0}))
    resumed.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    found = [(event.step, event.value) for event in events.Scalars("train/mlm_loss")]
    assert found == [(10, 6.875), (20, 6.875), (25, 6.0)]
    tags = set(events.Tags()["scalars"])
    assert tags == (
        {f"train/{name}" for name in TRAIN_FIELDS} | {name.replace("_", "/", 1) for name in EVAL_FIELDS}
    ) - {"train/step", "train/mfu", "step"}


@pytest.mark.parametrize(
    ("name", "precision", "expected"),
    [
        *(("Tesla V100-SXM2-16GB", "fp16", 125.0), ("Tesla V100-PCIE-32GB", "fp16", 112.0)),
        *(("Tesla V100-SXM2-16GB", "bf16", None), ("Tesla V100-SXM2-16GB", "fp32", 15.7)),
        *(("NVIDIA A100-SXM4-80GB", "bf16", 312.0), ("NVIDIA A100-PCIE-40GB", "fp32", 156.0)),
        *(("NVIDIA H100 80GB HBM3", "bf16", 989.5), ("NVIDIA H100 PCIe", "fp16", 756.0)),
        *(("NVIDIA H200", "bf16", 989.5), ("NVIDIA H200 NVL", "bf16", 835.5), ("Some CPU", "fp32", None)),
    ],
)
def test_peak_rates_of_known_gpus(name, precision, expected):
    assert cluster.peak_tflops(name, precision) == expected


@pytest.mark.slow
def test_peak_memory_counts_what_was_held_in_gb_of_1e9_bytes():
    assert not tf.config.get_visible_devices("GPU")
    before = devices.peak_memory_gb()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak, now = (int(status[name].split()[0]) * 1024 / 1e9 for name in ("VmHWM", "VmRSS"))
    assert before == pytest.approx(peak, rel=0.02)
    held = np.ones(int((before - now + 0.2) * 1e9), np.uint8)
    assert devices.peak_memory_gb() - before > 0.15
    del held


@pytest.mark.parametrize(
    ("value", "words"),
    [
        *((4.25, "4.2"), (371.14, "371"), (8110.4, "8110"), (47501, "47.5k"), (123456, "123k"), (1e7, "10.0M")),
        (math.nan, "-"),
    ],
)
def test_a_rate_is_short(value, words):
    line = rows.short_train_line(row(samples_per_sec=value), 100, MEANS, 45)
    assert f"  {words} samples/s  " in line
