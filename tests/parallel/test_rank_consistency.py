"""Ranks that would not do the same say so, all of them, before anything hangs."""

import re
import time

import pytest

from tests.kit.ranks import run_ranks
from tests.kit.runs import SMALL
from tftrain.cli import flags
from tftrain.config.fields import sections
from tftrain.config.train import TrainConfig
from tftrain.parallel import rank_consistency
from tftrain.parallel.mesh import Mesh


def test_every_flag_is_compared_but_those_of_the_host():
    left_out = {"cache_dir", "cache_gb", "cpu_threads", "data_readers", "huge_pages", "machine_file"}
    names = {name for section in sections(TrainConfig()) for name in section.__dataclass_fields__}
    assert set(rank_consistency.settings(sections(TrainConfig()))) == {f"--{name}" for name in names - left_out}


@pytest.mark.parametrize("name", ["data_dir", "train_file", "chat_template", "tokenizer_dir", "resume"])
def test_a_path_may_differ_but_not_whether_there_is_one(name):
    one, other, none = (
        rank_consistency.settings(sections(flags.parse(TrainConfig, ["tftrain.run", *args])))
        for args in ([f"--{name}=here"], [f"--{name}=there"], [])
    )
    assert one == other != none


def test_digests_are_cheap():
    rank_consistency.settings(sections(TrainConfig()))
    begin = time.perf_counter()
    rank_consistency.settings(sections(TrainConfig()))
    assert time.perf_counter() - begin < 0.05


def test_one_rank_agrees_with_itself():
    rank_consistency.require_same(Mesh(), {"world": {"--seed": "1"}}, "x")


def test_ranks_are_compared_within_their_group_and_named_together():
    groups = Mesh(size=6, tensor_parallel_size=2).groups
    # Data groups are ranks 0, 2, 4 and 1, 3, 5; what differs between them is none of the other's business.
    told = [{"data": {"a": f"tensor rank {rank % 2}", "b": "1", "c": "1"}} for rank in range(6)]
    assert rank_consistency.differences(told, groups, most=8) == []
    for rank in (3, 5):
        told[rank] = {"data": {"a": "new", "c": "2"}}
    assert rank_consistency.differences(told, groups, most=8) == [
        "on ranks 3, 5 a is new, but tensor rank 1 on rank 1, b is missing, but 1 on rank 1, c is 2, but 1 on rank 1"
    ]
    hosts = ["node1", "node1", "node2", "node2", "node3", "node3"]
    assert rank_consistency.differences(told, groups, 1, hosts) == [
        "on ranks 3, 5 (node2, node3) a is new, but tensor rank 1 on rank 1 (node1)"
    ]
    assert rank_consistency.differences(told, groups, most=1) == ["on ranks 3, 5 a is new, but tensor rank 1 on rank 1"]


@pytest.mark.multirank
def test_two_ranks_refuse_each_other_whichever_is_the_odd_one():
    output = run_ranks(2, ["-m", "tests.parallel.two_ranks_disagree"])
    assert output.count("both ranks refused") == 2


@pytest.mark.multirank
def test_a_run_with_two_flagfiles_ends_and_names_rank_and_flag(tmp_path):
    for rank in range(2):
        (tmp_path / f"{rank}.flags").write_text(f"--max_steps={2 + rank}\n")
    program = (
        "import os, sys; from tftrain import run; "
        f"sys.exit(run.main([*sys.argv, '--flagfile={tmp_path}/' + os.environ['HOROVOD_RANK'] + '.flags']))"
    )
    output = run_ranks(2, ["-c", program, *SMALL, f"--output_dir={tmp_path / 'out'}"], expected_code=1)
    assert "the ranks disagree: on rank 1 --max_steps is 3, but 2 on rank 0" in output
    assert not re.search(r"\[[01]\]<stderr>:Traceback", output)
