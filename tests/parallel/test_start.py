"""What a process takes of its host: its GPU, and its share of the cores."""

import os

import pytest
import tensorflow as tf

from tftrain.host import devices
from tftrain.parallel import start
from tftrain.parallel.mesh import Mesh, MeshError


@pytest.mark.parametrize(
    ("gpus", "rank", "given", "threads", "gpu"),
    [
        (0, 1, 0, 2, None),
        (0, 1, 3, 3, None),
        (4, 1, 0, 2, 1),
        (4, 1, 3, 3, 1),
        (1, 3, 0, 2, 0),  # A launcher may show each rank one GPU.
        (2, 2, 0, 2, "4 ranks on a host of 2 GPUs"),
    ],
)
def test_four_ranks_share_the_eight_cores_and_the_gpus_of_a_host(monkeypatch, gpus, rank, given, threads, gpu):
    taken = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(devices, "gpus", lambda: list(range(gpus)))
    for name in ("intra", "inter"):
        monkeypatch.setattr(tf.config.threading, f"set_{name}_op_parallelism_threads", taken.append)
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda gpu, _: taken.append(gpu))
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", lambda gpu, _: None)
    mesh = Mesh(rank, 4, rank, 4)
    if isinstance(gpu, str):
        with pytest.raises(MeshError, match=gpu):
            start._choose_device(mesh, given)
    else:
        start._choose_device(mesh, given)
        assert taken == [threads, max(2, threads), *([] if gpu is None else [gpu])]
