"""--hooks: a user's class is called around the steps, sees what the run reports, may end it, and can't break it."""

import json
import os
import re
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.kit.ranks import ROOT
from tests.kit.runs import read_rows, train_alone
from tftrain import hooks
from tftrain.config.run import LimitsConfig
from tftrain.host.exit_codes import ExitCode
from tftrain.host.user_code import UserCodeError
from tftrain.observe.watchdog import Watchdog
from tftrain.parallel.mesh import Mesh
from tftrain.train.observers import Decision, TakenStep
from tftrain.train.user_hooks import UserHooks

# Notes each call, fails or stops where it is told to.
MODULE = """
import json, os
from tftrain.hooks import Hook

class Notes(Hook):
    fails = stops = None
    def __init__(self, context):
        super().__init__(context)
        self.note("init", context.first_step, context.ranks)
    def note(self, *what):
        with open(f"{self.context.config.run.output_dir}/notes{self.context.rank}", "a") as file:
            file.write(json.dumps([type(self).__name__, *what]) + "\\n")
        if what[:2] == self.fails:
            raise KeyError("mine")
        if what[:2] == self.stops:
            self.context.stop("enough")
    def before_step(self, step):
        self.note("before", step)
    def after_step(self, step, result):
        self.note("after", step, result.metrics())
    def on_evaluation(self, step, metrics):
        self.note("evaluation", step, dict(metrics))
    def on_checkpoint(self, step, folder):
        self.note("checkpoint", step, os.listdir(folder))
    def on_end(self, step):
        self.note("end", step)

class Fails(Notes):
    fails = ("after", 2)

class MustNotFail(Fails):
    required = True

class MustNotFailAfter4(MustNotFail):
    fails = ("after", 4)

class FailsAtOnce(Notes):
    fails = ("init", 0)

class StopsAfter4(Notes):
    stops = ("after", 4)

other = 5
"""


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Trains with hooks; returns the exit code and each hook's notes."""
    (tmp_path / "my_hooks.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)

    def train(*names, steps=4):
        flags = [f"--hooks=my_hooks:{name}" for name in names]
        flags += [f"--output_dir={tmp_path}", f"--max_steps={steps}", "--eval_every=2", "--checkpoint_every=2"]
        code = train_alone(*flags)
        lines = (tmp_path / "notes0").read_text().splitlines()
        return code, {name: [note for who, *note in map(json.loads, lines) if who == name] for name in names}

    return train


def test_a_hook_is_called_in_order_and_sees_what_the_run_reports_although_others_fail(trained, tmp_path, caplog):
    code, notes = trained("Fails", "FailsAtOnce", "Notes")
    assert code == ExitCode.DONE
    calls = [note[:2] for note in notes["Notes"]]
    steps = [[kind, step] for step in (1, 2, 3, 4) for kind in ("before", "after")]
    assert [call for call in calls if call[0] in ("init", "before", "after", "end")] == [
        ["init", 0],
        *steps,
        ["end", 4],
    ]
    assert [call for call in calls if call[0] == "evaluation"] == [["evaluation", 2], ["evaluation", 4]]
    assert [call for call in calls if call[0] == "checkpoint"] == [["checkpoint", 2], ["checkpoint", 4]]
    assert calls[-2:] == [["checkpoint", 4], ["end", 4]]
    assert all("manifest.json" in note[2] for note in notes["Notes"] if note[0] == "checkpoint")
    rows = read_rows(tmp_path)
    logged = {row["step"]: row for row in rows if "grad_norm" in row}
    for _, step, metrics in (note for note in notes["Notes"] if note[0] == "after"):
        for name in ("loss", "grad_norm", "learning_rate", "loss_scale"):
            assert metrics[name] == pytest.approx(logged[step][name], rel=1e-6)
    means = {note[1]: note[2] for note in notes["Notes"] if note[0] == "evaluation"}
    assert means[4]["mlm_loss"] == pytest.approx(
        next(row["eval_mlm_loss"] for row in rows if row["step"] == 4 and "eval_mlm_loss" in row)
    )
    assert "--hooks=my_hooks:Fails: after_step raised KeyError: 'mine'; it is not called again" in caplog.text
    assert "--hooks=my_hooks:FailsAtOnce: __init__ raised KeyError" in caplog.text
    assert "my_hooks.py" in caplog.text  # the traceback
    assert notes["Fails"][-1][:2] == ["after", 2]
    assert len(notes["FailsAtOnce"]) == 1


def observer_of(saves, *classes, watchdog=None):
    """Returns the observer of a run with these hooks."""
    run = SimpleNamespace(
        whole=SimpleNamespace(run=SimpleNamespace(hooks=[f"m:{each.__name__}" for each in classes])),
        mesh=Mesh(),
        task=SimpleNamespace(model=None),
        progress=SimpleNamespace(step=0),
    )
    watchdog = watchdog or Watchdog(0, LimitsConfig(), "")
    return UserHooks(run, classes, saves, SimpleNamespace(stop=print), watchdog)


def test_a_step_that_is_saved_again_keeps_its_number():
    seen = []

    class Steps(hooks.Hook):
        def on_checkpoint(self, step, folder):
            seen.append(step)

    saves = SimpleNamespace(newest=None)
    observer, first = observer_of(saves, Steps), Path("step_00000012")
    for saves.newest in (None, first, first, Path("step_00000012"), Path("step_00000012_again_2")):
        observer.between_steps(TakenStep(1), Decision())
    assert seen == [12, 12, 12]


def test_a_class_that_is_named_twice_is_called_twice():
    seen = []

    class Ends(hooks.Hook):
        def on_end(self, step):
            seen.append(self)

    observer_of(SimpleNamespace(newest=None), Ends, Ends).finish()
    assert len(set(seen)) == 2


def test_a_run_that_a_hook_stops_is_saved_and_goes_on(trained, caplog, tmp_path):
    code, notes = trained("MustNotFail", "Notes", steps=5)
    assert code == ExitCode.STOPPED
    assert "after_step raised KeyError" in caplog.text
    last = 3  # The request travels with the next step.
    assert notes["Notes"][-1] == ["end", last]
    assert (tmp_path / f"checkpoints/step_{last:08d}").is_dir()
    code, notes = trained("StopsAfter4", steps=5)
    assert (code, "enough" in caplog.text) == (ExitCode.STOPPED, True)
    assert (notes["StopsAfter4"][0], notes["StopsAfter4"][-1]) == (["init", last, 1], ["end", 5])
    # A stop before the last step costs no evaluation after it.
    code, notes = trained("Notes", steps=5)
    assert code == ExitCode.DONE
    lines = read_rows(tmp_path)
    assert [row["step"] for row in lines if "eval_mlm_loss" in row] == [2, 4, 5]
    assert [note[1] for note in notes["Notes"] if note[0] == "evaluation"] == [2, 5]
    trained("Notes", steps=5)
    assert len(read_rows(tmp_path)) == len(lines), "once"


def test_a_required_hook_that_raises_after_the_last_step_fails_the_run(trained, caplog, tmp_path):
    code, _ = trained("MustNotFailAfter4")
    assert code == ExitCode.FAILED
    assert "--hooks=my_hooks:MustNotFailAfter4: after_step raised KeyError: 'mine'; the run stops" in caplog.text
    assert (tmp_path / "checkpoints/step_00000004").is_dir()
    assert (tmp_path / "report.html").exists()


def test_a_required_hook_that_raises_at_the_end_fails_the_run():
    class MustEnd(hooks.Hook):
        required = True

        def on_end(self, step):
            raise KeyError

    assert observer_of(SimpleNamespace(newest=None), MustEnd).finish() == ExitCode.FAILED


def test_a_hook_has_the_limit_of_a_step(tmp_path, capfd):
    ended = threading.Event()

    class Hangs(hooks.Hook):
        def on_checkpoint(self, step, folder):
            assert ended.wait(20)

    watchdog = Watchdog(0, LimitsConfig(step_timeout_seconds=0.3), str(tmp_path), lambda code: ended.set())
    observer_of(SimpleNamespace(newest=Path("step_00000001")), Hangs, watchdog=watchdog).finish()
    line = "--hooks=m:Hangs: on_checkpoint took longer than --step_timeout_seconds=0.3 seconds"
    assert line in capfd.readouterr().err


def test_the_documented_class_does_what_the_guide_says(trained, tmp_path, monkeypatch):
    (code,) = re.findall(r"```python[^\n]*\n(.*?)```", (ROOT / "docs/hooks.md").read_text(), re.DOTALL)
    (tmp_path / "of_the_guide.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    flags = ("--max_steps=30", "--eval_every=11", "--checkpoint_every=10", "--hooks=of_the_guide:Notes")
    assert train_alone(*flags, f"--output_dir={tmp_path / 'run'}") == ExitCode.STOPPED
    assert [row.split(",")[0] for row in (tmp_path / "norms.csv").read_text().splitlines()] == ["10"]
    assert sorted(os.listdir(tmp_path / "copies")) == ["10", "12"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere_to_be_found:Notes", "importing nowhere_to_be_found raised ModuleNotFoundError: No module named"),
        ("my_hooks:Absent", "my_hooks has no class Absent derived from tftrain.hooks.Hook"),
        ("my_hooks:other", "my_hooks has no class other derived from"),
        ("broken:Notes", "importing broken raised ZeroDivisionError: division by zero; modules are imported from the"),
    ],
)
def test_a_class_that_is_none_is_refused_with_its_name(tmp_path, monkeypatch, name, words):
    (tmp_path / "my_hooks.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserCodeError, match=f"^--hooks={name}: {words}"):
        hooks.load([name])
