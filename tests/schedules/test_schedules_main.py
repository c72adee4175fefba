"""The program: figures, files, and errors that name the flag."""

import json

import pytest
from matplotlib.image import imread

from tftrain.schedules import picture, trace
from tftrain.schedules.__main__ import main
from tftrain.schedules.simulation import TimedAction, bubble_share, idle_times, step_time
from tftrain.schedules.table import Action
from tftrain.schedules.table import ActionKind as Kind

PROGRAM = "tftrain.schedules"


def test_prints_time_bubble_and_activations_and_writes_picture_and_trace(capsys, tmp_path):
    given = ["--pipeline_parallel_size=4", "--micro_batches=16", "--forward=1", "--backward=2", "--transfer=0.01"]
    assert main([PROGRAM, *given, f"--output={tmp_path}/new/1f1b"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1f1b: 4 stages, 16 micro-batches"
    assert lines[2].split()[0] == "bubble"
    assert [line.split()[2] for line in lines[5:]] == ["4", "3", "2", "1"]
    assert imread(tmp_path / "new/1f1b.png").shape[1] == 1650
    events = json.loads((tmp_path / "new/1f1b.json").read_text())["traceEvents"]
    assert sum(event["ph"] == "X" and event["pid"] == 0 for event in events) == 4 * 16 * 2
    assert sum(event["ph"] == "X" and event["pid"] == 1 for event in events) == 3 * 16 * 2


def test_an_evaluation_has_no_backward(capsys):
    assert main([PROGRAM, "--forward_only", "--micro_batches=5"]) == 0
    out = capsys.readouterr().out
    assert "time of a step               8" in out
    assert "held" not in out


def test_stages_may_differ(capsys):
    assert main([PROGRAM, "--forward=1,1,1,2", "--backward=2,2,2,4", "--micro_batches=4"]) == 0
    # The slowest stage computes all micro-batches, after three forwards and before three backwards of the others.
    assert "time of a step              33" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--pipeline_schedule=dualpipe"], "--pipeline_schedule=dualpipe: expected one of 1f1b, gpipe"),
        (["--forward=1,2"], "--forward=1,2: expected a number above 0, or 4 of them, one for each stage"),
        (["--backward=nan"], "--backward=nan: expected a number above 0"),
        (["--backward_weights=3"], "--backward_weights=3: expected at most --backward=2 on every stage"),
        (["--virtual_pipeline_size=2"], "--virtual_pipeline_size=2: expected 1 with --pipeline_schedule=1f1b"),
        (["--pipeline_schedule=interleaved", "--virtual_pipeline_size=2", "--micro_batches=6"], "such as 4 or 8"),
        (["--transfer=-1"], "--transfer=-1.0: expected a number of at least 0"),
        (["--output=/dev/null/x"], "--output=/dev/null/x: expected a path to write to"),
        (["--stages=4"], "--stages=4: no such flag"),
    ],
)
def test_wrong_flags_are_refused(given, expected, capsys):
    with pytest.raises(SystemExit) as end:
        main([PROGRAM, *given])
    assert end.value.code == 2
    assert expected in capsys.readouterr().err


MEASURED = [
    TimedAction(0, Action(Kind.FORWARD, 0), 100.0, 101.0),
    TimedAction(1, Action(Kind.RECEIVE, 0, 0, "activation", 0, 0), 101.0, 101.25),
    TimedAction(1, Action(Kind.FORWARD, 0), 101.5, 102.0),
]


def test_measured_events_are_drawn_and_traced_alike(tmp_path):
    assert step_time(MEASURED) == 2.0
    assert idle_times(MEASURED) == [1.0, 1.5]
    assert bubble_share(MEASURED) == 2.5 / 4
    picture.draw({"measured": MEASURED}, tmp_path / "measured.png", "s")
    assert imread(tmp_path / "measured.png").mean() > 0.8  # a light background
    found = [event for event in trace.trace_events(MEASURED, 1e6) if event["ph"] == "X"]
    assert [(event["tid"], event["name"], event["ts"], event["dur"]) for event in found] == [
        (0, "F0", 0.0, 1e6),
        (1, "activation.of_micro_batch_0.after_part_0", 1e6, 0.25e6),
        (1, "F0", 1.5e6, 0.5e6),
    ]


def test_equal_events_give_equal_pictures(tmp_path):
    for name in ("a.png", "b.png"):
        picture.draw({"measured": MEASURED}, tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
