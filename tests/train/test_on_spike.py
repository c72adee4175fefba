"""--on_spike: a run that meets poisoned batches ends as one without them, with the same bits however it was stopped."""

import json
import shutil
from random import Random

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies

from tests.checkpoint import states
from tests.kit.runs import read_rows
from tests.train import spiked_runs
from tests.train.spiked_runs import BATCH, POISONED, ROLLBACK, STEPS, configured, final_loss, trained
from tftrain.checkpoint import folder as checkpoints
from tftrain.checkpoint import scores
from tftrain.data import pipeline
from tftrain.host.exit_codes import ExitCode, UnstableError
from tftrain.inputs.inputs import Inputs
from tftrain.observe import goodput, run_page
from tftrain.parallel.mesh import Mesh
from tftrain.state import spikes
from tftrain.state.best import Best
from tftrain.state.new_run import new_run
from tftrain.state.spikes import MOST_IN_A_ROW, SpikeMonitor
from tftrain.tasks import sources
from tftrain.train.step import TrainStep

SPIKE = POISONED[0] + 1
FIRST, LAST = BATCH * (SPIKE - 1 - 5), BATCH * (SPIKE - 1 + 60) - 1  # positions that a rollback leaves out


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory):
    return spiked_runs.write(tmp_path_factory.mktemp("poisoned"))


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """A run without poisoned batches."""
    folder = tmp_path_factory.mktemp("clean")
    trained(folder / "run", *spiked_runs.write(folder / "data", ()))
    return folder / "run"


@pytest.fixture(scope="module")
def rolled_back(poisoned, tmp_path_factory):
    """A run that goes back; it has checkpoints after every 40 steps, and a hook that records what it begins."""
    folder = tmp_path_factory.mktemp("rolled_back")
    spiked_runs.Numbers.begun.clear()
    spiked_runs.Numbers.saved.clear()
    given = (*poisoned, *ROLLBACK, "--hooks=tests.train.spiked_runs:Numbers")
    assert trained(folder, *given) == ExitCode.DONE
    return folder


def checkpoint(folder, step):
    """Returns the checkpoint of a step of the run."""
    return next(path for path in checkpoints.find(folder) if checkpoints.order(path)[0] == step)


def rollbacks(folder):
    return [row for row in read_rows(folder) if "rollbacks" in row]


def losses(folder):
    return [(row["step"], row["loss"]) for row in read_rows(folder) if "loss" in row]


def assert_same(found, expected):
    states.assert_same_end(found, expected)
    one, two = (manifest(checkpoints.find(folder)[-1]) for folder in (found, expected))
    assert (one["progress"], one["spikes"]) == (two["progress"], two["spikes"])


def manifest(path):
    return json.loads((path / "manifest.json").read_text())["run"]


def test_a_rollback_ends_within_half_a_percent_of_the_undisturbed_run(clean, rolled_back):
    assert abs(final_loss(rolled_back) / final_loss(clean) - 1) < 0.005


def test_files_have_every_step_once_and_say_what_was_left_out(rolled_back):
    expected = {
        "step": 80,
        "rollbacks": 1,
        "rollback_spike_step": SPIKE,
        "rollback_first_position": FIRST,
        "rollback_last_position": LAST,
    }
    assert rollbacks(rolled_back) == [expected]
    train = [row for row in read_rows(rolled_back) if "loss" in row]
    assert [row["step"] for row in train] == list(range(1, STEPS + 1))
    assert train[-1]["consumed_samples"] == STEPS * BATCH
    assert not [row for row in read_rows(rolled_back) if "spike_loss" in row], "the spike is not a step of the run"
    assert f"rollback 1 of 10 to step 80 after a spike in step {SPIKE}: " in (rolled_back / "log.txt").read_text()
    newest = checkpoints.find(rolled_back)[-1]
    assert manifest(newest)["progress"]["left_out"] == [[FIRST, LAST + 1]]
    first, second = goodput.read(rolled_back)
    assert (first.first, second.first, second.step) == (0, 80, STEPS)
    assert goodput.totals([first, second])["repeated"] > 0
    page = (rolled_back / run_page.NAME).read_text()
    assert "Rollbacks: 1" in page
    assert f"{LAST:,}" in page


