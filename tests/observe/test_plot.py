"""The loss curve and the confusion matrix."""

import json

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from tftrain.cli import flags
from tftrain.config.train import TrainConfig
from tftrain.observe.plot import TRAIN, confusion_matrix, loss_curve, schedule_curve, smoothed
from tftrain.tasks.bert_pretraining import BertPretraining

LOSS = BertPretraining.means[0]
pytestmark = pytest.mark.usefixtures("drawn_pictures")


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows(count, evaluations=0):
    steps = range(10, 10 * count + 1, 10)
    found = [{"step": step, "mlm_loss": 5 + 4 * np.exp(-step / 300), "nsp_loss": 0.6} for step in steps]
    if count > 3:
        found[3]["mlm_loss"] = None  # It was not finite.
    found += [
        {"step": 10 * count * (i + 1) // evaluations, "eval_mlm_loss": 5.5 - 0.1 * i, "eval_unigram_nats": 6.5}
        for i in range(evaluations)
    ]
    return found


def pixels(path, color):
    picture = np.asarray(Image.open(path).convert("RGB")).astype(int)
    wanted = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
    return int((np.abs(picture - wanted).sum(axis=-1) < 12).sum())


@pytest.fixture
def figures(monkeypatch):
    """The figures that would be saved."""
    found = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: found.append(figure))
    return found


@pytest.mark.parametrize(("count", "evaluations"), [(1, 0), (3, 1), (200, 4), (0, 1)])
def test_draws_few_points_and_many(tmp_path, count, evaluations):
    loss_curve(write(tmp_path / "metrics.jsonl", rows(count, evaluations)), tmp_path / "curve.png", LOSS)
    assert Image.open(tmp_path / "curve.png").size == (1600, 900)
    assert (pixels(tmp_path / "curve.png", TRAIN) > 50) == (count > 0)


@pytest.mark.parametrize("data", [[], [{"step": 1, "mlm_loss": None}]])
def test_nothing_to_draw_is_an_error_that_names_the_file(tmp_path, data):
    path = write(tmp_path / "metrics.jsonl", data)
    with pytest.raises(ValueError, match=r"metrics\.jsonl: no masked-LM loss"):
        loss_curve(path, tmp_path / "curve.png", LOSS)
    assert not (tmp_path / "curve.png").exists()


def test_a_schedule_is_drawn_up_to_its_end_with_the_growing_batch(tmp_path, figures):
    flags_of_run = ("--schedule=wsd", "--max_steps=50", "--global_batch_size=8", "--micro_batch_size=2")
    flags_of_data = ("--batch_rampup=2:2:100", "--synthetic_data", "--vocab_size=90", "--output_dir=x")
    config = flags.parse(TrainConfig, ["run", *flags_of_run, *flags_of_data])
    run = config.resolve(1)
    schedule_curve(run.optimizer, run.run.max_steps, run.timeline, tmp_path / "schedule.png")
    rate, batch = figures[0].axes
    (line,), (sizes,) = rate.lines, batch.lines
    assert (line.get_xdata()[0], line.get_xdata()[-1]) == (0, 50)
    assert max(line.get_ydata()) == pytest.approx(1e-3)
    assert line.get_ydata()[-1] == 0
    assert set(sizes.get_ydata()) == {2, 4, 6, 8}


def test_smoothing_does_not_lag_behind_a_falling_loss_and_damps_noise():
    line = tuple(9 - 0.01 * step for step in range(400))
    assert smoothed(line) == pytest.approx(line, rel=1e-12)
    noise = np.random.default_rng(0).normal(size=4000)
    # The mean of n independent values has 1 / n of their variance; here n = 401, over some ten independent windows.
    assert np.std(smoothed(tuple(noise))[200:-200]) == pytest.approx(np.sqrt(1 / 401), rel=0.5)


def test_a_confusion_is_normalised_by_row_and_tells_right_from_wrong(tmp_path, figures):
    confusion_matrix(["common", "rare"], np.array([[197, 3], [8, 1]]), tmp_path / "confusion.png")
    axes, bar = figures[0].axes
    assert axes.get_title(loc="left") == "209 held-out examples, 94.7% right"
    assert bar.get_ylabel() == "share of the label's examples"
    assert [each.get_text() for each in axes.get_yticklabels()] == ["common (200)", "rare (9)"]
    assert [each.get_text() for each in axes.texts] == ["197\n98%", "3\n2%", "8\n89%", "1\n11%"]
    colours = axes.images[0].cmap(axes.images[0].norm(axes.images[0].get_array()))
    (right, _), (wrong, _) = colours
    assert right[2] > right[0], "197 right of 200 is blue"
    assert wrong[0] > wrong[2], "8 wrong of 9 is red"


def test_a_class_with_two_dollars_is_no_formula(tmp_path):
    confusion_matrix(["$5_{-$10", "$10"], np.eye(2, dtype=int), tmp_path / "confusion.png")
    assert (tmp_path / "confusion.png").stat().st_size > 1000


@pytest.mark.parametrize(("count", "named", "counted"), [(20, 20, 20), (21, 21, 0), (41, None, 0)])
def test_a_confusion_of_many_classes_has_fewer_words(tmp_path, figures, count, named, counted):
    confusion_matrix([f"class{number}" for number in range(count)], 5 * np.eye(count, dtype=int), tmp_path / "x.png")
    axes = figures[0].axes[0]
    assert len(axes.texts) == counted
    assert ("class1 (5)" in [each.get_text() for each in axes.get_yticklabels()]) == (named is not None)
