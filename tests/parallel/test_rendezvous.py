"""What rank 0 says before Horovod starts reaches the others through the launcher's own store."""

import collections
import threading
import time

import pytest
from horovod.runner.http.http_server import KVStoreServer

from tftrain.parallel import rendezvous, start
from tftrain.parallel.launcher import Launch
from tftrain.parallel.mesh import MeshError
from tftrain.parallel.rendezvous import await_all, pause_after, value_of_rank_0


@pytest.fixture
def store():
    """The environment that horovodrun gives to its ranks."""
    server = KVStoreServer(verbose=0)
    port = server.start_server()
    yield {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port)}
    server.shutdown_server()


def test_other_ranks_wait_for_what_rank_0_says(store):
    late = threading.Timer(0.3, value_of_rank_0, (Launch(0, 3), "width", "2", store))
    late.start()
    assert value_of_rank_0(Launch(2, 3), "width", "4", store, seconds=20) == "2"
    late.join()


@pytest.mark.parametrize("address", ["", "127.0.0.1:1", "here"])
def test_without_a_store_or_rank_0_there_is_nothing_to_compare(store, address):
    given = dict(zip(store, address.split(":"), strict=False)) if address != "here" else store
    assert value_of_rank_0(Launch(1, 2), "width", "4", given, seconds=0.3) == "4"


def test_ranks_that_want_other_groups_are_named_before_horovod_makes_any(store, monkeypatch):
    for name, value in store.items():
        monkeypatch.setenv(name, value)
    value_of_rank_0(Launch(0, 4), "sizes", '{"tensor_parallel_size": 2, "pipeline_parallel_size": 1}')
    with pytest.raises(MeshError, match="on rank 3 --tensor_parallel_size is 1, but 2 on rank 0"):
        start.start(Launch(3, 4, 3, 4), 1)


def together(work, ranks):
    """Calls work(rank) in a thread for each rank; returns the threads."""
    threads = [threading.Thread(target=work, args=[rank], name=str(rank)) for rank in ranks]
    for thread in threads:
        thread.start()
    return threads


def test_nobody_goes_on_before_the_last_has_come_and_every_rank_learns_the_values_of_all(store):
    found = {}

    def come(rank, start="first"):
        found[rank] = await_all(Launch(rank, 3), store, 20, value=f"{start}{rank}")

    early = together(come, (0, 2))
    time.sleep(0.5)
    assert found == {}
    come(1)
    for thread in early:
        thread.join()
    assert found == {rank: ["first0", "first1", "first2"] for rank in range(3)}
    come(1, "second")  # It belongs to another start, whose rank 0 is not there yet.
    assert found[1] is None
    assert await_all(Launch(0, 3), {}) is None


def test_one_that_never_comes_is_not_awaited_for_ever(store):
    begin = time.monotonic()
    await_all(Launch(0, 2), store, 0.5)
    assert time.monotonic() - begin < 10


def test_only_rank_0_asks_for_every_rank(store, monkeypatch):
    names = collections.defaultdict(set)
    send = rendezvous.urllib.request.OpenerDirector.open

    def count(opener, request, *args, **options):
        url = getattr(request, "full_url", request)
        names[threading.current_thread().name].add(url.rpartition("/")[2])
        return send(opener, request, *args, **options)

    monkeypatch.setattr(rendezvous.urllib.request.OpenerDirector, "open", count)
    for thread in together(lambda rank: await_all(Launch(rank, 6), store, 20), range(6)):
        thread.join()
    assert len(names["0"]) == 7
    assert all(names[str(rank)] == {f"present_{rank}", "all_present"} for rank in range(1, 6))


@pytest.mark.parametrize("ranks", [2, 64, 4096])
def test_the_server_can_answer_all_ranks_that_wait(ranks):
    waited, asked = 0.0, 0
    while waited < rendezvous.ARRIVAL_SECONDS:
        pause = pause_after(waited, ranks)
        assert ranks / pause <= max(rendezvous.REQUESTS_PER_SECOND, ranks / rendezvous.POLL_SECONDS / 2)
        assert pause <= max(0.2, 11, 0.2 * waited)
        waited, asked = waited + pause, asked + 1
    assert asked <= 70
