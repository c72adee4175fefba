"""Sizes that this machine can't hold are refused with the planner's figures, before TensorFlow starts."""

import pytest

from tftrain.cli import flags
from tftrain.config.train import TrainConfig
from tftrain.host import hardware
from tftrain.parallel.launcher import FORKED, Launch, launch_from_environment
from tftrain.plan import memory_limit

ALONE = Launch()


def found(*args, launch=ALONE):
    given = ["run", "--synthetic_data", "--vocab_size=30522", "--output_dir=out", *args]
    config = flags.parse(TrainConfig, given).resolve(launch.size)
    return [str(problem) for problem in memory_limit.problems(config, launch.size, launch.local_size, launch.is_forked)]


@pytest.fixture
def host_gb(monkeypatch):
    def has(gb):
        monkeypatch.setattr(hardware, "has_driver", lambda: False)
        monkeypatch.setattr(hardware, "host_memory_gb", lambda: gb)

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
        ["--num_hidden_layers=10000"],
        ["--max_seq_length=4000000", "--max_position_embeddings=4000000"],
        ["--intermediate_size=1000000000000"],
    ],
)
def test_sizes_that_no_memory_holds_are_refused_with_the_gigabytes(host_gb, args):
    (line,) = found(*args)
    assert line.startswith("the run does not fit the memory: a rank needs ")
    assert "this machine has 24 GB" in line
    assert found(*args, "--nocheck_memory") == []
    assert found(*args, "--mode=evaluate") == []


def test_the_ranks_of_a_host_share_its_memory(host_gb):
    host_gb(5.5)
    assert found() == []
    (line,) = found(launch=Launch(0, 2, 0, 2))
    assert "this machine has, for each of 2 ranks, 2.8 GB" in line


TINY = ("--num_hidden_layers=2", "--hidden_size=32", "--num_attention_heads=2", "--max_seq_length=16")
HOST_OF_64 = Launch(0, 64, 0, 64)
FORKED_64 = HOST_OF_64._replace(is_forked=True)


def test_forked_ranks_share_what_tensorflow_holds(host_gb):
    assert found(*TINY, launch=FORKED_64) == []
    (line,) = found(*TINY, launch=HOST_OF_64)
    assert "expected --fork_ranks, with which the ranks share 0.7 GB, smaller sizes" in line


def test_forked_ranks_that_need_too_much_are_refused_with_what_each_needs(host_gb):
    (line,) = found(launch=FORKED_64)
    assert "beside 0.7 GB that forked ranks share, this machine has, for each of 64 ranks, 0.4 GB" in line
    assert "--fork_ranks" not in line
    (line,) = found(launch=HOST_OF_64)
    assert "--fork_ranks" not in line, "forked ranks would not fit either"
    alone = float(line.split("needs ")[1].split()[0])
    (line,) = found(launch=FORKED_64)
    assert float(line.split("needs ")[1].split()[0]) == pytest.approx(alone - 0.7, abs=0.11)


def test_a_plan_a_little_above_the_memory_is_left_to_the_run(host_gb):
    host_gb(1.0)
    (line,) = found()
    needed = float(line.split("needs ")[1].split()[0])
    host_gb(needed / 1.15)
    assert found() == []
    host_gb(needed / 1.3)
    assert found() != []


def test_a_gpu_is_compared_by_its_own_memory(monkeypatch):
    monkeypatch.setattr(hardware, "has_driver", lambda: True)
    monkeypatch.setattr(hardware, "gpu_memory_gb", lambda kind: [85.9, 17.2])
    assert found() == []
    (line,) = found("--micro_batch_size=512")
    assert "the smallest GPU has 17 GB" in line
    monkeypatch.setattr(hardware, "gpu_memory_gb", lambda kind: [])
    assert found("--micro_batch_size=512") == [], "without nvidia-smi, the memory is not known"


def test_a_forked_rank_says_so():
    ranks = {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "64", "HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "64"}
    assert launch_from_environment(ranks) == HOST_OF_64
    assert launch_from_environment(ranks | {FORKED: "1"}) == FORKED_64
