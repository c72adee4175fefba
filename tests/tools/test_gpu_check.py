"""tools/gpu_check.py without a GPU: its flags, the order of its parts, their tables and their time."""

import itertools
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tftrain.bench.config import run_config
from tools import gpu_check, gpu_forms, gpu_page, gpu_step
from tools.gpu_check import Page


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--minutes=0"], "--minutes=0.0: expected minutes above 0"),
        (["--dtypes=float32,int8"], "--dtypes: expected some of bfloat16, float16, float32, given int8"),
        (["--library=nowhere.so"], "--library=nowhere.so: no such file"),
        (["--platform=cpu", "--part=fast"], "--platform=cpu: expected --part=build or --part=right"),
        (["--part=slow"], "--part"),
        (["--part=right", "--rows=flash"], "--rows: expected --part=step|levers|models, given --part=right"),
    ],
)
def test_wrong_flags_are_named(flags, expected, capsys):
    with pytest.raises(SystemExit):
        gpu_check.parse(flags)
    assert expected in capsys.readouterr().err


@pytest.fixture
def commands(monkeypatch):
    """The commands that are run; of the parts, `right` fails."""
    seen = []

    def run(command):
        seen.append(command)
        return SimpleNamespace(returncode=int("--part=right" in command))

    monkeypatch.setattr(subprocess, "run", run)
    return seen


def test_parts_run_in_order_though_one_fails(commands, tmp_path):
    assert gpu_check.main([f"--tensorflow_python={tmp_path}", f"--output={tmp_path}"]) == 1
    parts = ["build", "right", "step", "levers", "models", "fast", "attention"]
    assert [command[2:] for command in commands] == [
        [f"--part={part}", f"--tensorflow_python={tmp_path}", f"--output={tmp_path}"] for part in parts
    ]
    pythons = [*[sys.executable] * 2, *[str(tmp_path)] * 3, *[sys.executable] * 2]
    assert [str(command[0]) for command in commands] == pythons


def test_a_library_that_was_built_elsewhere_is_taken(commands, tmp_path):
    library = tmp_path / "libtftrain_ffi.so"
    library.touch()
    gpu_check.main([f"--library={library}"])
    assert [command[2] for command in commands] == [f"--part={part}" for part in gpu_check.PARTS[1:]]
    assert all(f"--library={library}" in command for command in commands)


def page(folder, now=lambda: 0.0):
    return Page(folder / "new" / "part.csv", ["op", "us"], 100, "a GPU", now=now)


def test_a_table_has_its_device_and_grows_row_by_row(tmp_path):
    given = page(tmp_path)
    given.add(["a,b", 1.5])
    first = given.path.read_text()
    given.add(["c"])
    assert first == 'op,us,device\n"a,b",1.5,a GPU\n'
    assert given.path.read_text() == first + "c,,a GPU\n"
    assert not given.failed


def test_a_row_that_fails_is_in_the_table_and_the_others_go_on(tmp_path, capsys):
    given = page(tmp_path)
    given.fill([("one", lambda: 1 / 0), ("two", lambda: None), ("three", lambda: ["three", 3])])
    assert given.rows == [["one", "failed: division by zero"], ["three", 3]]
    assert given.failed
    assert "one: division by zero" in capsys.readouterr().err


def test_no_row_begins_at_the_end_of_the_time(tmp_path, capsys):
    clock = itertools.count(0, 20)
    given = page(tmp_path, now=lambda: next(clock))
    given.fill([(name, lambda name=name: [name]) for name in "abcdef"])
    assert given.rows == [["a"], ["b"], ["c"], ["d"]]  # at 20, 40, 60 and 80 seconds of 100
    assert "left out for lack of time, 2 rows: e, f" in capsys.readouterr().err


def test_the_system_ends_a_part_that_hangs(tmp_path):
    command = [sys.executable, gpu_check.__file__, "--part=step", "--minutes=0.001", f"--output={tmp_path}"]
    assert subprocess.run(command, stderr=subprocess.DEVNULL).returncode == -signal.SIGALRM


def test_a_part_says_what_it_lacks(monkeypatch, capsys):
    monkeypatch.setattr(signal, "alarm", lambda seconds: None)
    monkeypatch.setitem(sys.modules, "jax", None)
    assert gpu_check.main(["--part=right", "--platform=cpu"]) == 1
    assert "gpu_check: right: import of jax halted" in capsys.readouterr().err


def test_an_unknown_row_of_the_step_is_named(monkeypatch, capsys):
    monkeypatch.setattr(signal, "alarm", lambda seconds: None)
    assert gpu_check.main(["--part=step", "--rows=flash;fussed"]) == 1
    assert "--rows: expected some of flash; flash, each" in (error := capsys.readouterr().err)
    assert error.endswith("given fussed\n")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [-1, 0, 3, 12])
def test_operations_are_those_of_the_pairs_that_the_masks_leave(causal, window):
    form = gpu_forms.Form(2, 13, 3, 8, causal=causal, window=window)
    pairs = [
        (query, key)
        for query, key in itertools.product(range(13), repeat=2)
        if (not causal or key <= query) and (window < 0 or abs(key - query) <= window)
    ]
    assert form.operations("forward") == 2 * 3 * len(pairs) * 4 * 8
    assert form.operations("backward") == 2.5 * form.operations("forward")


@pytest.mark.parametrize("part", gpu_step.PARTS)
def test_the_rows_of_a_part_fit_in_its_time(part):
    *before, last = (row.seconds for row in gpu_step.PARTS[part].values())
    assert sum(before) <= (1 - gpu_page.LAST_ROW) * 60 * gpu_check.MINUTES
    assert sum([*before, last]) <= 60 * gpu_check.MINUTES


@pytest.mark.parametrize(("name", "row"), [each for rows in gpu_step.PARTS.values() for each in rows.items()])
def test_a_row_trains_with_flags_that_go_together_and_keeps_the_choices_of_xla(name, row, tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--of_the_user")
    flags, environ = gpu_step.arguments(row, tmp_path, name)
    config = run_config([*flags, f"--max_steps={row.steps}", "--output_dir=unused"])
    assert row.steps >= 10 + config.log.log_every  # a step after the tenth is logged
    first, *others = environ["XLA_FLAGS"].split()
    assert first == "--of_the_user"
    files = {flag.split("=")[1] for flag in others if "_dump_" in flag}
    assert len(files) == 2
    assert all(file.startswith(f"{tmp_path}/") for file in files)
    assert others[2:] == row.xla.split()


def test_graphs_that_are_recorded_again_are_counted_from_the_log():
    log = []
    for runs, changed, microseconds in ((0, 9, 90000), (1, 40, 1500), (1, 44, 2500), (7, 42, 2000)):
        log += [
            f"Update command buffer on device #0 by recoding command buffer cmd sequence after {runs} executions "
            f"since last update; num_commands=1150; updated_allocs={changed}",
            f"Updated command buffer in {microseconds} \u03bcs; num_commands=1150",
        ]
    assert gpu_step.recorded_graphs("\n".join(log), 6) == "0.5 a step, 42 addresses, 1.0 ms"
    assert gpu_step.recorded_graphs("\n".join(log[:2]), 6) == gpu_step.recorded_graphs("", 6) == ""
