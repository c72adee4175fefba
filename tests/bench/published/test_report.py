"""What a published table reports: figures by hand, runs that fail or do not fit, an interruption, picture and page."""

import dataclasses
import html
import json
import re

import pytest

from tftrain.bench import __main__ as program
from tftrain.bench import host
from tftrain.bench.published import chart, rows, scale, table
from tftrain.bench.published.scale import LocalMachine
from tftrain.bench.report import render
from tftrain.bench.table import RowOutcome, TableRow
from tftrain.bench.tables import TABLES
from tftrain.bench.training import run
from tftrain.bench.training.alternation import Compared
from tftrain.bench.training.run import Figures
from tftrain.bench.worker import MeasureError
from tftrain.plan.system import Constants

PUBLISHED = rows.by_table()


FIGURES = [
    ("large_precision/01", "published_gb", 69.4 * 2**30 / 1e9),  # the source counts GiB
    ("large_precision/01", "published_samples_per_sec_per_gpu", 32.5),
    ("large_precision/04", "published_gb_change_pct", 100 * (49.0 / 69.4 - 1)),
    ("large_precision/04", "published_speed_change_pct", 100 * (76.34 / 32.5 - 1)),
    # Seconds an iteration become samples of a GPU.
    ("gpt_contenders/02", "published_samples_per_sec_per_gpu", 2048 / 134.02 / 384),
    ("gpt_contenders/02", "published_speed_change_pct", 100 * (143.31 / 134.02 - 1)),
    # What is held out is missing, and what did not fit says so.
    *(("large_fused/02", name, None) for name in ("published_gb", "published_samples_per_sec_per_gpu")),
    *(("gpt_low_tp/08", name, "OOM") for name in ("published_gb", "planned_gb")),
    *((name, "published_gb_change_pct", None) for name in ("large_fused/02", "gpt_low_tp/08")),
    # How a row differs from the base.
    ("large_precision/03", "settings", "precision=fp16 jit_compile=true"),
    ("gpt_launch_blocking/02", "settings", "the same settings"),
]


@pytest.mark.parametrize(("row", "figure", "expected"), FIGURES)
def test_figures_are_those_of_the_file(row, figure, expected):
    found = table.reference(PUBLISHED[row.partition("/")[0]])[row][figure]
    assert found == (pytest.approx(expected) if isinstance(expected, float) else expected)


def test_a_planned_change_is_that_of_planned_figures_and_the_base_has_none():
    found = table.reference(PUBLISHED["large_precision"])
    first, fourth = found["large_precision/01"], found["large_precision/04"]
    assert "published_gb_change_pct" not in first
    assert first["settings"].endswith("grad_accum_steps=1 precision=fp32")
    planned = 100 * (fourth["planned_gb"] / first["planned_gb"] - 1)
    assert fourth["planned_gb_change_pct"] == pytest.approx(planned)


@pytest.mark.parametrize("form", ["csv", "md"])
def test_every_table_can_be_reported_as_it_is_planned(form):
    for name, published in PUBLISHED.items():
        found = table.reference(published)
        shown = render(TABLES[name], [RowOutcome(row, [record]) for row, record in found.items()], form)
        assert all(row in shown for row in found)
        assert ("OOM" in shown) == any("OOM" in record.values() for record in found.values()), name


@pytest.fixture
def bench(monkeypatch, tmp_path, capsys):
    """Runs the program on a table; fp16 without XLA fails. Returns exit code, stdout, stderr and the runs' flags."""
    runs = []

    def fake(given, ranks, steps):
        runs.append(given)
        assert ranks <= 2
        if "--precision=fp16" in given and "--jit_compile=false" in given:
            raise MeasureError("no such luck")
        part = 2 if "--precision=fp16" in given else 1
        return Figures([2.0 / part, 4.0 / part, 3.0 / part], 8.0 * part, 3.0 / part, 1, 1.0, 0, {}, 0)

    def start(name, *given, gb=8.0, np=2):
        machine = LocalMachine(np, gb, 40e9, Constants(reserve_gb=0.6), False)
        monkeypatch.setattr(scale, "inspect", lambda ranks, stages: machine)
        runs.clear()
        code = program.main(["bench", f"--table={name}", f"--np={np}", f"--output_dir={tmp_path}", *given])
        said = capsys.readouterr()
        return code, said.out, said.err, list(runs)

    monkeypatch.setattr(run, "measure", fake)
    return start


@pytest.fixture
def bench_without_pictures(bench, monkeypatch):
    """Runs the program likewise; pictures and pages, which take longest, are not drawn."""
    for name in PUBLISHED:
        monkeypatch.setitem(TABLES, name, dataclasses.replace(TABLES[name], draw=None, page=None))
    return bench


def records(out):
    return {record["row"].partition("/")[2]: record for record in json.loads(out)["records"]}


