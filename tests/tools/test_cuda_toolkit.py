"""What `make setup GPU=1` says on a machine: toolkits and drivers are scripts that answer as the real ones do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools import cuda_toolkit, setup
from tools.setup import Choices

ROOT = Path(__file__).parents[2]
A100, H100 = "8.0, NVIDIA A100-SXM4-80GB", "9.0, NVIDIA H100 80GB HBM3"


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def machine(folder, toolkits, driver=None):
    """Makes toolkits by folder and version, and a driver; returns the environment and the folder of toolkits."""
    for name, version in toolkits.items():
        script(folder / name / "bin/nvcc", f"echo 'Cuda compilation tools, release {version}, V{version}.1'")
    if driver:
        script(folder / "bin/nvidia-smi", f"echo '{driver}'")
    return {"PATH": f"{folder}/bin:/usr/bin:/bin"}, folder


# The machine, what is left out, and the beginning of the line; "" where set-up goes on.
BOXES = {
    "8 x A100, driver 550, no toolkit": ({}, f"550.54.15, {A100}", "", "no CUDA toolkit (no nvcc"),
    "the same, and does without": ({}, f"550.54.15, {A100}", "nccl ops", ""),
    "8 x A100, driver 550, toolkit 12.4": ({"cuda": "12.4"}, f"550.54.15, {A100}", "", ""),
    "driver 570, toolkit 13": (
        {"cuda": "13.0"},
        f"570.86.10, {A100}",
        "",
        "CUDA toolkit 13.0 in {root}/cuda needs driver 580 or later, this host has 570.86.10, for NCCL in Horovod and",
    ),
    "driver 580, toolkit 13": ({"cuda": "13.0"}, f"580.65.06, {A100}", "", ""),
    "driver 570, toolkits 13 and 12.8": ({"cuda": "13.0", "cuda-12.8": "12.8"}, f"570.86.10, {A100}", "", ""),
    "Ubuntu's nvcc": (
        {"cuda": "12.0"},
        f"550.54.15, {A100}",
        "",
        "CUDA toolkit 12.0 in {root}/cuda: expected 12.1 or later, for the GPU kernels of the fused ops; install CUDA",
    ),
    "Ubuntu's nvcc, without the ops": ({"cuda": "12.0"}, f"550.54.15, {A100}", "ops", ""),
    "H100, driver 550": (
        {"cuda": "12.4"},
        f"550.54.15, {H100}",
        "nccl ops",
        "driver 550.54.15 can't run TensorFlow on NVIDIA H100 80GB HBM3 (compute capability 9.0)",
    ),
    "H100, driver 555": ({"cuda": "12.5"}, f"555.42.02, {H100}", "", ""),
    "no driver: a login node": ({"cuda": "13.0"}, None, "", ""),
    "nvcc that does not start": (
        {"cuda": "x"},
        f"570.86.10, {A100}",
        "",
        "CUDA toolkit of an unknown version in {root}",
    ),
}


@pytest.mark.parametrize(("toolkits", "driver", "without", "expected"), BOXES.values(), ids=BOXES)
def test_each_machine_has_its_line(toolkits, driver, without, expected, tmp_path):
    environ, root = machine(tmp_path, toolkits, driver)
    line = cuda_toolkit.refusal(environ, "nccl" not in without, "ops" not in without, root)
    expected = expected.replace("{root}", str(root.resolve()))
    assert line.startswith(expected)
    assert bool(line) == bool(expected)
    assert "\n" not in line


def test_a_refusal_names_what_to_do():
    line = cuda_toolkit.refusal({"PATH": "/nowhere"}, True, True, Path("/nowhere"))
    assert line.endswith("see docs/cluster.md; or go on without: make setup GPU=1 NCCL=0 OPS=0")
    line = cuda_toolkit.refusal({"PATH": "/nowhere"}, False, True, Path("/nowhere"))
    assert line.endswith("make setup GPU=1 OPS=0")


def test_a_toolkit_that_is_named_is_taken_as_it_is(tmp_path):
    environ, root = machine(tmp_path, {"cuda": "12.8", "mine": "13.0"}, f"570.86.10, {A100}")
    its = cuda_toolkit.driver(environ)
    assert cuda_toolkit.toolkit(environ, its, root).version == (12, 8)
    assert cuda_toolkit.toolkit(environ | {"CUDA_HOME": str(root / "mine")}, its, root).version == (13, 0)
    assert "needs driver 580" in cuda_toolkit.refusal(environ | {"CUDA_HOME": str(root / "mine")}, True, True, root)


def test_the_newest_gpu_of_a_host_counts(tmp_path):
    environ, _ = machine(tmp_path, {}, f"550.54.15, {A100}\n550.54.15, {H100}")
    assert cuda_toolkit.driver(environ).capability == (9, 0)


@pytest.mark.parametrize(
    ("tf", "words"),
    [
        ("2.20", "driver 550.54.15 can't run TensorFlow"),
        ("2.21", "TF=2.21 has no lock file for GPUs; GPU=1 takes TF=2.20\n"),
    ],
)
def test_set_up_ends_before_it_touches_anything(tf, words, tmp_path):
    environ, _ = machine(tmp_path, {}, f"550.54.15, {H100}")
    command = [sys.executable, ROOT / "tools/setup.py", "--gpu=1", f"--tf={tf}"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environ, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"[setup] error: {words}")


@pytest.fixture
def stamps(tmp_path, monkeypatch):
    monkeypatch.setattr(setup, "STAMPS", tmp_path / "stamps")
    monkeypatch.setattr(setup, "OPS_LIBRARY", tmp_path / "library.so")
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    monkeypatch.setattr(setup, "OPS_SOURCES", ())


def test_a_gpu_environment_keeps_its_choices(stamps):
    assert Choices.of_stamps() == Choices(False, False, True)
    Choices.of_stamps("1", nccl="0").write()
    assert Choices.of_stamps() == Choices(True, False, True)
    assert Choices.of_stamps(nccl="1") == Choices(True, True, True)
    assert Choices.of_stamps("0") == Choices(False, False, True)


def test_a_version_of_tensorflow_is_a_kind_of_environment_with_a_lock_of_its_own(stamps, tmp_path):
    Choices.of_stamps(tf="2.21").write()
    assert Choices.of_stamps() == Choices(tf="2.21")
    assert Choices.of_stamps().kind != Choices().kind
    assert Choices.of_stamps().lock == tmp_path / "requirements-tf2.21.lock"
    assert Choices.of_stamps(tf="2.20") == Choices()


def test_the_ops_are_built_with_gpu_kernels_by_the_toolkit_that_fits(stamps, tmp_path, monkeypatch):
    machine(tmp_path, {"cuda": "12.8"})
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    (tmp_path / "library.so").touch()
    on_gpu, on_cpu = setup.ops_step("key", True), setup.ops_step("key", False)
    ((_, _, *options),) = on_gpu.commands
    assert options == ["--config=cuda", f"--action_env=NVCC={tmp_path}/cuda/bin/nvcc", "//custom_ops:install"]
    assert on_gpu.title() == "building the fused ops with GPU kernels by nvcc 12.8 (some minutes the first time)"
    assert on_gpu.key != on_cpu.key
    machine(tmp_path, {"cuda": "12.9"})
    assert setup.ops_step("key", True).key != on_gpu.key


def test_a_library_with_gpu_kernels_is_not_replaced_by_one_without(stamps, tmp_path, monkeypatch, capsys):
    (tmp_path / "library.so").write_bytes(b"..." + setup.CUDA_MARK + b"...")
    assert setup.ops_step("key", False) is None
    assert capsys.readouterr().out.startswith("[setup] library.so stays: it has GPU kernels")
    (tmp_path / "library.so").write_bytes(b"...")
    assert setup.ops_step("key", False)
