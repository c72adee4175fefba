"""Sizes that this machine can't hold are refused with the planner's figures, before TensorFlow starts."""

import pytest

from tftrain import devices, flags
from tftrain.config import TrainConfig
from tftrain.parallel.launcher import Launch
from tftrain.report import memory_limit

ALONE = Launch()


def found(*args, launch=ALONE):
    given = ["run", "--synthetic_data", "--vocab_size=30522", "--output_dir=out", *args]
    config = flags.parse(TrainConfig, given).resolve(launch.size)
    return [str(problem) for problem in memory_limit.problems(config, launch)]


@pytest.fixture
def host_gb(monkeypatch):
    def has(gb):
        monkeypatch.setattr(devices, "has_driver", lambda: False)
        monkeypatch.setattr(devices, "host_memory_gb", lambda: gb)

    has(24.0)
    return has


def test_sizes_of_ordinary_runs_are_not_refused(host_gb):
    assert found() == []
    assert found("--num_hidden_layers=24", "--hidden_size=1024", "--num_attention_heads=16") == []


@pytest.mark.parametrize(
    "args",
    [
        ["--hidden_size=49152"],
        ["--vocab_size=1000000000"],
        ["--micro_batch_size=1000000000000"],
        ["--num_hidden_layers=1000000000"],
        ["--max_seq_length=4000000", "--max_position_embeddings=4000000"],
        ["--intermediate_size=9000000000000000000"],
    ],
)
def test_sizes_that_no_memory_holds_are_refused_with_the_gigabytes(host_gb, args):
    (line,) = found(*args)
    assert line.startswith("--check_memory=true: a rank needs ")
    assert "this machine has 24 GB" in line
    assert found(*args, "--nocheck_memory") == []
    assert found(*args, "--mode=evaluate") == []


def test_the_ranks_of_a_host_share_its_memory(host_gb):
    host_gb(5.5)
    assert found() == []
    (line,) = found(launch=Launch(0, 2, 0, 2))
    assert "this machine has, for each of 2 ranks, 2.8 GB" in line


def test_a_plan_a_little_above_the_memory_is_left_to_the_run(host_gb):
    host_gb(1.0)
    (line,) = found()
    needed = float(line.split("needs ")[1].split()[0])
    host_gb(needed / 1.15)
    assert found() == []
    host_gb(needed / 1.3)
    assert found() != []


def test_a_gpu_is_compared_by_its_own_memory(monkeypatch):
    monkeypatch.setattr(devices, "has_driver", lambda: True)
    monkeypatch.setattr(devices, "gpu_memory_gb", lambda kind: [85.9, 17.2])
    assert found() == []
    (line,) = found("--micro_batch_size=512")
    assert "the smallest GPU has 17 GB" in line
    monkeypatch.setattr(devices, "gpu_memory_gb", lambda kind: [])
    assert found("--micro_batch_size=512") == [], "without nvidia-smi, the memory is not known"


def test_the_memory_of_the_host_is_known():
    assert 0.1 < devices.host_memory_gb() < 1e5