def test_measured_planned_and_published_figures_stand_side_by_side(bench, tmp_path):
    code, out, err, _ = bench("large_precision", "--format=json")
    assert code == 1
    found = records(out)
    assert list(found) == ["01", "02", "03", "04", "05"]
    third = found["03"]
    assert (third["peak_gb"], third["samples_per_sec"], third["status"]) == (1.5, 16.0, "measured")
    assert (third["peak_gb_change_pct"], third["samples_per_sec_change_pct"]) == (-50, 100)
    assert third["step_spread_pct"] == pytest.approx(100 * 1 / 3)  # quartiles of 1, 1.5 and 2 seconds
    assert third["published_gb"] == pytest.approx(45.8 * 2**30 / 1e9)
    assert third["planned_gb"] > 0
    assert "samples_per_sec_change_pct" not in found["01"]
    assert "scale 1/8 (" in err
    assert third["scale"].startswith("1/8 (")
    assert found["02"]["status"] == "failed: no such luck"
    assert found["02"]["published_gb"] == pytest.approx(45.6 * 2**30 / 1e9)
    assert "large_precision/02 failed: no such luck" in err
    assert "memory: 3 of 3 pairs of rows are in the published order" in err
    assert (tmp_path / "large_precision.png").read_bytes().startswith(b"\x89PNG")


def test_rows_that_scale_to_one_run_share_it(bench_without_pictures):
    _, out, _, runs = bench_without_pictures("a64fx_30b_scaling", "--format=json")
    found = records(out)
    assert len(found) == 11
    assert len(runs) < 11
    others = [tuple(run) for run in runs if run != runs[0]]  # the first run is the base's, which is repeated
    assert len(set(others)) == len(others) > 0
    third = found["03"]  # row 02 on more nodes
    assert third["note"].endswith("the same run as a64fx_30b_scaling/02")
    assert third["samples_per_sec"] == found["02"]["samples_per_sec"]
    assert third["planned_samples_per_sec_per_gpu"] < found["02"]["planned_samples_per_sec_per_gpu"]


@pytest.mark.parametrize(
    ("peaks", "speeds", "expected"),
    [
        ((2.0, 2.2), (8.0, 12.0), (100 * 0.2 / 2.1, 40.0)),
        ((2.0,), (8.0,), (None, None)),  # one run of the base says nothing about its spread
    ],
)
def test_the_spread_of_the_base_is_the_range_of_its_runs_in_percent(peaks, speeds, expected):
    own, *base = (
        Figures([0.1, 0.1], speed, peak, 0, 1.0, 0, {}, 0)
        for peak, speed in zip((3.0, *peaks), (20.0, *speeds), strict=True)
    )
    found = table.run_record(Compared(TableRow("other", "group"), (own,), tuple(base)), is_base=False)
    assert (found.get("base_peak_spread_pct"), found.get("base_spread_pct")) == pytest.approx(expected)
    assert found["samples_per_sec_change_pct"] > 0
    assert (found["base_spread"] is None) == (expected[1] is None)  # table levers has these columns


def test_a_row_that_can_not_fit_is_not_started_the_rest_go_on_and_it_is_tried_again(bench_without_pictures):
    code, out, _, runs = bench_without_pictures("large_fused", "--format=json", "--scale=0.125", gb=0.1)
    said = {name: record["status"] for name, record in records(out).items()}
    assert (code, runs) == (0, [])
    needs = {
        name: float(re.fullmatch(r"does not fit here: (.*) of 0.10 GB a rank", words)[1])
        for name, words in said.items()
    }
    enough = sum(needs.values()) / len(needs)
    code, out, _, runs = bench_without_pictures("large_fused", "--format=json", "--scale=0.125", "--resume", gb=enough)
    started = {name for name, record in records(out).items() if record["status"] == "measured"}
    assert code == 0
    assert started == {name for name, need in needs.items() if need <= enough}
    assert 0 < len(started) == len(runs) < len(needs)  # the base is one of those that need too much


def test_an_interrupted_table_goes_on_with_the_rows_that_are_missing(bench_without_pictures, monkeypatch):
    whole, seen = run.measure, []

    def interrupted(given, ranks, steps):
        seen.append(given)
        if len(seen) == 6:  # the base, three rows, the base, and one row more
            raise KeyboardInterrupt
        return whole(given, ranks, steps)

    monkeypatch.setattr(run, "measure", interrupted)
    assert bench_without_pictures("large_memory_optimization")[0] == 130
    monkeypatch.setattr(run, "measure", whole)
    code, out, _, runs = bench_without_pictures("large_memory_optimization", "--resume", "--format=json")
    assert code == 0
    assert [record["status"] for record in json.loads(out)["records"]] == ["measured"] * 6
    settings = [next(flag for flag in given if flag.startswith("--memory_optimization")) for given in runs]
    rest = ["--memory_optimization=scheduling", "--memory_optimization=swapping"]
    assert settings == ["--memory_optimization=none", *rest, "--memory_optimization=none"]


