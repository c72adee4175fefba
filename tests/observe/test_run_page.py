"""The page of a run: what it shows, and that it is legible in a browser."""

import json
import re
import shutil

import pytest

from tests.page import browser
from tftrain import report as program
from tftrain.observe import goodput, run_page
from tftrain.observe.metrics import read_rows
from tftrain.page import lines
from tftrain.page.lines import Curve

pytestmark = pytest.mark.usefixtures("drawn_pictures")


@pytest.fixture(scope="module")
def folder(ramped, tmp_path_factory):
    """A run with more rows than its steps gave, and a spike."""
    copy = tmp_path_factory.mktemp("page") / "run"
    shutil.copytree(ramped, copy)
    rows = read_rows(copy / "metrics.jsonl")
    (last,) = [row for row in rows if row["step"] == 5 and "loss" in row]
    spike = {"spike_loss": 9.0, "spike_loss_zscore": 7.5, "spike_grad_norm": 4.0, "spike_grad_norm_zscore": 1}
    spike["step"] = 3
    evaluations = [{"step": 5 * n, "eval_mlm_loss": 8 - 0.1 * n, "eval_unigram_nats": 6.5} for n in range(1, 9)]
    more = [last | {"step": 5 + n, "loss": last["loss"] - 0.01 * n} for n in range(1, 3000)]
    (copy / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, spike, *evaluations, *more]))
    return copy


def test_a_run_ends_with_its_page_and_its_goodput(ramped):
    text = re.sub("<[^>]*>", "", (ramped / run_page.NAME).read_text())
    (start,) = goodput.read(ramped)
    assert (start.first, start.step) == (0, 5)
    assert {"start", "compile", "steps", "data", "checkpoints"} <= start.seconds.keys()
    assert f"goodput {goodput.totals([start])['steps'] / sum(start.seconds.values()):.1%}" in text
    assert "step 5 of 5" in text
    assert "--batch_rampup" in text


@pytest.mark.parametrize("scheme", browser.SCHEMES)
def test_the_page_is_legible(folder, tmp_path_factory, scheme):
    chromium = browser.chromium(tmp_path_factory.mktemp("chromium"))
    page = run_page.write(folder)
    found = browser.layouts(chromium, {"run": page}, scheme, tmp_path_factory.mktemp("harness") / "harness.html")
    browser.assert_legible(found)
    text = page.read_text()
    titles = ["Loss", "Throughput, all ranks", "Norm of the gradient, before clipping", "Learning rate", "Goodput"]
    assert all(f">{title}<" in text for title in (*titles, "Spikes: 1"))
    assert "held-out, 7.2 at the end" in text
    assert len(text) < 300_000


def test_the_loss_of_training_is_the_one_that_evaluations_have(folder, tmp_path):
    rows = [{"step": 2, "loss": 9.0, "mlm_loss": 7.25, "nsp_loss": 1.75}, {"step": 2, "eval_mlm_loss": 7.5}]
    shutil.copy(folder / "config.json", tmp_path)
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = run_page.write(tmp_path).read_text()
    assert "held-out, 7.5 at the end" in text
    assert "training, 7.25 at the end" in text


def test_the_program_makes_the_page_and_names_what_it_can_not_read(folder, tmp_path, capsys):
    (folder / run_page.NAME).unlink()
    assert program.main(["report", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder / run_page.NAME}\n"
    assert program.main(["report", str(tmp_path), str(folder)]) == 1
    assert f"report: {tmp_path / 'metrics.jsonl'}: No such file" in capsys.readouterr().err
    shutil.copy(folder / "metrics.jsonl", tmp_path)
    (tmp_path / "config.json").write_text('{"config": {"run": {"max_steps": "many"}}}')
    assert program.main(["report", str(tmp_path)]) == 1
    assert f"{tmp_path / 'config.json'}: expected what a run writes there" in capsys.readouterr().err


@pytest.mark.parametrize(
    "points",
    [
        [(3, 2.0)],
        [(0, 0.0), (1, 0.0)],
        [(0, -5e-7), (9, 5e-7)],
        [(5, 1e6), (6, 1e6 + 1)],
        [(n, n % 7) for n in range(5000)],
    ],
    ids=lambda points: str(points[:2]),
)
@pytest.mark.parametrize("from_zero", [False, True])
def test_curves_have_a_legend_and_the_colours_of_the_page_and_keep_their_extremes(points, from_zero):
    (drawn,) = lines.chart("a < b", "nats", [Curve("x", points, "measured")], from_zero=from_zero)
    assert 'aria-label="a &lt; b"' in drawn["svg"]
    assert drawn["legend"] == [(f"x, {lines.number(points[-1][1])} at the end", "measured")]
    assert "stroke: var(--measured)" in drawn["svg"]
    assert "#" not in re.sub('"(url\\()?#[^"]*"', "", drawn["svg"])  # no colour of its own
    thinned = lines.thinned(points)
    assert len(thinned) <= lines.MOST_POINTS
    assert thinned == sorted(thinned, key=lambda point: point[0])
    for most in (max, min):
        assert most(y for _, y in thinned) == most(y for _, y in points)


def test_no_curve_is_no_picture():
    assert lines.chart("loss", "nats", [Curve("x", [], "measured")]) == []
