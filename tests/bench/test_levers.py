"""Every row's flags are ones that a run accepts, and what was measured reaches report and picture."""

import pytest

from tftrain.bench import __main__ as program
from tftrain.bench import host
from tftrain.bench import levers as table
from tftrain.bench.config import BenchConfig
from tftrain.bench.levers import BASE, BERT_BASE, MODELS, ROWS, model_name
from tftrain.bench.training import run
from tftrain.bench.training.run import Figures
from tftrain.bench.worker import ROOT, MeasureError
from tftrain.cli import flags
from tftrain.config.train import TrainConfig

# Kinds of memory of a run, in bytes.
MEMORY = {"baseline": 7e8, "weights": 4e8, "master_weights": 0, "moments": 6e8, "checkpoint_copy": 0}
MEMORY |= {"gradients": 2e8, "accumulation": 1e8, "communication": 1e8, "activations": 4e8}


def configured(row, model=BERT_BASE, **changed):
    given = [*table.run_flags(row, model, BenchConfig(**changed)), *run.QUIET, "--output_dir=unused"]
    return flags.parse(TrainConfig, ["tftrain.run", *given]).resolve(table.RANKS)


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)  # where runs start, and flagfiles lie


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_is_accepted_and_has_the_same_global_batch(row, model):
    assert configured(row, model).batch.global_batch_size == 16


def test_every_row_is_another_configuration():
    assert len({configured(row) for row in ROWS}) == len(ROWS)


def test_the_model_is_bert_base_where_memory_holds_it_on_all_ranks(monkeypatch):
    monkeypatch.setattr(host, "available_memory_gb", lambda: 22.0)
    assert (model_name(4), model_name(8)) == (BERT_BASE, "small")
    assert configured(ROWS[0]).model.hidden_size == 768


def test_extra_flags_win():
    config = configured(ROWS[1], extra_flags="--hidden_size=96 --global_batch_size=32", cpu_threads=3)
    assert (config.model.hidden_size, config.batch.global_batch_size, config.compute.cpu_threads) == (96, 32, 3)


@pytest.fixture
def measured(monkeypatch):
    """Measures by name instead: bf16 is half as large and twice as fast as the base, fp16 fails."""
    ranks, memory = [], {f"memory_{kind}_bytes": number for kind, number in MEMORY.items()}

    def fake(given, count, steps):
        ranks.append(count)
        if "--precision=fp16" in given:
            raise MeasureError("no such luck")
        part = 2 if "--precision=bf16" in given else 1
        return Figures([2.0 / part] * steps, 8.0 * part, 3.0 / part, 1, 1.0 / part, 0, memory, 0)

    monkeypatch.setattr(run, "measure", fake)
    return ranks


def test_report_and_picture_show_the_rows_that_were_measured(measured, tmp_path, capsys):
    code = program.main(["bench", "--table=levers", "--rows=base,bf16,fp16", f"--output_dir={tmp_path}", "--np=2"])
    said = capsys.readouterr()
    assert code == 1
    assert said.out.splitlines()[1:] == [
        "base,-,3.000,1,1.000,8.00,-,-,0.0,-,0.000",
        "bf16,--precision=bf16,1.500,1,0.500,16.00,-,100.0,0.0,-1.500,0.000",
    ]
    assert "fp16 failed: no such luck" in said.err
    assert (tmp_path / "levers.png").read_bytes().startswith(b"\x89PNG")
    assert measured == [2] * 4


def test_the_base_is_measured_and_not_shown_where_it_is_not_chosen(measured):
    (outcome,) = table.measure([row for row in ROWS if row.name == "bf16"], BenchConfig(), lambda _: None)
    assert outcome.records[0]["samples_per_sec_change"] == 100
    assert measured == [table.RANKS] * 3


def test_a_bar_of_memory_has_four_parts_that_are_the_peak_together():
    kinds = {f"memory_{kind}_bytes": number for kind, number in MEMORY.items()}
    assert table.parts({"peak_gb": 2.7, **kinds}) == pytest.approx([1.0, 0.4, 0.7, 0.6])


def test_bars_say_how_they_differ_from_the_base():
    record = {"peak_gb": 1.25, "peak_gb_change": -0.5, "samples_per_sec": 9.06, "samples_per_sec_change": 12.4}
    assert table.label(record, "peak_gb", 2) == "1.25 (-0.50)"
    assert table.label(record, "samples_per_sec", 1) == "9.1 (+12%)"
    assert table.label({"row": BASE, "peak_gb": 1.25, "peak_gb_change": None}, "peak_gb", 2) == "1.25"
