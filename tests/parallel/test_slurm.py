"""The ranks of an srun step find each other: rank 0's address, its rendezvous, and the places that Horovod gets."""

import os
import socket
import threading
import time
import urllib.error
from concurrent.futures import ThreadPoolExecutor

import pytest

from tftrain.parallel import slurm
from tftrain.parallel.launcher import Launch, launch_from_environment
from tftrain.parallel.rendezvous import TOKEN, LauncherStore, address_of_store


def environment(rank, port, **changes):
    """The variables of a rank of four on this machine, which stands for two hosts of two tasks each."""
    slurm_variables = {
        **{"JOB_ID": "41", "STEP_ID": "0", "STEP_NUM_TASKS": "4", "STEP_TASKS_PER_NODE": "2(x2)"},
        **{"PROCID": str(rank), "LOCALID": str(rank % 2), "NODEID": str(rank // 2)},
        "STEP_NODELIST": "localhost,nosuchhost",
    }
    variables = {f"SLURM_{name}": value for name, value in slurm_variables.items()}
    return {**variables, "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port), "HOROVOD_GLOO_IFACE": "lo", **changes}


@pytest.fixture(autouse=True)
def _token(monkeypatch, tmp_path):
    monkeypatch.setenv(TOKEN, "that of the batch script")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def connect(environ, seconds=20):
    return slurm.connect(launch_from_environment(environ), environ, seconds)


@pytest.fixture
def port():
    with socket.socket() as unused:
        unused.bind(("", 0))
        return unused.getsockname()[1]


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        *(("node1", "node1"), ("node[1-2]", "node1"), ("node[03-05,7],login", "node03")),
        *(("node[7,9]-ib,login", "node7-ib"), ("rack[2-3]n[08-11]", "rack2n08")),
        ("gpu-a.example.org,gpu-b.example.org", "gpu-a.example.org"),
    ],
)
def test_first_host_of_a_step(hosts, first):
    assert slurm.first_host(hosts) == first


def test_steps_at_the_same_time_have_ports_of_their_own():
    steps = [(job, step) for job in range(1000, 1256) for step in range(16)]
    ports = {slurm.port_of_step({"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)}) for job, step in steps}
    assert len(ports) == len(steps)
    assert min(ports) == 61440
    assert max(ports) == 65535
    reserved = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_STEP_RESV_PORTS": "12000-12003"}
    assert slurm.port_of_step(reserved) == 12000
    assert slurm.port_of_step({**reserved, "HOROVOD_GLOO_RENDEZVOUS_PORT": "12345"}) == 12345
    with pytest.raises(slurm.SlurmError, match="PORT=any: expected the number of a port"):
        slurm.port_of_step({**reserved, "HOROVOD_GLOO_RENDEZVOUS_PORT": "any"})


def test_ranks_wait_for_rank_0_and_get_their_places(port):
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(connect, environment(rank, port)) for rank in (3, 2, 1)]
        time.sleep(0.3)
        assert not any(each.done() for each in waiting), "rank 0 serves nothing yet"
        found = [connect(environment(0, port)), *(each.result() for each in reversed(waiting))]
    names = [variables.pop("HOROVOD_HOSTNAME") for variables in found]
    assert len(set(names)) == 2
    places = dict(zip(("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"), "341212", strict=True))
    assert found[3] == {
        **{f"HOROVOD_{name}": number for name, number in places.items()},
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_GLOO_IFACE": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }
    LauncherStore(address_of_store(found[0])).put("width", "2")
    assert LauncherStore(address_of_store(found[3])).get("width") == "2"


def test_ranks_of_a_user_share_a_token_that_nobody_else_can_read(port, tmp_path, monkeypatch):
    monkeypatch.delenv(TOKEN)
    waits = threading.Thread(target=connect, args=[environment(1, port)])
    waits.start()
    connect(environment(0, port))
    waits.join()
    file = tmp_path / "cache/tftrain/steps/41.0"
    assert file.read_text() == os.environ[TOKEN]
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    monkeypatch.delenv(TOKEN)
    with pytest.raises(urllib.error.HTTPError, match="403"):
        LauncherStore(f"127.0.0.1:{port}").get("slurm_step")
    file.unlink()
    with pytest.raises(slurm.AbsentServerError, match=r"no token in .*41\.0, which the hosts must share; or write"):
        connect(environment(1, port), seconds=0.3)
    monkeypatch.setenv(TOKEN, "restored after the test")


@pytest.mark.parametrize(
    "changes",
    [
        {"HOROVOD_CONTROLLER": "mpi"},
        {"SLURM_STEP_NUM_TASKS": "1"},
        # Open MPI's mpirun inside a step of Slurm.
        {f"OMPI_COMM_WORLD_{name}": "4" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")},
    ],
)
def test_other_launchers_connect_their_ranks_themselves(changes, port):
    assert connect(environment(0, port, **changes)) == {}
    assert slurm.connect(Launch(), {}) == {}


def test_rank_0_that_does_not_serve_is_named_with_its_host(port):
    with pytest.raises(slurm.AbsentServerError, match=rf"localhost:{port} within 0.3 seconds \(.*refused"):
        connect(environment(1, port), seconds=0.3)


def test_the_rendezvous_of_another_step_is_not_taken(port):
    connect(environment(0, port))
    with pytest.raises(slurm.AbsentServerError, match="another program listens there"):
        connect(environment(1, port, SLURM_STEP_ID="1"), seconds=0.3)
    with pytest.raises(slurm.SlurmError, match=f"can't listen at port {port} of localhost: Address already in use"):
        connect(environment(0, port, SLURM_STEP_ID="1"))


def test_a_name_with_the_address_of_loopback_is_refused_for_several_hosts(port):
    alone = environment(0, port, SLURM_STEP_TASKS_PER_NODE="4")
    del alone["HOROVOD_GLOO_IFACE"]
    assert connect(alone)["HOROVOD_GLOO_IFACE"] == "lo"
    several = {**alone, "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_PROCID": "1", "SLURM_LOCALID": "1"}
    with pytest.raises(slurm.SlurmError, match=r"localhost.*is 127.0.0.1.*set HOROVOD_GLOO_IFACE .* one of lo"):
        connect(several)
