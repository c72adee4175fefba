"""The learning rate against tf-models' schedules and against the formula in double precision."""

import numpy as np
import pytest
import tensorflow as tf

from tests.kit.tf_models import tf_models
from tftrain.config.data import DataConfig
from tftrain.config.optimizer import OptimizerConfig
from tftrain.config.parallel import BatchConfig
from tftrain.config.run import RunConfig
from tftrain.config.train import TrainConfig
from tftrain.optim.schedule import RampedSteps, learning_rate

EPSILON = float(np.finfo(np.float32).eps)
ABSOLUTE = 4 * EPSILON * 2e-3  # rates are 2e-3
RAMPED = RampedSteps(10, TrainConfig(batch=BatchConfig(global_batch_size=12, batch_rampup="4:4:24")).timeline)


def rates(config, max_steps, steps):
    return np.array([float(learning_rate(config, max_steps, tf.constant(step, tf.int64))) for step in steps])


@pytest.mark.parametrize(("warmup", "power", "end"), [(10, 1.0, 0.0), (0, 1.0, 1e-5), (37, 2.0, 0.0), (1, 0.5, 1e-4)])
def test_equals_the_schedule_of_tf_models(warmup, power, end):
    lr_schedule = tf_models("official.modeling.optimization.lr_schedule")
    config = OptimizerConfig(learning_rate=2e-3, end_learning_rate=end, warmup_steps=warmup, decay_power=power)
    decay = lr_schedule.PolynomialDecayWithOffset(
        offset=warmup, initial_learning_rate=2e-3, end_learning_rate=end, decay_steps=100 - warmup, power=power
    )
    oracle = lr_schedule.PolynomialWarmUp(decay, warmup_steps=warmup, power=1.0)
    steps = range(0, 100)
    # The oracle's 1 - step / total is off by an epsilon of 1, which a root enlarges where little remains.
    absolute = 2e-3 * (4 * EPSILON / 0.01) ** min(power, 1.0)
    np.testing.assert_allclose(
        rates(config, 100, steps),
        [float(oracle(step)) for step in steps],
        rtol=4 * EPSILON,
        atol=absolute if power < 1 else ABSOLUTE,
    )


@pytest.mark.parametrize("schedule", ["polynomial", "cosine", "constant", "wsd", "inverse_sqrt"])
@pytest.mark.parametrize(
    ("warmup", "end", "total"), [(10, 0.0, 100), (0, 1e-5, 100), (37, 2e-4, 100), (10**4, 0, 10**6)]
)
def test_a_shape_equals_its_formula_in_double_precision(schedule, warmup, end, total):
    config = OptimizerConfig(
        schedule=schedule,
        learning_rate=2e-3,
        end_learning_rate=end,
        warmup_steps=warmup,
        decay_steps=total // 4 if schedule == "wsd" else None,
        decay_power=0.5,
    )
    near = [total // 2, *range(total - 2, total + 4)]
    step = np.arange(104) if total == 100 else np.array([0, 1, 2, warmup // 2, *range(warmup - 1, warmup + 2), *near])
    now = np.minimum(step, total)
    left = np.minimum((total - now) / (total - warmup), 1)
    shape = {
        "polynomial": np.sqrt(left),
        "cosine": (1 + np.cos(np.pi * (1 - left))) / 2,
        "constant": np.ones(len(step)),
        "wsd": np.sqrt(np.minimum((total - now) / (total // 4), 1)),
        "inverse_sqrt": np.sqrt(max(warmup, 1) / np.maximum(now, 1)),
    }[schedule]
    expected = np.where(now < warmup, 2e-3 * np.maximum(now, 1) / max(warmup, 1), (2e-3 - end) * shape + end)
    np.testing.assert_allclose(
        rates(config, total, step), expected, rtol=8 * EPSILON, atol=0 if schedule == "polynomial" else ABSOLUTE
    )


def test_the_default_decay_of_wsd_does_not_begin_in_the_warm_up():
    optimizer, run = OptimizerConfig(schedule="wsd", warmup_steps=95), RunConfig(max_steps=100, output_dir="run")
    config = TrainConfig(optimizer=optimizer, data=DataConfig(synthetic_data=True), run=run).resolve(1)
    found = rates(config.optimizer, 100, range(101))
    np.testing.assert_allclose(found[94:], 1e-3 * np.array([94 / 95, 1, 0.8, 0.6, 0.4, 0.2, 0]), rtol=4 * EPSILON)


def test_a_decay_of_wsd_can_begin_from_any_checkpoint_of_the_stable_part():
    """Runs of different lengths have the same rates up to their decays, so that one run is the trunk of many."""
    long, short = (OptimizerConfig(schedule="wsd", warmup_steps=5, decay_steps=length) for length in (40, 10))
    np.testing.assert_array_equal(rates(long, 200, range(60)), rates(short, 70, range(60)))
    assert rates(short, 70, [70])[0] == 0


@pytest.mark.parametrize("schedule", ["polynomial", "wsd"])
def test_with_a_ramp_the_schedule_counts_samples(schedule):
    # Two increments, at 12 and 24 samples: batches of 4, 4, 4, 8, 8, then 12.
    consumed = np.cumsum([0, 4, 4, 4, 8, 8, 12, 12, 12, 12, 12])
    decay = {"decay_steps": 6} if schedule == "wsd" else {"decay_power": 2.0, "end_learning_rate": 1e-5}
    config = OptimizerConfig(schedule=schedule, learning_rate=1e-3, warmup_steps=4, **decay)
    left, end = (consumed[10] - consumed) / (consumed[10] - consumed[4]), config.end_learning_rate
    shape = left if schedule == "wsd" else left**2
    expected = np.where(
        consumed < consumed[4], 1e-3 * np.maximum(consumed, 4) / consumed[4], (1e-3 - end) * shape + end
    )
    found = rates(config, RAMPED, range(11))
    np.testing.assert_allclose(found, expected, rtol=8 * EPSILON)
    np.testing.assert_allclose(found[[4, 10]], [1e-3, end], rtol=EPSILON)


def test_a_run_may_be_all_warm_up():
    config = OptimizerConfig(learning_rate=1e-3, warmup_steps=4)
    np.testing.assert_allclose(rates(config, 4, range(4)), [2.5e-4, 2.5e-4, 5e-4, 7.5e-4], rtol=4 * EPSILON)


@pytest.mark.parametrize("warmup", [None, 11])
def test_an_unresolved_or_too_long_warm_up_is_refused_by_name(warmup):
    with pytest.raises(ValueError, match=f"--warmup_steps={warmup}.*max_steps=10"):
        learning_rate(OptimizerConfig(warmup_steps=warmup), 10, tf.constant(0, tf.int64))
