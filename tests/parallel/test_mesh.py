"""The groups of ranks, and how ranks are connected."""

import pytest

from tftrain.parallel.horovod_settings import speed_settings, stall_limits
from tftrain.parallel.launcher import Launch
from tftrain.parallel.mesh import Mesh, MeshError
from tftrain.parallel.start import split_size_of

CHECK, SHUTDOWN = "HOROVOD_STALL_CHECK_TIME_SECONDS", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"
GLOO = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": "1"}
CYCLE, CACHE, FUSION = "HOROVOD_CYCLE_TIME", "HOROVOD_CACHE_CAPACITY", "HOROVOD_FUSION_THRESHOLD"
ASYNC = "HOROVOD_ENABLE_ASYNC_COMPLETION"


def test_a_stalled_run_ends_unless_the_user_has_other_limits():
    assert stall_limits({}) == {CHECK: "60", SHUTDOWN: "600"}
    assert stall_limits({SHUTDOWN: "90"}) == {CHECK: "60", SHUTDOWN: "90"}


@pytest.mark.parametrize(
    ("name", "value"),
    [(SHUTDOWN, "0"), (CHECK, "0"), (SHUTDOWN, "-1"), (SHUTDOWN, "never"), ("HOROVOD_STALL_CHECK_DISABLE", "1")],
)
def test_no_run_may_switch_that_off(name, value):
    with pytest.raises(MeshError, match=f"{name}={value}: expected"):
        stall_limits({name: value})


@pytest.mark.parametrize(
    ("size", "local_size", "cores", "environ", "expected"),
    [
        *((2, 2, 2, GLOO, 1), (512, 8, 96, GLOO, 1), (4, 4, 2, GLOO, 1), (16, 16, 2, GLOO, 12.8)),
        *((64, 64, 2, GLOO, 204.8), (64, 32, 2, GLOO, 102.4)),
        (16, 16, 1, {}, 1),  # another launcher may have bound each rank to a core
    ],
)
def test_ranks_that_share_cores_ask_each_other_less_often(size, local_size, cores, environ, expected):
    assert float(speed_settings(environ, Launch(0, size, 0, local_size), cores)[CYCLE]) == expected


def test_speed_settings_are_those_of_the_device_and_of_the_user():
    two = Launch(0, 2, 0, 2)
    on_gpu = speed_settings({}, two, 96, gpu=True, splits_state=True)
    assert (on_gpu[CYCLE], on_gpu[ASYNC], FUSION in on_gpu) == ("0.1", "1", False)
    assert speed_settings({}, two, 2, splits_state=True)[FUSION] == "4194304"
    plain = speed_settings({}, two, 2)
    assert plain.keys() == {CYCLE, CACHE}
    assert int(plain[CACHE]) > 4000  # The fourth tensor of each of 1,000 layers still fits.
    given = {CYCLE: "3.5", CACHE: "0", FUSION: "0"}
    assert speed_settings({**GLOO, **given}, Launch(0, 64, 0, 64), 2, splits_state=True) == given


@pytest.mark.parametrize(
    ("size", "tensor", "pipeline"), [(1, 1, 1), (12, 3, 1), (12, 3, 2), (16, 2, 4), (6, 1, 6), (8, 2, 2)]
)
def test_every_rank_is_in_one_group_of_each_kind(size, tensor, pipeline):
    meshes = [Mesh(rank, size, tensor_parallel_size=tensor, pipeline_parallel_size=pipeline) for rank in range(size)]
    sizes = {"data": size // tensor // pipeline, "tensor": tensor, "pipeline": pipeline, "world": size}
    for kind, expected in {**sizes, "model": tensor * pipeline, "stage": size // pipeline}.items():
        groups = {mesh.group(kind).ranks for mesh in meshes}
        assert sorted(rank for ranks in groups for rank in ranks) == list(range(size))
        assert {len(ranks) for ranks in groups} == {expected}
    for mesh in meshes:
        line, model = mesh.pipeline.ranks, [meshes[rank] for rank in mesh.group("model").ranks]
        assert mesh.rank == mesh.tensor.rank + tensor * (mesh.data.rank + sizes["data"] * mesh.stage)
        assert (mesh.stage, mesh.stage == pipeline - 1) == (line.index(mesh.rank), mesh.rank == line[-1])
        held = [(each.stage, each.tensor.rank) for each in model]
        assert sorted(held) == [(stage, place) for stage in range(pipeline) for place in range(tensor)]
        assert {each.data.rank for each in model} == {mesh.data.rank}
        assert {meshes[rank].stage for rank in mesh.group("stage").ranks} == {mesh.stage}


def test_neighbours_split_layers_and_stages_lie_apart():
    mesh = Mesh(7, 12, tensor_parallel_size=3, pipeline_parallel_size=2)
    assert (mesh.tensor.ranks, mesh.data.ranks, mesh.pipeline.ranks) == ((6, 7, 8), (7, 10), (1, 7))
    # Ranks of one tensor parallel group see the same samples.
    assert {Mesh(rank, 12, tensor_parallel_size=3).data.share(8) for rank in (6, 7, 8)} == {(4, 6)}
    assert [Mesh(rank, 4).data.share(12) for rank in range(4)] == [(0, 3), (3, 6), (6, 9), (9, 12)]
    groups = Mesh(size=12, tensor_parallel_size=3).groups  # One stage needs no process sets of its own.
    assert (groups["model"], groups["stage"]) == (groups["tensor"], groups["world"])


@pytest.mark.parametrize(("size", "tensor", "split"), [(8, 1, 4), (12, 3, 2), (8, 2, 1), (4, 1, 4)])
def test_the_holders_of_a_divided_state_have_every_shard_once(size, tensor, split):
    meshes = [Mesh(rank, size, tensor_parallel_size=tensor, split_size=split) for rank in range(size)]
    for mesh in meshes:
        shards = [(meshes[rank].tensor.rank, meshes[rank].split.rank) for rank in mesh.group("holders").ranks]
        assert sorted(shards) == [(place, shard) for place in range(tensor) for shard in range(split)]
        replicas = [meshes[rank] for rank in mesh.replicas.ranks]
        assert len(replicas) == (mesh.data.size // split if split > 1 else 1)
        assert {(each.split.rank, each.tensor.rank) for each in replicas} == {(mesh.split.rank, mesh.tensor.rank)}
    assert (Mesh(3, 8).split, Mesh(3, 8).replicas.size) == (Mesh(3, 8).data, 1)


@pytest.mark.parametrize(
    ("launch", "tensor", "expected"),
    [(Launch(5, 8, 1, 4), 1, 4), (Launch(5, 8, 1, 4), 2, 2), (Launch(1, 4, 1, 4), 1, None), (Launch(1, 2, 0, 1), 1, 1)],
)
def test_the_data_parallel_ranks_of_a_host_can_divide_the_state(launch, tensor, expected):
    assert split_size_of(launch, tensor) == expected


@pytest.mark.parametrize(
    ("launch", "tensor", "problem"),
    [
        (Launch(1, 8, 0, 4), 1, "expected as many ranks on every host, one host after the other"),  # by turns
        (Launch(0, 6, 0, 4), 1, "expected as many ranks on every host, one host after the other"),
        (Launch(0, 12, 0, 6), 4, "expected a multiple of --tensor_parallel_size=4"),
    ],
)
def test_hosts_that_cannot_be_split_groups_are_refused(launch, tensor, problem):
    with pytest.raises(MeshError, match=f"--split_group=host: .*{problem}"):
        split_size_of(launch, tensor)
