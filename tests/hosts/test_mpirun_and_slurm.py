"""Open MPI and Slurm run `tftrain.run` on two hosts, and the losses are those of one host.

The hosts are network namespaces, see with_hosts.sh. Nightly: `tests/parallel/test_slurm.py` and
`tests/parallel/test_launcher.py` test how the ranks of a launcher find their places, without hosts.
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts.network import unavailable_reason
from tests.kit.runs import losses

ROOT = Path(__file__).parents[2]
WITH_HOSTS = ROOT / "tests" / "hosts" / "with_hosts.sh"
SMALL = (
    *("--num_hidden_layers=2", "--hidden_size=32", "--num_attention_heads=2", "--synthetic_data", "--vocab_size=101"),
    *("--max_seq_length=16", "--learning_rate=0.01", "--global_batch_size=8", "--log_every=1", "--eval_every=-1"),
    *("--split_opt_state", "--tensor_parallel_size=2", "--cpu_threads=1"),
)
RUN = (sys.executable, "-m", "tftrain.run", *SMALL)
MPIRUN = (
    *("on", "node1", "mpirun", "--allow-run-as-root", "-np", "4", "-H", "node1:2,node2:2", "-bind-to", "none"),
    *("-map-by", "slot", "-x", "PATH", "--mca", "btl_tcp_if_include", "eth0", "--mca", "mpi_yield_when_idle", "1"),
)
SRUN = ("on", "login", "srun", "--nodes=2", "--ntasks-per-node=2", f"--chdir={ROOT}")
SLURM = ("srun", "slurmctld", "slurmd", "munged")

pytestmark = [pytest.mark.nightly, pytest.mark.multirank]


def require(*programs):
    """Skips the test if this machine can have no hosts, or lacks a program."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    missing = [name for name in programs if shutil.which(name, path=path) is None]
    if reason := unavailable_reason() or ", ".join(missing):
        pytest.skip(reason)


def require_mpi():
    import horovod.tensorflow as hvd

    if not hvd.mpi_built():
        pytest.skip("Horovod was built without MPI; install Open MPI's mpicxx and run `make setup`")


def run(folder, command, code=0, **environ):
    """Runs a command where the hosts are and returns its output."""
    settings = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin", "TF_CPP_MIN_LOG_LEVEL": "3", **environ}
    folder.mkdir()
    done = subprocess.run(
        [WITH_HOSTS, folder / "hosts", *command],
        cwd=ROOT,
        env=settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=400,
    )
    assert done.returncode == code, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def of_one_host(tmp_path_factory):
    """The losses of four steps on one host, by tftrain.launch."""
    folder = tmp_path_factory.mktemp("one") / "run"
    command = [sys.executable, "-m", "tftrain.launch", "-np", "4", *SMALL, "--max_steps=4", f"--output_dir={folder}"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300)
    return losses(folder)


@pytest.mark.parametrize(
    ("launcher", "environ"),
    [
        pytest.param(SRUN, {}, id="srun"),
        pytest.param((*SRUN, "--mpi=pmix"), {"HOROVOD_CONTROLLER": "mpi"}, id="srun over MPI"),
        pytest.param(MPIRUN, {}, id="mpirun"),
    ],
)
def test_two_hosts_have_the_losses_of_one(launcher, environ, of_one_host, tmp_path):
    require(*(SLURM if "srun" in launcher else ["mpirun"]))
    if environ or "mpirun" in launcher:
        require_mpi()
    output = run(tmp_path / "here", [*launcher, *RUN, "--max_steps=4", f"--output_dir={tmp_path / 'run'}"], **environ)
    assert losses(tmp_path / "run") == pytest.approx(of_one_host, rel=1e-7), output


# Slurm starts a requeued job again after two minutes.
def test_scancel_saves_and_the_requeued_job_goes_on(of_one_host, tmp_path):
    require(*SLURM)
    job = tmp_path / "job.sh"
    folder = tmp_path / "run"
    # The first start gets the signal after its first step, as from `sbatch --signal`.
    job.write_text(f"""#!/bin/sh
#SBATCH --nodes=2 --ntasks-per-node=2 --requeue --open-mode=append --output={tmp_path}/job.log
srun --chdir={ROOT} {shlex.join([*RUN, "--max_steps=4", "--log_format=short", f"--output_dir={folder}"])}
code=$?
echo "start ${{SLURM_RESTART_COUNT:-0}} ended with $code"
if [ $code -eq 75 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit $code
""")
    script = f"""
sbatch {job}
until grep -qs '"step": 1,' {folder}/metrics.jsonl; do sleep 0.05; done
scancel --signal=USR1 1
until [ "$(scontrol --oneliner show job 1 | grep -c JobState=COMPLETED)" = 1 ]; do sleep 1; done
"""
    run(tmp_path / "here", ["on", "login", "sh", "-c", script])
    ends = [line for line in (tmp_path / "job.log").read_text().splitlines() if line.startswith("start ")]
    assert ends == ["start 0 ended with 75", "start 1 ended with 0"]
    assert losses(folder) == pytest.approx(of_one_host, rel=1e-7)
