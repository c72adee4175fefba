"""horovodrun's elastic launcher loses a host and finds another one, and the run ends as if nothing had been."""

import os
import shutil
import signal
import sys
from pathlib import Path

import psutil
import pytest

from tests.kit.ranks import run_ranks, started_ranks
from tftrain.checkpoint import memory_slot
from tftrain.host.exit_codes import ExitCode
from tftrain.observe.metrics import read_rows
from tftrain.supervise.elastic import PARENT

STEPS = 30
# For each phase: TensorFlow starts on every rank, perhaps on few cores.
SECONDS = 400
RUN = [
    *("-m", "tftrain.run", "--synthetic_data", "--num_hidden_layers=2", "--hidden_size=128"),
    "--num_attention_heads=2",
    "--use_bias_in_keys=false",  # Their gradients are nothing but roundings.
    "--global_batch_size=12",
    "--micro_batch_size=4",
    "--log_every=1",
    "--checkpoint_every=5",
    "--eval_every=-1",
    "--cpu_threads=1",
    f"--max_steps={STEPS}",
]


class Hosts:
    """Names of this machine that the driver takes for hosts, each of so many slots, and the script that tells it so."""

    def __init__(self, folder, *names, slots=1):
        self._list, self.script, self._slots = folder / "hosts", folder / "discover", slots
        self.are(*names)
        self.script.write_text(f"#!/bin/sh\ncat {self._list}\n")
        self.script.chmod(0o755)

    def are(self, *names):
        """Writes them all at once."""
        new = self._list.with_suffix(".new")
        new.write_text("".join(f"{name}:{self._slots}\n" for name in names))
        new.rename(self._list)


def job(hosts, most, *args, least=1):
    """Starts an elastic job on up to so many ranks."""
    options = ["-np", str(most), "--min-np", str(least), "--max-np", str(most), "--gloo", "--network-interfaces", "lo"]
    options += ["--host-discovery-script", str(hosts.script), "--start-timeout", "120"]
    return started_ranks(1, [str(Path(sys.executable).with_name("horovodrun")), *options, sys.executable, *args])


def supervisor_on(host, launcher, program="tftrain.run"):
    """Returns the process that stands for a host's rank."""
    for process in psutil.Process(launcher.pid).children(recursive=True):
        environ = process.environ()
        if environ.get("HOROVOD_HOSTNAME") == host and PARENT not in environ and program in process.cmdline():
            return process.pid
    raise AssertionError(f"no process on {host}")


def losses(output_dir):
    return {row["step"]: row["loss"] for row in read_rows(output_dir / "metrics.jsonl") if "loss" in row}


@pytest.mark.nightly
@pytest.mark.multirank
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_run_that_loses_a_host_and_gains_another_ends_with_the_losses_of_one_rank(tmp_path, ranks):
    names = ["localhost", "127.0.0.1", "127.1"][:ranks]
    hosts = Hosts(tmp_path, *names)
    output_dir = tmp_path / "run"
    with job(hosts, ranks, *RUN, f"--output_dir={output_dir}") as launched:
        launched.wait_for("step_00000005", seconds=SECONDS)
        os.kill(supervisor_on(names[-1], launched.processes[0]), signal.SIGKILL)
        launched.wait_for(f"{ranks - 1} ranks, before {ranks}, continue from", seconds=SECONDS)
        launched.wait_for("continuing after step", seconds=SECONDS)
        hosts.are(*names[:-1], "127.0.1")
        launched.wait_for(f"{ranks} ranks, before {ranks - 1}, continue from", seconds=SECONDS)
        assert launched.codes([0], SECONDS) == [0], launched.output()
    run_ranks(1, [*RUN, f"--output_dir={tmp_path / 'alone'}"], seconds=SECONDS)
    alone, elastic = losses(tmp_path / "alone"), losses(output_dir)
    assert list(elastic) == list(range(1, STEPS + 1))
    assert elastic == pytest.approx(alone, rel=1e-5)


