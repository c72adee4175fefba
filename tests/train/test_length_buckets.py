"""Training on batches of several lengths: the losses of padded batches, the same on stages and after a resume."""

import numpy as np
import pytest
import tensorflow as tf

from tests.checkpoint import states
from tests.kit.data_sets import written
from tests.kit.runs import configured, losses, rows, train_alone
from tftrain.checkpoint import folder as checkpoints
from tftrain.data.length_buckets import LengthBuckets
from tftrain.data.prepared import open_data
from tftrain.data.source import open_source
from tftrain.parallel.mesh import Mesh
from tftrain.state.new_run import new_run
from tftrain.train.step import TrainStep

STEPS = 10
SHAPE = ("--num_hidden_layers=1", "--hidden_size=32", "--num_attention_heads=2", "--learning_rate=0.01")


@pytest.fixture(scope="module")
def flags(prepare_config, tmp_path_factory):
    """The flags of a run on examples of 6 to 32 tokens, in batches of 8, 16 and 32."""
    data = written(prepare_config(tmp_path_factory.mktemp("data") / "short", short_seq_prob=0.9))
    batch = ("--global_batch_size=4", "--micro_batch_size=2", "--log_every=1", "--eval_every=-1", "--keep_last=9")
    given = ("--synthetic_data=false", "--max_seq_length=32", "--vocab_size=200", f"--data_dir={data}")
    steps = (f"--max_steps={STEPS}", "--warmup_steps=2", "--seq_length_buckets=8,16")
    # The mask of an attention probability depends on the length of the row.
    return (*SHAPE, *given, *batch, *steps, "--hidden_dropout_prob=0", "--attention_probs_dropout_prob=0")


@pytest.fixture(scope="module")
def whole(flags, tmp_path_factory):
    """A run with a checkpoint after every fifth step."""
    folder = tmp_path_factory.mktemp("whole")
    train_alone(*flags, f"--output_dir={folder}", "--checkpoint_every=5")
    return folder


def test_losses_are_those_of_the_padded_batches(flags, whole):
    config = configured(*flags, f"--output_dir={whole}")
    source = open_source(open_data(config.data, config.model), "train", config.run.seed)
    order = LengthBuckets(source, config.run.seed, (8, 16, 32), 4).examples
    step, expected = TrainStep(new_run(config, Mesh())), []
    for number in range(STEPS):
        padded = source.batch(tf.constant(4 * number, tf.int64), 4, order) | {"example_weights": tf.ones([4])}
        sums = step(padded).sums.numpy().astype(np.float64)
        expected.append(sums[0] / sums[1] + sums[3] / 4)
    np.testing.assert_allclose(losses(whole), expected, rtol=1e-5)


def test_rows_count_the_positions_that_were_computed(whole):
    train, _ = rows(whole)
    timed = [row for row in train if row["step_time_s"]]
    assert len(timed) < len(train)  # The first step of each length compiles.
    positions = [row["tokens_per_sec"] * row["step_time_s"] / row["global_batch_size"] for row in timed]
    assert set(np.round(positions)) == {8, 16, 32}
    for row in timed:
        np.testing.assert_allclose(row["real_tokens_per_sec"] / row["tokens_per_sec"], row["utilisation"])
    assert train[-1]["consumed_samples"] == 4 * STEPS


@pytest.mark.nightly
def test_a_resumed_run_is_bitwise_the_uninterrupted_one(flags, whole, tmp_path):
    train_alone(*flags, f"--output_dir={states.begun_from(checkpoints.find(whole)[0], tmp_path)}")
    states.assert_same_end(tmp_path, whole)
