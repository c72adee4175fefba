"""`configs/train_on_ray.py` trains on two local Ray workers, and its losses are those of tftrain.launch."""

import os
import subprocess
import sys

import pytest

from tests.kit.ranks import ROOT
from tests.kit.runs import losses

SMALL = (
    *("--num_hidden_layers=2", "--hidden_size=32", "--num_attention_heads=2", "--synthetic_data", "--vocab_size=101"),
    *("--max_seq_length=16", "--learning_rate=0.01", "--global_batch_size=8", "--log_every=1", "--eval_every=-1"),
    *("--split_opt_state", "--cpu_threads=1", "--max_steps=4"),
)

pytestmark = [pytest.mark.multirank, pytest.mark.nightly]


def started(command, code=0):
    """Runs a command and returns its output."""
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}", "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(
        command, cwd=ROOT, env=environ, text=True, timeout=300, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert done.returncode == code, done.stdout
    return done.stdout


def test_two_ray_workers_have_the_losses_of_the_launcher(tmp_path):
    pytest.importorskip("ray")
    output = started([sys.executable, "configs/train_on_ray.py", "1", "2", *SMALL, f"--output_dir={tmp_path / 'ray'}"])
    started([sys.executable, "-m", "tftrain.launch", "-np", "2", *SMALL, f"--output_dir={tmp_path / 'launch'}"])
    assert losses(tmp_path / "ray") == losses(tmp_path / "launch"), output
