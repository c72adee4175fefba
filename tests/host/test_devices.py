"""What this process runs on, asked before TensorFlow is loaded."""

import subprocess
import sys

import pytest

from tests.bad_inputs.places import TINY
from tests.kit.ranks import run_ranks
from tftrain.host import devices


def test_a_driver_and_free_memory_are_asked_without_tensorflow():
    program = (
        "import sys; from tftrain.host import devices, hardware; hardware.has_driver(); "
        "hardware.gpu_memory_gb('free'); hardware.host_memory_gb(); "
        "sys.exit('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("path", ["dev/nvidia0", "proc/driver/nvidia/gpus/0000:18:00.0"])
def test_a_gpu_that_tensorflow_does_not_find_is_named_unless_it_is_hidden(tmp_path, path):
    assert devices.unused_gpu({}, tmp_path) == ""
    (tmp_path / path).mkdir(parents=True)
    line = devices.unused_gpu({}, tmp_path)
    assert str(tmp_path / path) in line
    assert "`make setup GPU=1`" in line
    assert devices.unused_gpu({"CUDA_VISIBLE_DEVICES": "0"}, tmp_path) == line
    assert devices.unused_gpu({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == ""
    assert devices.unused_gpu({"CUDA_VISIBLE_DEVICES": "-1"}, tmp_path) == ""


def test_a_gpu_that_tensorflow_finds_needs_no_line(tmp_path, monkeypatch):
    (tmp_path / "dev/nvidia0").mkdir(parents=True)
    monkeypatch.setattr(devices, "gpus", lambda: ["GPU:0"])
    assert devices.unused_gpu({}, tmp_path) == ""


@pytest.mark.nightly
@pytest.mark.multirank
def test_the_chief_of_a_run_says_once_that_a_gpu_is_not_used(tmp_path):
    program = (
        "import sys; from tftrain import run; from tftrain.host import devices; from tftrain.train import loop; "
        "loop.train = lambda *_: 0; "
        "devices.unused_gpu = lambda environ: 'a GPU is not used'; "
        "sys.exit(run.main(['run', *sys.argv[1:]]))"
    )
    output = run_ranks(2, ["-c", program, *TINY, f"--output_dir={tmp_path}"], fresh=True)
    assert output.count("rank 0: a GPU is not used") == output.count("a GPU is not used") == 1
