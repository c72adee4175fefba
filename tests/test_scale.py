"""Many ranks on one machine: they start, train as one rank does, and what they save, one rank can go on from."""

import re

import numpy as np
import pytest

from tests.kit.ranks import run_ranks
from tests.kit.runs import SMALL, losses, train_alone

# With a constant learning rate, it does not matter how long a run means to be.
BATCH = (
    *("--num_hidden_layers=1", "--global_batch_size=16", "--nouse_bias_in_keys", "--eval_every=-1"),
    *("--cpu_threads=1", "--warmup_steps=1", "--end_learning_rate=0.01"),
)
LAYOUT = ("--tensor_parallel_size=2", "--split_opt_state")


@pytest.mark.nightly
@pytest.mark.multirank
@pytest.mark.parametrize("ranks", [4, 16])
def test_many_ranks_train_as_one_and_one_goes_on_from_their_checkpoint(tmp_path, ranks):
    many, one = tmp_path / "many", tmp_path / "one"
    output = run_ranks(
        ranks,
        ["-m", "tftrain.run", *SMALL, *BATCH, *LAYOUT, f"--output_dir={many}", "--max_steps=3"],
        seconds=500,
        environ={"HOROVOD_GLOO_TIMEOUT_SECONDS": "300"},
    )
    assert f"x {ranks // 2} ranks" in output
    assert abs(float(re.search(rf"at most (\S+)% from its total / {ranks // 2} ranks", output)[1])) < 2
    for folder in (one, many):
        train_alone(*BATCH, f"--output_dir={folder}", "--max_steps=5")
    assert len(losses(one)) == 5
    np.testing.assert_allclose(losses(many), losses(one), rtol=1e-4)