def test_hooks_see_the_steps_and_checkpoints_that_come_again(rolled_back):
    # The values of a step are known when the next one is under way.
    assert spiked_runs.Numbers.begun == [*range(1, SPIKE + 2), *range(81, STEPS + 1)]
    assert [step for begun, step in spiked_runs.Numbers.saved if begun > SPIKE + 1] == [120, 160, 200, 240]


@pytest.mark.nightly
def test_a_resume_where_a_phase_begins_judges_by_the_steps_of_that_phase(poisoned, tmp_path):
    phases = f"--phases=until_samples={60 * BATCH}; global_batch_size={BATCH}"
    given = (*poisoned, "--on_spike=skip", phases, "--checkpoint_every=60")
    trained(tmp_path / "whole", *given)
    for path in checkpoints.find(tmp_path / "whole")[1:]:
        shutil.rmtree(path)
    shutil.copytree(tmp_path / "whole", tmp_path / "part")
    trained(tmp_path / "part", *given)
    skipped = [row["step"] for row in read_rows(tmp_path / "whole") if "spike_loss" in row]
    assert skipped[0] == SPIKE
    assert losses(tmp_path / "part") == losses(tmp_path / "whole")


def test_a_run_that_is_stopped_at_the_spike_saves_nothing_and_goes_on_to_the_same_bits(
    poisoned, rolled_back, tmp_path, monkeypatch
):
    states.begun_from(checkpoint(rolled_back, 80), tmp_path)
    monkeypatch.setattr(spiked_runs.Numbers, "stop_after", SPIKE)
    assert trained(tmp_path, *poisoned, *ROLLBACK, "--hooks=tests.train.spiked_runs:Numbers") == ExitCode.STOPPED
    assert [path.name for path in checkpoints.find(tmp_path)][-1] == "step_00000120"
    assert trained(tmp_path, *poisoned, *ROLLBACK) == ExitCode.DONE
    assert_same(tmp_path, rolled_back)


def test_a_run_resumed_after_a_rollback_leaves_out_the_same_samples(poisoned, rolled_back, tmp_path):
    trained(states.begun_from(checkpoint(rolled_back, 160), tmp_path), *poisoned, *ROLLBACK)
    assert_same(tmp_path, rolled_back)


@pytest.mark.nightly
def test_a_rollback_to_the_phase_before_goes_through_both(poisoned, tmp_path):
    given = (*poisoned, *ROLLBACK, "--max_steps=140", "--eval_every=-1")
    batch = f"global_batch_size={BATCH} micro_batch_size={BATCH // 2}"
    phases = f"--phases=until_samples={60 * BATCH} {batch}; global_batch_size={BATCH} micro_batch_size={BATCH}"
    for every in (40, 58):
        trained(tmp_path / str(every), *given, phases, f"--checkpoint_every={every}")
    assert [rollbacks(tmp_path / str(every))[0]["step"] for every in (40, 58)] == [80, 58]
    assert_same(tmp_path / "58", tmp_path / "40")


def test_more_spikes_than_rollbacks_end_the_run(poisoned, tmp_path):
    given = (*poisoned, *ROLLBACK, "--rollback_window=20", "--max_rollbacks=2", "--checkpoint_every=11")
    with pytest.raises(UnstableError, match="is a spike, after --max_rollbacks=2 rollbacks"):
        trained(tmp_path, *given)
    # A checkpoint was due after the spike, step 121, and none is saved in its place.
    saved = checkpoints.checkpoint_folder(tmp_path).rglob("step_*")
    assert {checkpoints.order(path)[0] % 11 for path in saved if path.is_dir()} == {0}
    # Each one begins five batches before the last.
    (one, two) = rollbacks(tmp_path)
    assert two["rollback_first_position"] == one["rollback_first_position"] - 5 * BATCH
    assert two["rollback_last_position"] == one["rollback_last_position"] + 20 * BATCH
    assert UnstableError.exit_code == 82


def test_scores_after_the_checkpoint_are_forgotten(tmp_path):
    best = Best(str(tmp_path), "accuracy", 2, Mesh(), 0)
    found = [best.observe(step, value) for step, value in ((10, 0.5), (20, 0.9), (30, 0.8), (40, 0.7))]
    assert (found, best.step, best.is_exhausted) == ([True, True, False, False], 20, True)
    assert not best.go_back(30), "the best one stays"
    assert best.go_back(15)
    assert (best.step, best.is_exhausted) == (10, False)
    assert scores.read(tmp_path).best.step == 10, "as other programs read them"