def test_rows_of_another_scale_or_other_ranks_are_not_mixed(bench_without_pictures, tmp_path):
    assert bench_without_pictures("pretrain_192", "--scale=0.125")[0] == 0
    kept = (tmp_path / "pretrain_192.jsonl").read_bytes()
    for given, np in (("--scale=0.25", 2), ("--scale=0.125", 1)):
        code, _, err, runs = bench_without_pictures("pretrain_192", given, "--resume", np=np)
        assert (code, runs) == (2, [])
        assert "--resume=true" in err
        assert "was measured with --scale=0.125 --np=2" in err
        assert (tmp_path / "pretrain_192.jsonl").read_bytes() == kept
    code, _, err, runs = bench_without_pictures("pretrain_192", "--scale=0.125", "--resume")
    assert (code, runs) == (0, [])
    assert "already measured" in err


def test_sweeps_are_planned_only_unless_rows_are_asked_for(bench_without_pictures):
    code, out, err, runs = bench_without_pictures("sweep_single_node", "--format=json")
    assert (code, runs) == (0, [])
    assert "planned only" in err
    found = records(out)
    assert len(found) == 720
    assert all(record["status"] == "planned only" for record in found.values())
    given = ("--rows=0001,0002", "--resume")
    assert len(bench_without_pictures("sweep_single_node", *given)[3]) == 3  # the base twice


def test_the_page_needs_no_other_file_and_holds_every_row_with_its_note(bench, tmp_path):
    bench("large_precision")
    page = (tmp_path / "large_precision.html").read_text()
    assert not re.search(r"https?://|<script|<link|src=\"(?!data:)|url\(", page)
    for each in PUBLISHED["large_precision"]:
        number = each.name.removeprefix("large_precision/")
        assert page.count(f"<b>{number}</b>") == 2  # a bar of memory and one of speed
        assert page.count(f">large_<wbr>precision/<wbr>{number}<") == 2  # figures and notes
        assert each.note in html.unescape(page)
    assert "failed: no such luck" in page
    assert "Memory: 3 of 3 pairs" in page
    assert "--synthetic_data" in page


def test_bars_carry_their_figure_and_its_change():
    record = {"planned_gb": 31.26, "planned_gb_change_pct": -35.6, "published_gb": "OOM", "peak_gb": None}
    assert chart.label_of_bar(record, "planned_gb", ".1f") == "31.3 (-36%)"
    assert chart.label_of_bar(record, "published_gb", ".1f") == "OOM"
    assert chart.label_of_bar(record, "published_samples_per_sec_per_gpu", ".3g") == "-"
    assert chart.label_of_bar(record, "peak_gb", ".2f") == ""
    speed = {"planned_samples_per_sec_per_gpu": 2.5, "planned_speed_change_pct": 12.4}
    assert chart.label_of_bar(speed, "planned_samples_per_sec_per_gpu", ".3g") == "2.5 (+12%)"


def test_the_base_beside_a_bar_is_the_one_that_its_change_is_against():
    record = {"peak_gb": 1.2, "peak_gb_change_pct": -20.0, "planned_gb": "OOM", "published_gb": 40.0}
    assert chart.base_of(record, "peak_gb") == pytest.approx(1.5)
    assert chart.base_of(record, "planned_gb") is chart.base_of(record, "published_gb") is None


def test_rows_may_be_named_without_their_table():
    assert [row.name for row in TABLES["deeper"].matching("0[12]")] == ["deeper/01", "deeper/02"]
    assert next(row.name for row in TABLES["large_fused"].matching("large_fused/*")) == "large_fused/01"


def test_all_tables_run_one_after_the_other_with_the_rows_that_match(bench, tmp_path):
    code, out, _, runs = bench("all", "--rows=gpt_zero_stage/02,pretrain_192/*")
    assert code == 0
    lines = [line.split(",")[0] for line in out.splitlines() if "/" in line]
    assert lines == ["pretrain_192/01", "gpt_zero_stage/02"]
    assert len(runs) == 1 + 3
    assert {path.name for path in tmp_path.glob("*.html")} == {"pretrain_192.html", "gpt_zero_stage.html"}


def test_a_table_that_can_not_be_reported_does_not_keep_the_others_from_it(bench, monkeypatch, tmp_path):
    def broken(shown, outcomes, form):
        if shown.name == "pretrain_192":
            raise ValueError("an odd figure")
        return render(shown, outcomes, form)

    monkeypatch.setattr(program, "render", broken)
    code, _, err, _ = bench("all", "--rows=gpt_zero_stage/02,pretrain_192/*")
    assert code == 1
    assert "an odd figure" in err
    assert {path.name for path in tmp_path.glob("*.html")} == {"gpt_zero_stage.html"}


def test_ranks_share_the_memory_that_is_free(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(host, "available_memory_gb", lambda: 20.0)
    bare = scale.inspect(None)
    assert (bare.ranks, bare.gpu) == (4, False)
    assert bare.gb == pytest.approx(0.9 * 20 / 4)
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 81000\necho 80000\n")
    tool.chmod(0o755)
    assert (scale.inspect(None).ranks, scale.inspect(None).gpu) == (2, True)
    assert scale.inspect(2).gb == pytest.approx(80000 * 2**20 / 1e9)
    assert scale.inspect(4).gb == pytest.approx(80000 * 2**20 / 1e9 / 2)
