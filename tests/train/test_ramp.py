"""A run whose batch grows: it is the sequence of updates that one would make by hand, and resumes in the middle."""

import copy
import json

import numpy as np
import pytest

from tests.checkpoint import states
from tests.conftest import RAMP
from tests.kit.runs import configured, losses, rows, train_alone
from tftrain.checkpoint import folder as checkpoints
from tftrain.data import pipeline
from tftrain.data.prepared import open_data
from tftrain.data.source import open_source
from tftrain.parallel.mesh import Mesh
from tftrain.state.new_run import new_run
from tftrain.train.step import TrainStep

pytestmark = pytest.mark.slow

# One increment, at 12 consumed samples.
SIZES = [4, 4, 4, 8, 8]


def test_rows_count_the_samples_that_were_there(ramped):
    train, _ = rows(ramped)
    assert [row["global_batch_size"] for row in train] == SIZES
    assert [row["consumed_samples"] for row in train] == np.cumsum(SIZES).tolist()
    # The first step of each size compiles. Only that of the very first step has its time, compilation included.
    assert [row["step_time_s"] is None for row in train] == [False, False, False, True, False]
    for row in train:
        if row["step_time_s"]:
            np.testing.assert_allclose(row["samples_per_sec"] * row["step_time_s"], row["global_batch_size"])


def step_of(run, config):
    """Returns the step of a run under another configuration."""
    run = copy.copy(run)
    run.config = config
    return TrainStep(run)


def test_it_is_the_sequence_of_batches_that_one_would_make_by_hand(ramped):
    config = configured(*RAMP, f"--output_dir={ramped}")
    run, consumed, expected = new_run(config, Mesh()), 0, []
    source = open_source(open_data(config.data, config.model), "train", config.run.seed)
    steps = {}
    for size in SIZES:
        if size not in steps:
            fixed = configured(*RAMP, "--batch_rampup=none", f"--global_batch_size={size}", f"--output_dir={ramped}")
            steps[size] = step_of(run, fixed)
        batches = pipeline.train_batches(source, config.data, config.run.seed, consumed, size, 0, size)
        sums = steps[size](next(iter(batches.take(1)))).sums.numpy().astype(np.float64)
        expected.append(sums[0] / sums[1] + sums[3] / size)
        consumed += size
    np.testing.assert_allclose(losses(ramped), expected, rtol=1e-6)


def test_a_run_resumed_within_the_ramp_is_bitwise_the_uninterrupted_one(ramped, tmp_path):
    first = checkpoints.find(ramped)[0]
    assert json.loads((first / "manifest.json").read_text())["step"] == 2
    train_alone(*RAMP, f"--output_dir={states.begun_from(first, tmp_path)}")
    states.assert_same_end(tmp_path, ramped)


@pytest.mark.multirank
def test_two_ranks_have_the_losses_of_one(ramped, ramped_on_two):
    folder, _ = ramped_on_two
    assert [row["global_batch_size"] for row in rows(folder)[0]] == SIZES
    np.testing.assert_allclose(losses(folder), losses(ramped), rtol=1e-4)