@pytest.mark.nightly
@pytest.mark.multirank
def test_a_run_that_loses_a_host_goes_on_from_the_memory_of_another_one(tmp_path):
    hosts, output_dir = Hosts(tmp_path, "localhost", "127.0.0.1"), tmp_path / "run"
    given = [*RUN, "--checkpoint_every=0", "--memory_checkpoint_steps=2", f"--output_dir={output_dir}"]
    with job(hosts, 2, *given) as launched:
        launched.wait_for(f"10/{STEPS}", seconds=SECONDS)
        os.kill(supervisor_on("127.0.0.1", launched.processes[0]), signal.SIGKILL)
        (place,) = Path("/dev/shm").glob(f"{memory_slot.home_of(output_dir).name}/*/127.0.0.1")
        shutil.rmtree(place)
        launched.wait_for(" was in memory", seconds=SECONDS)
        assert launched.codes([0], SECONDS) == [0], launched.output()
    run_ranks(1, [*RUN, f"--output_dir={tmp_path / 'alone'}"], seconds=SECONDS)
    assert losses(output_dir) == pytest.approx(losses(tmp_path / "alone"), rel=1e-5)


@pytest.mark.nightly
@pytest.mark.multirank
def test_tensor_parallel_ranks_start_again_with_tensorflows_transport(tmp_path):
    """A killed child comes back at another address."""
    hosts, output_dir = Hosts(tmp_path, "localhost", "127.0.0.1"), tmp_path / "run"
    given = [*RUN, "--tensor_parallel_size=2", "--group_transport=tensorflow", f"--output_dir={output_dir}"]
    with job(hosts, 2, *given, least=2) as launched:
        launched.wait_for("step_00000005", seconds=SECONDS)
        (child,) = psutil.Process(supervisor_on("127.0.0.1", launched.processes[0])).children()
        child.kill()
        launched.wait_for("continuing after step", seconds=SECONDS)
        assert launched.codes([0], SECONDS) == [0], launched.output()
        assert launched.output().count("transport tensorflow") == 2
    run_ranks(1, [*RUN, f"--output_dir={tmp_path / 'alone'}"], seconds=SECONDS)
    assert losses(output_dir) == pytest.approx(losses(tmp_path / "alone"), rel=1e-5)


@pytest.mark.nightly
@pytest.mark.multirank
def test_sums_of_xla_go_on_between_the_ranks_that_there_are(tmp_path):
    hosts, output_dir, program = (
        Hosts(tmp_path, "localhost", "127.0.0.1"),
        tmp_path / "run",
        "tests.supervise.sums_of_xla_on_cpus",
    )
    given = ["-m", program, *RUN[2:], "--micro_batch_size=12", "--gradient_transport=xla", f"--output_dir={output_dir}"]
    with job(hosts, 2, *given) as launched:
        launched.wait_for("step_00000005", seconds=SECONDS)
        os.kill(supervisor_on("127.0.0.1", launched.processes[0], program), signal.SIGKILL)
        launched.wait_for("1 ranks, before 2, continue from", seconds=SECONDS)
        launched.wait_for("continuing after step", seconds=SECONDS)
        hosts.are("localhost", "127.1")
        launched.wait_for("2 ranks, before 1, continue from", seconds=SECONDS)
        assert launched.codes([0], SECONDS) == [0], launched.output()
        assert launched.output().count("sums in the program of 2 ranks: True") == 4
        assert launched.output().count("--gradient_transport=xla has no effect: there is one data parallel rank") == 1
    run_ranks(1, [*RUN, f"--output_dir={tmp_path / 'alone'}"], seconds=SECONDS)
    assert losses(output_dir) == pytest.approx(losses(tmp_path / "alone"), rel=1e-5)


@pytest.mark.slow
def test_wrong_flags_end_the_job_at_once(tmp_path):
    hosts = Hosts(tmp_path, "localhost", "127.0.0.1")
    with job(hosts, 2, *RUN, f"--output_dir={tmp_path / 'run'}", "--grad_accum_steps=3") as launched:
        assert launched.codes([0], SECONDS) == [1]
        assert f"exit with status code {int(ExitCode.WRONG_FLAGS)}." in launched.output()
        assert launched.output().count("tftrain.run: --") == 2  # rank 0's reason, and where help is
