"""What a process takes of its host: its GPU, and its share of the cores."""

import os

import pytest
import tensorflow as tf

from tftrain.host import devices
from tftrain.parallel import start
from tftrain.parallel.launcher import Launch
from tftrain.parallel.mesh import Mesh, MeshError


@pytest.fixture
def host(monkeypatch):
    """A host of eight cores with the given GPUs; returns what the process takes of it."""
    taken = {}

    def of_gpus(gpus):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
        monkeypatch.setattr(devices, "gpus", lambda: gpus)
        record = taken.__setitem__
        for name in ("intra", "inter"):
            setter = f"set_{name}_op_parallelism_threads"
            monkeypatch.setattr(tf.config.threading, setter, lambda count, name=name: record(name, count))
        monkeypatch.setattr(tf.config, "set_visible_devices", lambda gpu, _: record("gpu", gpu))
        monkeypatch.setattr(tf.config.experimental, "set_memory_growth", lambda gpu, _: None)
        return taken

    return of_gpus


@pytest.mark.parametrize("gpus", [[], ["GPU:0", "GPU:1", "GPU:2", "GPU:3"]])
@pytest.mark.parametrize(("given", "threads"), [(0, 2), (3, 3)])
def test_the_ranks_of_a_host_share_its_cores_with_and_without_gpus(host, gpus, given, threads):
    taken = host(gpus)
    start._choose_device(Mesh(*Launch(1, 4, 1, 4)), given)
    assert (taken["intra"], taken["inter"]) == (threads, max(2, threads))
    assert taken.get("gpu") == (gpus[1] if gpus else None)


def test_a_rank_that_sees_one_gpu_takes_it(host):
    taken = host(["GPU:0"])
    start._choose_device(Mesh(*Launch(3, 4, 3, 4)), 0)
    assert taken["gpu"] == "GPU:0"


def test_more_ranks_than_gpus_are_refused(host):
    host(["GPU:0", "GPU:1"])
    with pytest.raises(MeshError, match="4 ranks on a host of 2 GPUs"):
        start._choose_device(Mesh(*Launch(2, 4, 2, 4)), 0)
