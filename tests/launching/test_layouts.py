"""What follows a layout that runs out of memory, or whose steps take longer than another is planned for."""

import dataclasses
import itertools
import json
import signal
import sys

import pytest

from tests.launching.fakes import LIMITS
from tests.plan.test_choice import BATCH, MODEL, request
from tftrain.checkpoint import folder
from tftrain.host.exit_codes import ExitCode
from tftrain.launching import hosts, job
from tftrain.launching.config import LaunchConfig
from tftrain.launching.layouts import LESS, SLOWER, Layouts, logged_lines, step_seconds

KILLED = ExitCode.SIGNALLED + signal.SIGKILL


@pytest.fixture
def layouts(tmp_path):
    return Layouts(request(*MODEL, BATCH, f"--output_dir={tmp_path}", ranks=2))


def log(path, first, *seconds, batch=16):
    sizes = {"global_batch_size": batch, "max_seq_length": 128}
    rows = [{"step": step, "step_time_s": each} | sizes for step, each in enumerate(seconds, first)]
    with (path / "metrics.jsonl").open("a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("code", [ExitCode.OUT_OF_MEMORY, KILLED])
def test_out_of_memory_is_followed_by_layouts_that_need_less_and_less(layouts, code, caplog):
    needed = [layouts.memory_gb]
    while layouts.go_on(code):
        needed.append(layouts.memory_gb)
    assert len(needed) > 2
    added = [each - 0.9 for each in needed]
    assert all(after <= LESS * before + 1e-9 for before, after in itertools.pairwise(added))
    assert "--layout=auto: none of" in caplog.records[-1].getMessage()


@pytest.mark.parametrize("code", [0, 1, 2, 75, 76, 77, 78, 79, 80, 130, 143])
def test_other_ends_are_final(layouts, code):
    assert not layouts.go_on(code)


def test_a_slow_layout_is_followed_by_the_next_and_each_is_measured_once(layouts, tmp_path):
    tried, step = [], 1
    layouts.arguments()
    while True:
        tried.append(layouts.plan.work)
        log(tmp_path, step, *[100.0 + len(tried)] * 6)
        step += 6
        if not layouts.is_slow():
            break
        assert layouts.go_on(ExitCode.STOPPED)
        layouts.arguments()
    assert len(tried) == 4
    assert len(set(tried)) == 3
    assert tried[-1] == tried[0], "the one that was measured to be the fastest"
    assert not layouts.go_on(ExitCode.STOPPED), "a signal of the user"


def test_a_layout_that_is_as_fast_as_the_others_are_planned_stays(layouts, tmp_path):
    second = sorted(plan.seconds for plan in layouts._result.fastest)[1]
    layouts.arguments()
    log(tmp_path, 1, *[0.99 * SLOWER * second] * 8)
    assert not layouts.is_slow()


def test_the_time_of_a_step_is_that_of_new_rows_of_the_planned_batch_alone(layouts, tmp_path):
    work = layouts.plan.work
    assert step_seconds(tmp_path, (), work) is None
    log(tmp_path, 1, 9.0, 5.0, 3.0)
    assert step_seconds(tmp_path, (), work) is None, "too few"
    log(tmp_path, 4, 4.0, 4.0)
    assert step_seconds(tmp_path, (), work) == 3.0
    first = logged_lines(tmp_path)
    assert step_seconds(tmp_path, first, work) is None
    log(tmp_path, 6, *[1.0] * 9, batch=8)
    assert step_seconds(tmp_path, (), work) == 3.0
    assert step_seconds(tmp_path, first, work) is None, "steps of another phase, or of a batch ramp"
    (tmp_path / "metrics.jsonl").open("a").write('{"step": 6, "step_ti')
    assert step_seconds(tmp_path, (), work) is None, "a row that is being written"


def test_a_run_that_starts_over_in_a_folder_is_measured_from_its_own_first_step_on(layouts, tmp_path):
    log(tmp_path, 1, *[1e-9] * 90)
    layouts.arguments()
    assert not layouts.is_slow(), "steps of the run before"
    (tmp_path / "metrics.jsonl").rename(tmp_path / "set_aside")
    log(tmp_path, 1, *[100.0] * 6)
    assert layouts.is_slow()


def test_a_start_goes_on_from_what_the_last_one_has_saved_whatever_resume_says(layouts, tmp_path):
    assert "--resume=auto" not in layouts.arguments()
    saved = folder.checkpoint_folder(tmp_path) / "step_00000004"
    saved.mkdir(parents=True)
    (saved / "manifest.json").touch()
    assert layouts.arguments()[-1] == "--resume=auto"


@dataclasses.dataclass
class Scripted:
    """Layouts that note what the job asks; `slow` says that a step took too long."""

    slow: bool = False
    memory_gb: float = 0.1
    code: int | None = None

    def is_slow(self):
        return self.slow

    def go_on(self, code):
        self.code = code
        return True


SAVES = "import os, signal, time; signal.signal(signal.SIGUSR1, lambda *_: os._exit(75)); time.sleep(20)"


@pytest.mark.parametrize(
    ("script", "layouts", "code"),
    [("import sys; sys.exit(81)", Scripted(), 81), (SAVES, Scripted(slow=True), 75)],
)
def test_a_job_returns_nothing_if_it_is_to_be_started_again(script, layouts, code):
    config = LaunchConfig(num_proc=2)
    command = [sys.executable, "-c", script]
    assert job.run(hosts.assign(config), command, config, LIMITS, None, layouts) is None
    assert layouts.code == code


def test_a_layout_that_needs_more_than_a_host_has_is_refused(capfd):
    config = LaunchConfig(num_proc=2)
    with pytest.raises(job.LaunchError, match=r"localhost: this host has .* its ranks need 2000000\.0 GB"):
        job.run(hosts.assign(config), ["true"], config, LIMITS, None, Scripted(memory_gb=1e6))