def test_a_step_is_judged_by_the_steps_up_to_the_second_one_before_it():
    draw = np.random.default_rng(0)
    values = draw.normal(5, 0.1, 200)
    monitor = SpikeMonitor(4.0)
    for number, value in enumerate(values):
        loss_limit, norm_limit = monitor.limits(is_late=False)
        if number > spikes.WARMUP:
            mean, deviation = oracle(values[: number - 1])
            assert loss_limit == pytest.approx(mean + 4 * deviation, rel=1e-12)
            assert norm_limit == pytest.approx(1.0, rel=0.01)
        monitor.observe(value, 1.0)


def oracle(values):
    """The weighted mean and deviation of values: the n-th has the weight 1/n, or 0.01, of all up to it."""
    weights = np.zeros(0)
    for count in range(1, len(values) + 1):
        rate = max(0.01, 1 / count)
        weights = np.append(weights * (1 - rate), rate)
    mean = np.sum(weights * values)
    return mean, max(np.sqrt(np.sum(weights * (values - mean) ** 2)), 1e-3 * max(abs(mean), 1.0))


@hypothesis.given(
    strategies.lists(strategies.sampled_from([1.0, 1.01, 0.99, 5.0, float("nan")]), min_size=70, max_size=110),
    strategies.integers(0, 2**32),
)
def test_limits_do_not_depend_on_when_the_values_of_a_step_are_read(losses, seed):
    found, random = [], Random(seed)
    for is_late in (lambda: False, lambda: True, lambda: random.random() < 0.5):
        monitor, waiting, limits = SpikeMonitor(3.0), [], []
        for _ in range(60):
            monitor.observe(1.0, 1.0)
        for loss in losses:
            limits.append(monitor.limits(is_late=bool(waiting)))
            waiting.append(loss)
            while len(waiting) > is_late():
                monitor.observe(waiting.pop(0), 1.0)
        found.append(limits)
    assert found[0] == found[1] == found[2]


def test_a_new_level_is_skipped_a_bounded_number_of_times():
    monitor, skipped = SpikeMonitor(6.0), []
    for number in range(300):
        loss = 2.0 + 0.01 * (number % 3) + (1000.0 if number >= 100 else 0.0)
        skipped.append(loss >= monitor.limits(is_late=False)[0])
        monitor.observe(loss, 1.0)
    assert [number for number, each in enumerate(skipped) if each] == list(range(100, 100 + MOST_IN_A_ROW))


def test_skipped_updates_are_those_that_one_would_leave_out_by_hand(tmp_path_factory, tmp_path, capsys):
    steps, bad = 110, (70, 71, 90)
    data = spiked_runs.write(tmp_path_factory.mktemp("few"), bad)
    given = (*data, f"--max_steps={steps}", "--eval_every=-1")
    trained(tmp_path, *given, "--on_spike=skip")
    config = configured(*given, f"--output_dir={tmp_path}")
    run = new_run(config, Mesh())
    source = sources.open_source(run.task, Inputs.open(config).data[0], "train", 1)
    sums_of = tf.function(lambda batch: run.task.vector(run.task.compute(batch)), autograph=False)
    step, losses, skipped = TrainStep(run), [], []
    for number, batch in enumerate(pipeline.train_batches(source, config.data, 1, 0, BATCH, 0, BATCH).take(steps)):
        sums = dict(zip(run.task.sums, sums_of(batch).numpy().tolist(), strict=True))
        mean = run.task.means[0]
        losses.append(sums[mean.total] / sums[mean.weight])
        known = [loss for before, loss in enumerate(losses[: max(number - 1, 0)]) if before not in skipped]
        mean, deviation = oracle(np.array(known))
        if len(known) >= spikes.WARMUP and losses[-1] > mean + 4 * deviation:
            skipped.append(number)
        else:
            step(batch)
    assert tuple(skipped) == bad
    found, expected = states.stored(checkpoints.find(tmp_path)[-1]), states.owned(run)
    for name, value in expected.items():
        if not name.startswith("progress/"):
            np.testing.assert_array_equal(found[name], value, err_msg=name)
    assert [row["step"] for row in read_rows(tmp_path) if row.get("spike_skipped")] == [each + 1 for each in bad]
    assert [row for row in read_rows(tmp_path) if "loss" in row][-1]["skipped_steps"] == len(bad)
    cost = "--checkpoint_every=0 and --checkpoint_minutes=0: there is no checkpoint before the end"
    assert cost in capsys.readouterr().out
