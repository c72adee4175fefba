"""Collectives by TensorFlow do what they do by Horovod: results, gradients, and the end of a run that loses a rank."""

import dataclasses
import os
import signal
import socket
import threading

import pytest
import tensorflow as tf

from tests.kit.final_state import final_state
from tests.kit.ranks import run_ranks, started_ranks
from tests.observe.test_watchdog import ENDLESS
from tftrain.config.parallel import ParallelConfig
from tftrain.host.exit_codes import ExitCode
from tftrain.parallel import collectives, graph_collectives, start, tensorflow_cluster, tensorflow_transport
from tftrain.parallel.mesh import SUMS_OF_XLA, AgreedMeshError, Group, Mesh, MeshError
from tftrain.parallel.pending_collectives import PendingCollectives

STORE = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": "1"}


def kinds(transport, environ, gpu=False, tensor=2, pipeline=2):
    mesh = Mesh(size=8, tensor_parallel_size=tensor, pipeline_parallel_size=pipeline)
    return start.tensorflow_kinds(mesh, transport, environ, gpu)


def test_who_has_which_transport():
    both = ("tensor", "link")
    assert kinds("tensorflow", STORE) == both
    assert kinds("tensorflow", STORE, tensor=1) == ("link",)
    assert kinds("tensorflow", STORE, gpu=True) == ("tensor",)
    for none in (("horovod", STORE), ("auto", STORE), ("auto", {}), ("tensorflow", STORE, False, 1, 1)):
        assert kinds(*none) == ()
    mesh = Mesh(size=8, tensor_parallel_size=2, pipeline_parallel_size=2, tensorflow_kinds=both)
    assert mesh.tensor.by_tensorflow
    assert mesh.link(1).by_tensorflow
    assert not any(mesh.group(kind).by_tensorflow for kind in mesh.groups if kind != "tensor")


def test_sums_inside_the_compiled_program_need_connections_and_no_group():
    def found(mesh, environ=STORE, gpu=True):
        return start.tensorflow_kinds(mesh, "auto", environ, gpu, "xla")

    pair = Mesh(size=2, local_size=2)
    assert found(pair) == SUMS_OF_XLA
    assert found(Mesh()) == found(Mesh(), {}, False) == ()  # One rank sums nothing.
    mesh = dataclasses.replace(pair, tensorflow_kinds=SUMS_OF_XLA)
    assert not any(mesh.group(kind).by_tensorflow for kind in mesh.groups)
    with pytest.raises(MeshError, match=r"--gradient_transport=xla: expected horovod, because TensorFlow finds no GPU"):
        found(pair, gpu=False)
    with pytest.raises(AgreedMeshError, match=r"--gradient_transport=xla: expected horovod.*MPI"):
        found(pair, {})


def test_what_has_no_transport_is_refused_with_the_flag():
    with pytest.raises(AgreedMeshError, match=r"--group_transport=tensorflow: expected auto or horovod.*MPI"):
        kinds("tensorflow", {})
    (problem,) = ParallelConfig(group_transport="tensorflow").problems(4, {})
    assert problem.flag == "group_transport"
    assert "add --tensor_parallel_size" in str(problem)
    assert not list(ParallelConfig(group_transport="tensorflow", pipeline_parallel_size=2).problems(4, {}))


@pytest.mark.parametrize("size", [2, 10, 11, 101, 1024])
def test_names_of_devices_are_in_the_order_of_the_ranks(size):
    numbers = [tensorflow_cluster.task(rank, size) for rank in range(size)]
    assert numbers == sorted(numbers, key=str) == list(range(numbers[0], numbers[0] + size))


def test_the_ranks_are_reached_without_a_proxy():
    addresses = ["10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:1"]
    assert tensorflow_cluster.without_proxy(addresses, {}) == "10.0.0.1,10.0.0.2"
    assert tensorflow_cluster.without_proxy(addresses[2:], {"no_proxy": "a,b"}) == "a,b,10.0.0.2"


def reaches(address, port):
    try:
        with socket.create_connection((address, port), 1):
            return True
    except OSError:
        return False


