"""From outcomes to reports, and from an interrupted run to a finished one."""

import json

import pytest

from tftrain.bench import __main__ as program
from tftrain.bench.report import FinishedRows, render, spread
from tftrain.bench.table import BenchTable, RowOutcome, TableRow, columns, each_row
from tftrain.bench.tables import TABLES
from tftrain.bench.worker import MeasureError


def measure(group, _config, _say):
    for row in group:
        if row.settings.get("fails"):
            yield RowOutcome(row.name, [], "it broke")
        else:
            yield RowOutcome(row.name, [{"name": row.name, "speed": 1.25, "unseen": 3}])


def toy(*rows, measure=measure):
    return BenchTable("toy", "a toy", columns("name speed:1"), rows, measure)


PAIR = (TableRow("a", "first"), TableRow("b", "second"))


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs the program on a toy table and returns exit code, stdout and stderr."""

    def run_table(table, *flags):
        monkeypatch.setitem(TABLES, "toy", table)
        code = program.main(["bench", "--table=toy", f"--output_dir={tmp_path}", *flags])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run_table


def test_csv_has_the_columns_and_a_line_for_each_record(run, tmp_path):
    code, out, _ = run(toy(*PAIR))
    assert (code, out) == (0, "name,speed\na,1.2\nb,1.2\n")
    assert (tmp_path / "toy.csv").read_text() == out


def test_md_and_json_hold_the_same_figures(run):
    assert run(toy(*PAIR), "--format=md")[1] == "| name | speed |\n| --- | ---: |\n| a | 1.2 |\n| b | 1.2 |\n"
    found = json.loads(run(toy(*PAIR), "--format=json")[1])
    assert found["records"][0] == {"name": "a", "speed": 1.25, "unseen": 3}


def test_a_row_that_fails_says_why_and_the_rest_go_on(run):
    code, out, err = run(toy(TableRow("bad", "first", {"fails": True}), TableRow("good", "second")))
    assert code == 1
    assert out == "name,speed\ngood,1.2\n"
    assert "bad failed: it broke" in err


def test_a_row_that_cannot_be_measured_says_why_and_the_rest_of_its_group_go_on(run):
    def records(row, _config, _say):
        if row.name == "bad":
            raise MeasureError("no process")
        return [{"name": row.name, "speed": 1.0}]

    code, out, err = run(toy(TableRow("bad", "one"), TableRow("good", "one"), measure=each_row(records)))
    assert (code, out) == (1, "name,speed\ngood,1.0\n")
    assert "bad failed: no process" in err


def test_an_error_of_a_whole_group_is_that_of_the_rows_that_are_left(run):
    def one_and_an_error(group, _config, _say):
        yield RowOutcome(group[0].name, [{"name": group[0].name, "speed": 1.0}])
        raise MeasureError("no process")

    rows = (TableRow("a", "one"), TableRow("b", "one"), TableRow("c", "one"))
    code, out, err = run(toy(*rows, measure=one_and_an_error))
    assert (code, out) == (1, "name,speed\na,1.0\n")
    assert "b failed: no process" in err
    assert "c failed: no process" in err
    assert "a failed" not in err


def test_a_missing_figure_is_a_dash():
    assert render(toy(*PAIR), [RowOutcome("a", [{"name": "a", "speed": None}])], "csv") == "name,speed\na,-\n"


def interrupted(group, config, say):
    if group[0].name == "b":
        raise KeyboardInterrupt
    yield from measure(group, config, say)


def refused(group, _config, _say):
    raise AssertionError(f"{group} is measured again")


def test_resume_measures_only_what_is_missing(run):
    assert run(toy(*PAIR, measure=interrupted))[0] == 130

    def only_b(group, config, say):
        assert [row.name for row in group] == ["b"]
        yield from measure(group, config, say)

    assert run(toy(*PAIR, measure=only_b), "--resume")[:2] == (0, "name,speed\na,1.2\nb,1.2\n")
    assert run(toy(*PAIR, measure=refused), "--resume")[0] == 0


def test_resume_measures_a_failed_row_again(run):
    assert run(toy(TableRow("a", "first", {"fails": True})))[0] == 1
    assert run(toy(TableRow("a", "first")), "--resume")[:2] == (0, "name,speed\na,1.2\n")


@pytest.mark.parametrize("flags", [["--extra_flags=--precision=bf16"], ["--np=2"], ["--working_set_mb=4.0"]])
def test_resume_refuses_rows_that_were_measured_with_other_flags(run, flags):
    assert run(toy(*PAIR), "--rows=a", *flags)[0] == 0
    code, out, err = run(toy(*PAIR), "--resume")
    assert (code, out) == (2, "")
    assert f"was measured with {flags[0]}, this run uses the defaults" in err
    assert run(toy(*PAIR), "--resume", *flags)[:2] == (0, "name,speed\na,1.2\nb,1.2\n")
    assert f"was measured with {flags[0]}" in run(toy(*PAIR), "--resume", "--cpu_threads=1")[2]


def test_resume_measures_a_group_as_a_whole(run):
    assert run(toy(TableRow("a", "one"), TableRow("b", "one", {"fails": True})))[0] == 1
    measured = []

    def noting(group, config, say):
        measured.extend(row.name for row in group)
        yield from measure(group, config, say)

    assert run(toy(TableRow("a", "one"), TableRow("b", "one"), measure=noting), "--resume")[0] == 0
    assert measured == ["a", "b"]


def test_without_resume_everything_is_measured_again(run):
    run(toy(*PAIR))
    assert run(toy(PAIR[0]))[1] == "name,speed\na,1.2\n"


def test_a_line_that_was_cut_off_is_not_a_finished_row(tmp_path):
    table = toy(*PAIR)
    store = FinishedRows(table, tmp_path, resume=False)
    for name in "ab":
        store.add(RowOutcome(name, [{"name": name}]))
    store.path.write_text(store.path.read_text()[:-5])
    again = FinishedRows(table, tmp_path, resume=True)
    assert [again.has(name) for name in "ab"] == [True, False]
    again.add(RowOutcome("b", []))
    assert len(store.path.read_text().splitlines()) == 2


def test_spread_is_the_median_between_the_quartiles():
    assert spread([5.0, 1.0, 2.0, 4.0, 3.0]) == {"min": 1.0, "low": 2.0, "median": 3.0, "high": 4.0, "max": 5.0}
    assert spread([1.0, 2.0]) == {"min": 1.0, "low": 1.25, "median": 1.5, "high": 1.75, "max": 2.0}
    assert set(spread([7.0]).values()) == {7.0}
