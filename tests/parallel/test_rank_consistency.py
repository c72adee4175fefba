"""Ranks that would not do the same say so, all of them, before anything hangs."""

import re
import time
import types

import pytest
import tensorflow as tf

from tests.kit.ranks import run_ranks
from tests.kit.runs import SMALL
from tests.parallel.simulated_ranks import SimulatedRanks
from tftrain.cli import flags
from tftrain.config.fields import sections
from tftrain.config.train import TrainConfig
from tftrain.parallel import graph_collectives, rank_consistency
from tftrain.parallel.gradient_reduction import all_reduce_sum
from tftrain.parallel.mesh import AgreedMeshError, Group, Mesh
from tftrain.parallel.pending_collectives import PendingCollectives
from tftrain.train import rank_checks


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


def refusals(monkeypatch, check):
    """Calls check(mesh) on two ranks, and returns the message with which both refuse."""

    def refusal(group):
        with pytest.raises(AgreedMeshError) as error:
            check(Mesh(group.rank, 2))
        return str(error.value)

    first, second = SimulatedRanks(2, monkeypatch).run(refusal)
    assert first == second
    return first


@pytest.mark.parametrize("odd", [0, 1])
def test_ranks_with_other_flags_refuse_each_other_whichever_is_the_odd_one(monkeypatch, odd):
    changed = ["--learning_rate=0.02", "--adam_beta1=0.5", "--output_dir=elsewhere"]
    given = [[], []]
    given[odd] = changed
    configs = [flags.parse(TrainConfig, ["tftrain.run", "--output_dir=unused", *each]) for each in given]
    facts = [{"world": rank_consistency.settings(sections(config))} for config in configs]
    said = refusals(monkeypatch, lambda mesh: rank_consistency.require_same(mesh, facts[mesh.rank], "start"))
    assert said.startswith("the ranks disagree: on rank 1 --")
    for flag, *values in (("--learning_rate", "0.001", "0.02"), ("--adam_beta1", "0.9", "0.5")):
        assert f"{flag} is {values[odd]}, but {values[1 - odd]} on rank 0" in said
    assert "output_dir" not in said


def step(name, width):
    """A traced step with a nested function and a loop, whose second collective has a name and a width."""
    group = Group("world", (0, 1), 0, None, PendingCollectives())

    @tf.function(autograph=False)
    def inner(x):
        body = lambda index, total: (index + 1, total + all_reduce_sum(group, [x], "looped")[0])  # noqa: E731
        return tf.while_loop(lambda index, _: index < 2, body, (0, tf.zeros([3])), parallel_iterations=1)[1]

    @tf.function(autograph=False)
    def outer(x):
        return all_reduce_sum(group, [tf.zeros([width]) + inner(x)[0]], name)[0]

    function = outer.get_concrete_function(tf.TensorSpec([3]))
    return types.SimpleNamespace(traced=lambda *_: function)


SUM = "GroupedAllreduce world.{}.0 of float32({},)"


def test_collectives_of_nested_functions_and_loops_are_compared_before_the_first_step(monkeypatch):
    last, other, wide = step("last", 5), step("other", 5), step("last", 6)
    found = graph_collectives.collectives_of(last.traced())
    assert found == {"world": [SUM.format("looped", 3), SUM.format("last", 5)]}
    for steps, expected in (([last, other], ("other", 5, "last", 5)), ([wide, last], ("last", 5, "last", 6))):
        check = lambda mesh, steps=steps: rank_checks.before_first_step(steps[mesh.rank], {}, None, mesh, "")  # noqa: E731
        said = refusals(monkeypatch, check)
        clause = f"{SUM.format(*expected[:2])}, but {SUM.format(*expected[2:])} on rank 0"
        assert f"on rank 1 collective 1 of the world group is {clause};" in said


def test_ranks_whose_auto_chooses_other_ops_refuse_each_other(monkeypatch):
    ops, same = ("attn_impl=cudnn ln_impl=fused", "attn_impl=flash ln_impl=fused"), step("last", 5)
    check = lambda mesh: rank_checks.before_first_step(same, {}, None, mesh, ops[mesh.rank])  # noqa: E731
    assert f"on rank 1 the choice of ops is {ops[1]}, but {ops[0]} on rank 0;" in refusals(monkeypatch, check)


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
