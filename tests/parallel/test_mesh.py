"""How ranks are connected."""

import pytest

from tftrain.parallel.launcher import Launch
from tftrain.parallel.mesh import Mesh, MeshError
from tftrain.parallel.start import speed_settings, split_size_of, stall_limits

CHECK, SHUTDOWN = "HOROVOD_STALL_CHECK_TIME_SECONDS", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"


def test_a_stalled_run_ends_unless_the_user_has_other_limits():
    assert stall_limits({}) == {CHECK: "60", SHUTDOWN: "600"}
    assert stall_limits({SHUTDOWN: "90"}) == {CHECK: "60", SHUTDOWN: "90"}


@pytest.mark.parametrize(
    "switched_off",
    [{SHUTDOWN: "0"}, {CHECK: "0"}, {SHUTDOWN: "-1"}, {SHUTDOWN: "never"}, {"HOROVOD_STALL_CHECK_DISABLE": "1"}],
)
def test_no_run_may_switch_that_off(switched_off):
    ((name, value),) = switched_off.items()
    with pytest.raises(MeshError, match=f"{name}={value}: expected"):
        stall_limits(switched_off)


GLOO = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": "1"}
CYCLE, CACHE, FUSION = "HOROVOD_CYCLE_TIME", "HOROVOD_CACHE_CAPACITY", "HOROVOD_FUSION_THRESHOLD"


@pytest.mark.parametrize(
    ("size", "local_size", "cores", "expected"),
    [(2, 2, 2, 1), (512, 8, 96, 1), (4, 4, 2, 1), (16, 16, 2, 12.8), (64, 64, 2, 204.8), (64, 32, 2, 102.4)],
)
def test_ranks_that_share_cores_ask_each_other_less_often(size, local_size, cores, expected):
    settings = speed_settings(GLOO, Launch(0, size, 0, local_size), cores)
    assert float(settings[CYCLE]) == expected


def test_a_rank_that_a_launcher_has_bound_to_a_core_keeps_the_short_cycle():
    assert speed_settings({}, Launch(0, 16, 0, 16), 1)[CYCLE] == "1"


def test_collectives_of_gpus_do_not_wait_for_the_host():
    settings = speed_settings({}, Launch(0, 8, 0, 8), 96, gpu=True)
    assert (settings[CYCLE], settings["HOROVOD_ENABLE_ASYNC_COMPLETION"]) == ("0.1", "1")
    assert "HOROVOD_ENABLE_ASYNC_COMPLETION" not in speed_settings({}, Launch(0, 8, 0, 8), 96)


def test_buckets_of_cpus_have_a_small_buffer_for_joint_sums():
    two = Launch(0, 2, 0, 2)
    assert speed_settings({}, two, 2, splits_state=True)[FUSION] == "4194304"
    assert FUSION not in speed_settings({}, two, 2) | speed_settings({}, two, 2, gpu=True, splits_state=True)


def test_the_speed_settings_of_the_user_count():
    given = {**GLOO, CYCLE: "3.5", CACHE: "0", FUSION: "0"}
    settings = speed_settings(given, Launch(0, 64, 0, 64), 2, splits_state=True)
    assert settings == {name: given[name] for name in (CYCLE, CACHE, FUSION)}
    # The fourth tensor of each of 1,000 layers still fits.
    assert int(speed_settings({}, Launch(0, 2, 0, 2), 2)[CACHE]) > 4000


MESHES = [(1, 1, 1), (12, 3, 1), (12, 3, 2), (16, 2, 4), (6, 1, 6), (8, 2, 2)]


@pytest.mark.parametrize(("size", "tensor", "pipeline"), MESHES)
def test_stages_follow_each_other_at_the_same_place(size, tensor, pipeline):
    for rank in range(size):
        mesh = Mesh(rank, size, tensor_parallel_size=tensor, pipeline_parallel_size=pipeline)
        line = mesh.group("pipeline").ranks
        assert line.index(rank) == mesh.stage
        assert (mesh.stage == pipeline - 1) == (rank == line[-1])


@pytest.mark.parametrize(("size", "tensor", "pipeline"), MESHES)
def test_a_model_group_holds_every_stage_and_slice_once_and_a_stage_group_all_replicas(size, tensor, pipeline):
    meshes = [Mesh(rank, size, tensor_parallel_size=tensor, pipeline_parallel_size=pipeline) for rank in range(size)]
    for mesh in meshes:
        model = [(meshes[rank].stage, meshes[rank].tensor.rank) for rank in mesh.group("model").ranks]
        assert sorted(model) == [(stage, place) for stage in range(pipeline) for place in range(tensor)]
        assert {meshes[rank].data.rank for rank in mesh.group("model").ranks} == {mesh.data.rank}
        assert {meshes[rank].stage for rank in mesh.group("stage").ranks} == {mesh.stage}
        assert mesh.group("stage").size == size // pipeline


@pytest.mark.parametrize(("size", "tensor", "split"), [(8, 1, 4), (12, 3, 2), (8, 2, 1), (4, 1, 4)])
def test_the_holders_of_a_divided_state_have_every_shard_once(size, tensor, split):
    meshes = [Mesh(rank, size, tensor_parallel_size=tensor, split_size=split) for rank in range(size)]
    for mesh in meshes:
        shards = [(meshes[rank].tensor.rank, meshes[rank].split.rank) for rank in mesh.group("holders").ranks]
        assert sorted(shards) == [(place, shard) for place in range(tensor) for shard in range(split)]
        assert mesh.replicas.size == (mesh.data.size // split if split > 1 else 1)
        assert {meshes[rank].split.rank for rank in mesh.replicas.ranks} == {mesh.split.rank}
        assert {meshes[rank].tensor.rank for rank in mesh.replicas.ranks} == {mesh.tensor.rank}
    assert Mesh(3, 8).split == Mesh(3, 8).data
    assert Mesh(3, 8).replicas.size == 1


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


def test_one_stage_needs_no_process_sets_of_its_own():
    groups = Mesh(size=12, tensor_parallel_size=3).groups
    assert groups["model"] == groups["tensor"]
    assert groups["stage"] == groups["world"]
