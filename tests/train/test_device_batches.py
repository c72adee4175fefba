"""Batches on the device before their step: the same steps, and no step waits for a copy from the host."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tests.kit.ranks import run_ranks
from tests.train.test_step import batches
from tftrain.parallel.mesh import Group
from tftrain.train.device_batches import STEPS_AHEAD, DeviceBatches, decoded

TASK = SimpleNamespace(loss_weights=lambda batch: tf.reduce_sum(batch["masked_lm_weights"])[tf.newaxis])


def ahead(source):
    return DeviceBatches(iter(source), TASK, Group(), "CPU:0")


def test_a_copy_has_the_features_and_loss_weights_of_its_batch():
    given = list(batches(5))
    for expected, (host, copy) in zip(given, ahead(given), strict=True):
        assert host is expected
        assert {each.dtype for each in copy.features.values()} == {tf.uint32, tf.float32}
        for name, feature in decoded(copy.features).items():
            np.testing.assert_array_equal(feature, expected[name], strict=True)
        assert copy.loss_weights == TASK.loss_weights(expected)


def test_batches_are_read_only_so_far_ahead_and_by_one_thread():
    read, threads = [], set()

    def source():
        for number, batch in enumerate(batches(9)):
            read.append(number)
            threads.add(threading.current_thread())
            yield batch

    found = ahead(source())
    for taken in range(1, 7):
        next(found)
        found._ahead[-1].result()
        assert len(read) == taken + STEPS_AHEAD
    found.close()
    (thread,) = threads
    thread.join(60)
    assert not thread.is_alive()
    assert len(read) == 6 + STEPS_AHEAD


def test_an_error_comes_in_the_place_of_its_batch_and_none_from_closing():
    def source():
        yield from batches(2)
        raise OSError("the record is damaged")

    found = ahead(source())
    assert len([next(found), next(found)]) == 2
    with pytest.raises(OSError, match="the record is damaged"):
        next(found)
    found.close()
    with pytest.raises(StopIteration):
        next(ahead(()))


# CPU:1 stands for a GPU. For batches on the host and for batches ahead, prints the number of compiled calls, of the
# copies from CPU:0 that they wait for, and the losses.
COPIES = """
import dataclasses
import sys
import tensorflow as tf
from tensorflow.python.eager import context

(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from tests.train.test_step import BASE, accumulating, batches, with_compute
from tftrain.config.parallel import ParallelConfig
from tftrain.parallel.mesh import Mesh
from tftrain.state.new_run import new_run
from tftrain.train.device_batches import DeviceBatches
from tftrain.train.step import TrainStep

def awaited(graph):
    nodes = {node.name: node for node in graph.node}
    compiled = [name for name, node in nodes.items() if "_XlaMustCompile" in node.attr]
    waiting, seen = list(compiled), set()
    while waiting:
        name = waiting.pop().lstrip("^").split(":")[0]
        if name not in seen:
            seen.add(name)
            waiting += nodes[name].input
    return len(compiled), sum(nodes[name].op == "_Recv" for name in seen)

steps, segments = map(int, sys.argv[1:])
config = accumulating(steps, with_compute(jit_compile="true"))
model = dataclasses.replace(config.model, num_hidden_layers=segments)
config = dataclasses.replace(config, model=model, parallel=ParallelConfig(backward_segments=segments))
for is_ahead in (False, True):
    with tf.device("CPU:1"):
        run = new_run(config.resolve(1), Mesh())
        step, given = TrainStep(run), [(batch, batch) for batch in batches(2)]
        if is_ahead:
            given = list(DeviceBatches(batches(2), run.task, run.mesh.data, "CPU:1"))
        context.context().enable_run_metadata()
        infos = [step(batch) for _, batch in given]
        graphs = context.context().export_run_metadata().partition_graphs
    counts = [sum(each) for each in zip(*map(awaited, graphs))]
    print(*counts, *(repr(info.sums.numpy().tolist()) for info in infos), sep=";")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "segments"), [(1, 1), pytest.param(2, 2, marks=pytest.mark.nightly)])
def test_nothing_compiled_waits_for_the_host(steps, segments):
    output = run_ranks(1, ["-c", COPIES, str(steps), str(segments)])
    (calls, copies, *expected), (calls_ahead, copies_ahead, *found) = (
        line.split(";") for line in output.splitlines() if ";" in line
    )
    assert found == expected
    assert (calls, copies_ahead) == (calls_ahead, "0")
    assert min(int(calls), int(copies)) > 0


# Two ranks stop, go on, and go back after a spike; batches are ahead each time. In `test_phases`, they are ahead where
# a phase begins.
@pytest.mark.multirank
@pytest.mark.slow
def test_ranks_that_a_hook_of_one_stops_or_that_go_back_drop_the_same_batches(tmp_path):
    output = run_ranks(2, ["-m", "tests.train.two_ranks_ahead", str(tmp_path)])
    assert output.count("the same losses") == 1
    # A hook of rank 1 has stopped both.
    assert "rank 1: enough: the run finishes this step, saves, and ends" in output
    assert "rank 0: a hook of another rank: the run finishes this step" in output
    assert "stopped after step 51, and the state is saved" in output
