"""Pages of HTML: what a file of a stranger says stays text."""

import dataclasses
import json
from html.parser import HTMLParser

import pytest

from tftrain import report
from tftrain.bench import page
from tftrain.bench.table import BenchTable, Column, RowOutcome
from tftrain.config.train import TrainConfig
from tftrain.page.bars import BarSeries, Panel
from tftrain.plan import __main__ as plan

MARKUP = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'><b x='"
KNOWN = {
    *("html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "div", "span", "section", "table", "tr"),
    *("thead", "tbody", "th", "td", "details", "summary", "code", "small", "br", "wbr", "b", "i", "svg", "line"),
    *("text", "g", "defs", "path", "clippath", "use", "rect", "img"),
}


class Page(HTMLParser):
    """Collects what is not known, and the policy of the page."""

    def __init__(self, path):
        super().__init__()
        self.unknown, self.policy = set(), ""
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        names = dict(attrs)
        if tag not in KNOWN or any(name.startswith("on") or "<" in name for name in names):
            self.unknown.add((tag, *names))
        if (tag == "b" and "x" in names) or (tag == "img" and not names["src"].startswith("data:image/png;base64,")):
            self.unknown.add((tag, *names))
        if names.get("http-equiv") == "Content-Security-Policy":
            self.policy = names["content"]


def check(path):
    found = Page(path)
    assert not found.unknown
    assert "default-src 'none'" in found.policy
    assert "script-src" not in found.policy


def run_folder(folder, rows, **about):
    config = {name: dict(value) for name, value in dataclasses.asdict(TrainConfig()).items()}
    content = {"config": config, "host": "h", "device": "d", "ranks": 1, "packages": {}} | about
    (folder / "config.json").write_text(json.dumps(content, default=str))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


ROW = {
    **{"step": 3, "loss": 2.5, "grad_norm": 1.0, "learning_rate": 0.1, "real_tokens_per_sec": 9.0},
    **{"memory_peak_bytes": 10**9, "memory_rank": 0, "memory_other_bytes": 10**8, "planned_peak_bytes": 10**9},
    **{"spike_loss": 3.0, "spike_loss_zscore": 4.0, "spike_grad_norm": 5.0, "eval_mlm_loss": 2.0, "eval_accuracy": 0.5},
    **{"rollbacks": 1, "rollback_spike_step": 3, "rollback_first_position": 1, "rollback_last_position": 2},
}


@pytest.mark.parametrize("name", ROW)
@pytest.mark.parametrize(
    "value", [MARKUP, [MARKUP], {MARKUP: MARKUP}, 10**400, None], ids=lambda value: type(value).__name__
)
def test_a_row_of_metrics_stays_text(request, tmp_path, capsys, name, value):
    run_folder(tmp_path, [ROW, ROW | {name: value}])
    if name == "step":  # Values at the axis of steps can become text of a picture.
        request.getfixturevalue("drawn_pictures")
    if report.main(["report", str(tmp_path)]) == 0:
        check(tmp_path / "report.html")
    else:
        assert value == 10**400
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.usefixtures("drawn_pictures")
def test_names_of_metrics_stay_text(tmp_path, capsys):
    names = [form.format(MARKUP) for form in ("eval_{}", "eval_{}_loss", "memory_{}_bytes", "planned_{}_bytes", "{}")]
    run_folder(tmp_path, [ROW | dict.fromkeys(names, 1.5)])
    assert report.main(["report", str(tmp_path)]) == 0, capsys.readouterr().err
    check(tmp_path / "report.html")


@pytest.mark.parametrize("name", ["host", "device", "packages", "config", "a flag", "ranks"])
def test_the_configuration_of_a_run_stays_text(tmp_path, capsys, name):
    about = {name: MARKUP}
    if name == "packages":
        about = {"packages": {"tensorflow": MARKUP, "horovod": [MARKUP]}}
    if name == "a flag":
        about = {"config": {"run": {"max_steps": 5, MARKUP: MARKUP}, "model": {"hidden_size": MARKUP}}}
    run_folder(tmp_path, [ROW], **about)
    if report.main(["report", str(tmp_path)]) == 0:
        check(tmp_path / "report.html")
    else:
        assert capsys.readouterr().err.count("\n") == 1


def test_the_page_of_a_table_of_measurements_keeps_text(tmp_path):
    panel = Panel(MARKUP, (BarSeries("time", MARKUP, figure="why"), BarSeries("other", MARKUP)), ".1f", " s")
    columns = (Column("row"), Column(MARKUP), Column("time", 1))
    table = BenchTable(MARKUP, MARKUP, columns, (), None, panels=(panel,), chart_note=MARKUP)
    records = [
        {"row": MARKUP, MARKUP: MARKUP, "time": 1.0, "other": 2.0},
        {"row": "b", "why": MARKUP, "other": 1.0},
    ]
    page.write(table, [RowOutcome("a", records), RowOutcome(MARKUP, [], MARKUP)], tmp_path / "x.html")
    check(tmp_path / "x.html")


@pytest.mark.parametrize("flags", [["--micro_batch_size=64"], ["--search", "--global_batch_size=64"]], ids=str)
def test_the_page_of_a_plan_has_the_policy(tmp_path, flags):
    given = ["--cluster=a100_80gb", "--nodes=1", "--max_steps=10", f"--html={tmp_path / 'x.html'}", *flags]
    plan.main(["plan", *given])
    check(tmp_path / "x.html")
