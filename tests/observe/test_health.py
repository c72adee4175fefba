"""Bad numbers and unusual ones: what is counted, when a run ends of it, and what it says."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.kit.ranks import started_ranks
from tests.kit.runs import SMALL, rows
from tftrain.config.run import LimitsConfig
from tftrain.host.exit_codes import ExitCode, NotFiniteError
from tftrain.observe.health import Health
from tftrain.parallel.mesh import Mesh
from tftrain.state.spikes import SpikeMonitor
from tftrain.tasks.bert_pretraining import BertPretraining
from tftrain.train.step import StepInfo

GOOD = StepInfo(
    sums=tf.constant([6.0, 2.0, 1.0, 4.0, 2.0, 4.0]),
    learning_rate=tf.constant(0.1),
    grad_norm=tf.constant(1.0),
    loss_scale=tf.constant(1.0),
    skipped=tf.constant(False),
    is_nan=tf.constant(False),
    culprit=tf.constant(-1),
    bad_ranks=tf.zeros([2]),
    requests=tf.zeros([1]),
)
BACKED_OFF = GOOD._replace(skipped=tf.constant(True), grad_norm=tf.constant(np.inf))
BAD = BACKED_OFF._replace(is_nan=tf.constant(True), culprit=tf.constant(7), bad_ranks=tf.constant([0.0, 1.0]))


def seen(infos, max_nan_steps=3):
    found = []
    settings, mesh = LimitsConfig(max_nan_steps=max_nan_steps), Mesh(0, 4, tensor_parallel_size=2)
    names = (
        functools.partial(BertPretraining.mean_values, BertPretraining),
        lambda culprit: f"the gradient of number {culprit}",
    )
    health = Health(settings, mesh, *names, found.append, SpikeMonitor(settings.spike_zscore))
    for number, info in enumerate(infos, start=1):
        health.observe(number, info, at_once=number == len(infos))
    return found


def test_some_in_a_row_end_the_run_and_are_named():
    with pytest.raises(NotFiniteError) as caught:
        seen([GOOD, BAD, BAD, BAD])
    assert "--max_nan_steps=3 steps in a row" in str(caught.value)
    assert "in step 4 the gradient of number 7 on ranks 2, 3 was not" in str(caught.value)


@pytest.mark.parametrize(
    "infos",
    [
        [BAD, BAD, GOOD, BAD, BAD],
        [BACKED_OFF] * 15,
        [BAD, BAD, BACKED_OFF, BAD, BAD],
    ],
)
def test_fewer_in_a_row_and_a_loss_scale_that_backs_off_do_not(infos):
    seen(infos)


def test_an_unusual_step_is_handed_on():
    (row,) = seen([GOOD] * 100 + [GOOD._replace(sums=GOOD.sums * tf.constant([5.0, 1, 1, 1, 1, 1]))])
    assert (row.step, row.spike_loss, row.spike_grad_norm) == (101, 16.0, 1.0)
    assert row.spike_loss_zscore > 6 > row.spike_grad_norm_zscore


@pytest.mark.multirank
def test_tensor_parallel_ranks_of_which_one_has_bad_numbers_end_together_and_name_the_loss(tmp_path):
    settings = [*SMALL, "--global_batch_size=8", "--max_nan_steps=2", f"--output_dir={tmp_path}"]
    program = f"""
import os, sys
from tftrain import run
from tftrain.data import pipeline
whole = pipeline.ramped_batches
def poisoned(*args):
    for number, batch in enumerate(whole(*args), start=1):
        yield batch | {{"masked_lm_weights": batch["masked_lm_weights"] * (float("nan") if number > 3 else 1)}}
if os.environ["HOROVOD_RANK"] == "1":
    pipeline.ramped_batches = poisoned
sys.exit(run.main(["tftrain.run", *{settings}, "--tensor_parallel_size=2"]))
"""
    with started_ranks(2, ["-c", program]) as ranks:
        assert ranks.codes([0, 1], 240) == [ExitCode.NOT_FINITE] * 2
        # Both hold the same samples, so that no rank is to blame.
        expected = "--max_nan_steps=2 steps in a row were not finite; in step 5 the loss was not."
        assert f"tftrain.run: rank 0: {expected}" in ranks.output(0)
        assert expected not in ranks.output(1), "the chief says it for all"
    assert [row["nan_steps"] for row in rows(tmp_path)[0]][:5] == [0, 0, 0, 1, 2]
