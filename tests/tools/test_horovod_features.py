"""When Horovod is built again: after MPI or a CUDA toolkit has come, gone, or become another one."""

import os

import pytest

from tests.tools.test_cuda_toolkit import script
from tools import build_horovod, horovod_features, setup
from tools.horovod_features import Features, choose

OPEN_MPI = "g++ -I/usr/lib/openmpi/include -lmpi_cxx -lmpi"
MPICH = "c++ -I/usr/include/mpich -lmpichcxx -lmpich"
CUDA = "/usr/local/cuda-12.8"


@pytest.mark.parametrize(
    ("mpi", "cuda", "gpu", "environ", "expected"),
    [
        ("", "", False, {}, ("gloo",)),
        (OPEN_MPI, "", False, {}, ("gloo", "mpi")),
        (OPEN_MPI, "", False, {"HOROVOD_WITHOUT_MPI": "1"}, ("gloo",)),
        (OPEN_MPI, "", False, {"HOROVOD_WITHOUT_MPI": "0"}, ("gloo", "mpi")),
        ("", CUDA, True, {}, ("gloo", "nccl")),
        ("", CUDA, False, {}, ("gloo",)),
        ("", "", True, {}, ("gloo",)),
        (OPEN_MPI, CUDA, True, {}, ("gloo", "mpi", "nccl")),
    ],
)
def test_features_of_a_machine(mpi, cuda, gpu, environ, expected):
    assert choose(mpi, cuda, gpu, environ).names == expected


def test_each_mpi_and_each_toolkit_has_a_key_of_its_own():
    found = [Features(), Features(OPEN_MPI), Features(MPICH), Features("", CUDA), Features("", "/usr/local/cuda-13.0")]
    keys = [features.key for features in found]
    assert keys[0] == "gloo", "the wheels without MPI and NCCL that are in caches stay valid"
    assert len(set(keys)) == len(keys)
    assert len({build_horovod.wheel_folder(features) for features in found}) == len(found)


def test_set_up_builds_again_exactly_when_mpi_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/nowhere")
    monkeypatch.delenv("HOROVOD_WITHOUT_MPI", raising=False)
    # The rest of the key; it starts the environment's Python.
    monkeypatch.setattr(setup, "venv_python", lambda: "3.11.7 /usr")

    def key(text):
        (tmp_path / "mpicxx").unlink(missing_ok=True)
        if text is not None:
            script(tmp_path / "mpicxx", text)
        return {step.name: step.key for step in setup.plan_steps(setup.Choices(ops=False))}["horovod"]

    absent, first, other = key(None), key(f"echo {OPEN_MPI}"), key(f"echo {MPICH}")
    assert len({absent, first, other}) == 3
    assert key(f"echo {OPEN_MPI}") == first
    assert key(None) == key("exit 1") == absent, "gone, or a wrapper that does not work"
    monkeypatch.setenv("HOROVOD_WITHOUT_MPI", "1")
    assert key(f"echo {OPEN_MPI}") == absent


def test_a_toolkit_is_found_by_its_variable_without_nccl_on_cpu_machines(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").touch()
    monkeypatch.setenv("PATH", "/nowhere")
    environ = {"CUDA_HOME": str(tmp_path), "HOME": os.environ["HOME"]}
    assert horovod_features.of_machine(True, environ).cuda == str(tmp_path.resolve())
    assert horovod_features.of_machine(False, environ).names == ("gloo",)