@pytest.mark.parametrize(("family", "wildcard"), [(socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")])
def test_a_port_is_reached_at_the_address_of_the_run_alone(family, wildcard):
    with socket.socket(family) as server:
        if family == socket.AF_INET6:  # As gRPC listens.
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        server.bind((wildcard, 0))
        server.listen()
        port = server.getsockname()[1]
        assert all(reaches(address, port) for address in ("127.0.0.1", "127.0.0.2"))
        tensorflow_cluster.listen_only_at("127.0.0.2", port, ["127.0.0.1", "127.0.0.2"])
        assert [reaches(address, port) for address in ("127.0.0.1", "127.0.0.2", "::1")] == [False, True, False]
        with pytest.raises(OSError, match="timed out"):  # From a host without ranks.
            socket.create_connection(("127.0.0.2", port), 1, ("127.0.0.3", 0))
        for _ in range(3):
            server.accept()[0].close()
        with socket.create_connection(("127.0.0.2", port)) as client:
            connection = server.accept()[0]
            sent = os.urandom(1 << 20)
            sender = threading.Thread(target=connection.sendall, args=[sent])
            sender.start()
            received = client.recv(len(sent), socket.MSG_WAITALL)
            sender.join()
            connection.close()
        assert received == sent
    with pytest.raises(OSError, match=rf"nothing listens at port {port}"):
        tensorflow_cluster.listen_only_at("127.0.0.2", port, ["127.0.0.1", "127.0.0.2"])


@pytest.fixture
def group():
    return Group("tensor", (0, 1), 0, None, PendingCollectives(), by_tensorflow=True)


def test_a_collective_that_tensorflow_does_not_have_is_refused(group):
    with pytest.raises(ValueError, match=r"tensor.uneven: .*equal parts, given \[2, 1\]"):
        tf.function(
            lambda x: collectives._all_to_all(group, x, [2, 1], "uneven"), autograph=False
        ).get_concrete_function(tf.zeros([3]))
    with pytest.raises(ValueError, match=r"tensor\.vague: expected a known shape"):
        traced(group, "vague", shape=[None, 3])


def traced(group, *names, shape=(2, 3)):
    def step(x):
        for name in names:
            x = collectives.all_reduce(group, x, name)
        return x

    return tf.function(step, autograph=False).get_concrete_function(tf.TensorSpec(shape))


def test_collectives_of_a_graph_are_listed_like_horovods(group):
    found = graph_collectives.collectives_of(traced(group, "a/b", "c"))
    assert found == {"tensor": ["Gather tensor.a.b of float32(1, 2, 3)", "Gather tensor.c of float32(1, 2, 3)"]}


def test_two_collectives_with_one_number_are_refused(group, monkeypatch):
    monkeypatch.setattr(tensorflow_transport, "number", lambda _: 7)
    with pytest.raises(MeshError, match=r"tensor\.a and tensor.b have the same number.*--group_transport=horovod"):
        graph_collectives.collectives_of(traced(group, "a", "b"))


@pytest.mark.multirank
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.nightly)])
def test_both_transports_agree(ranks):
    output = run_ranks(ranks, ["-m", "tests.parallel.transport_ranks"])
    assert output.count("TensorFlow's transport agrees with Horovod's") == ranks


@pytest.mark.multirank
def test_the_ranks_of_a_program_that_xla_compiles_are_connected():
    assert run_ranks(2, ["-m", "tests.parallel.sums_of_xla_ranks"]).count("the ranks are connected") == 2


LAYOUTS = {
    "tp2": ["--tensor_parallel_size=2"],
    "pp2": ["--num_hidden_layers=2", "--pipeline_parallel_size=2", "--grad_accum_steps=2"],
}


@pytest.mark.multirank
@pytest.mark.nightly
def test_a_deterministic_run_repeats_its_bits(tmp_path):
    """Three ranks add tensors of 300 KB in one exchange, and those of 1.2 MB in a ring."""
    sizes = ["--hidden_size=384", "--num_attention_heads=6", "--max_seq_length=32", "--max_steps=3", "--eval_every=-1"]
    found = []
    for name, samples in (("small", 6), ("large", 24), ("again", 24), ("small_again", 6)):
        given = [*ENDLESS, *sizes, f"--global_batch_size={samples}", "--tensor_parallel_size=3", "--deterministic"]
        run_ranks(3, [*given, "--group_transport=tensorflow", f"--output_dir={tmp_path / name}"])
        found.append(final_state(tmp_path / name).shards)
    assert found[0] == found[3] != found[1] == found[2]


@pytest.mark.multirank
@pytest.mark.parametrize(
    ("fault", "layout"),
    [
        pytest.param(signal.SIGKILL, "tp2", marks=pytest.mark.nightly),
        (signal.SIGKILL, "pp2"),
        # tests/observe/test_watchdog.py stops a rank of Horovod's.
        *(pytest.param(signal.SIGSTOP, each, marks=pytest.mark.nightly) for each in ("tp2", "pp2")),
    ],
)
def test_a_rank_that_is_killed_or_stands_still_ends_the_others(tmp_path, fault, layout):
    given = [*ENDLESS, *LAYOUTS[layout], "--group_transport=tensorflow", "--step_timeout_seconds=10"]
    with started_ranks(2, [*given, f"--output_dir={tmp_path}"]) as ranks:
        ranks.wait_for("samples/s")
        ranks.processes[1].send_signal(fault)
        expected = ExitCode.PEER_ENDED if fault == signal.SIGKILL else ExitCode.STALLED
        assert ranks.codes([0], 28) == [expected]
        assert "Traceback" not in ranks.output(0)
        if fault == signal.SIGSTOP:
            assert "begun and not ended" in ranks.output(0)
            ranks.processes[1].send_signal(signal.SIGCONT)
            (code,) = ranks.codes([1], 60)
            assert code in (ExitCode.PEER_ENDED, ExitCode.STALLED)
