"""This machine as a cluster: what is measured is written, reads back, and plans."""

import os

import pytest

from tests.plan.workloads import TFTRAIN
from tftrain.config.fields import ConfigError
from tftrain.plan import cluster, forecast, machine
from tftrain.plan.system import systems


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Measures little, and not for long."""
    small = {"SECONDS": 0.01, "BUSY_SECONDS": 0.01, "SIZES": (32, 256), "COPY_BYTES": 1 << 22, "SENT_BYTES": 1 << 20}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in small.items():
            patch.setattr(machine, name, value)
        yield


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    found = tmp_path_factory.mktemp("machine") / "folder" / "machine.json"
    machine.measure(found)
    return found


def test_what_is_measured_reads_back_and_is_possible(path):
    found = machine.read(path)
    assert found.name == machine.NAME
    assert found.multiprocessors == 0
    # From a core that others use as well to a large server: anything else is a wrong unit.
    assert 1e-4 < found.peak_fp32 < 100
    assert 0.05 < found.memory_gbs < 5000
    assert 0.005 < found.network_gbs < 1000
    assert found.memory_gb * 1e9 == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert max(share for _, share in found.curve) == 1


@pytest.mark.parametrize("busy", [3.0, 60.0])
def test_measuring_says_that_others_take_the_cores(monkeypatch, tmp_path, capsys, busy):
    monkeypatch.setattr(machine.psutil, "cpu_percent", lambda seconds: busy)
    monkeypatch.setattr(machine, "product_rates", lambda sizes: [1.0] * (1 + len(sizes)))
    machine.measure(tmp_path / "machine.json")
    assert ("other work takes 60% of the cores" in capsys.readouterr().err) == (busy > 10)


@pytest.mark.parametrize("name", ["NVIDIA GH200 480GB", "NVIDIA H100 PCIe", "NVIDIA H100 NVL"])
def test_a_like_name_is_another_board(name):
    with pytest.raises(ConfigError, match=name):
        cluster.of_device(name)


@pytest.mark.parametrize("board", [board for board in cluster.BOARDS if board.cluster], ids=lambda board: board.part)
def test_the_plan_of_a_board_has_the_peaks_that_its_runs_report(board):
    found = cluster.of_device(f"NVIDIA {board.part}")
    assert found.name == board.cluster
    for precision, item in (("fp32", 4), ("fp16", 2)):
        assert found.peak(item) == 1e12 * cluster.peak_tflops(f"NVIDIA {board.part}", precision)


def test_a_run_on_it_is_planned_by_the_kinds_that_the_trainer_measures(path):
    plan = forecast.forecast(TFTRAIN, machine.read(path), systems()["tftrain_cpu"])
    kinds = forecast.bytes_by_kind(plan.memory)
    state = {"weights", "master_weights", "moments", "checkpoint_copy"}
    assert set(kinds) == {"baseline", *state, "gradients", "accumulation", "communication", "activations"}
    assert sum(kinds.values()) == pytest.approx(plan.memory.total)
    assert plan.seconds > 0


def test_processes_share_what_the_machine_has(path):
    whole = machine.read(path)
    half = machine.shared(whole, 2)
    assert (half.per_node, half.memory_gb, half.link_gbs) == (2, whole.memory_gb / 2, whole.network_gbs)
    # Two ranks with half of the samples each compute together what one does with all, and have half of the cores each.
    work = TFTRAIN._replace(global_batch=8, micro_batch=4)
    alone, both = (
        forecast.forecast(each, place, systems()["tftrain_cpu"]).time
        for each, place in ((work, whole), (work._replace(dp=2), half))
    )
    assert both.products == pytest.approx(alone.products)
    assert (alone.gradient_sums, both.gradient_sums > 0) == (0, True)
