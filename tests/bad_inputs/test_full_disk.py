"""On a full disk every program ends with one line that says so, and leaves nothing half-written."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.bad_inputs.places import MODELS, TINY
from tests.kit import programs
from tests.kit.ranks import run_ranks


@pytest.fixture
def small_disk(tmp_path):
    """Returns a function that mounts a file system of so many kilobytes."""
    folder = tmp_path / "small"
    folder.mkdir()

    def mount(kilobytes):
        command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("a small file system needs the right to mount one")
        return folder

    yield mount
    subprocess.run(["umount", str(folder)], check=False, capture_output=True)


@pytest.mark.parametrize(
    ("program", "arguments", "kilobytes"),
    [
        ("prepare", "--input_files={text} --vocab_size=200 --min_tokens_used=0 --output_dir={disk}/x", 8),
        ("convert", "--from=hf:{models}/hf_bert --to=hf:{disk}/x", 16),
        ("convert", "--from=hf:{models}/hf_bert_masked_lm --to=tf1:{disk}/x", 16),
        ("convert", "--from=hf:{models}/hf_bert --to=tftrain:{disk}/x", 16),
        ("convert", "--from=hf:{models}/hf_megatron_bert --to=megatron:{disk}/x", 16),
        pytest.param("export", "--init_checkpoint=hf:{models}/hf_bert --to={disk}/x", 200, marks=pytest.mark.nightly),
        ("export", "--init_checkpoint=hf:{models}/hf_bert --to={disk}/x --format=onnx", 16),
    ],
)
def test_a_program_says_that_the_disk_is_full_and_leaves_nothing(program, arguments, kilobytes, small_disk, tmp_path):
    (tmp_path / "text.txt").write_text("the letters of a word are many words of letters\n\n" * 400)
    disk = small_disk(kilobytes)
    places = {"disk": str(disk), "models": str(MODELS), "text": str(tmp_path / "text.txt")}
    code, lines = programs.outcome(program, arguments, 1, places)
    assert code == 1
    assert "No space left on device" in lines[-1]
    assert "Traceback" not in "".join(lines)
    assert list(disk.iterdir()) == []


@pytest.mark.nightly
def test_a_prediction_that_can_not_be_printed_says_so():
    command = ["-m", "tftrain.predict", f"--init_checkpoint=hf:{MODELS / 'hf_bert'}", "[MASK]"]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, *command], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False
        )
    assert (ended.returncode, ended.stderr) == (1, "predict: standard output: No space left on device\n")


@pytest.mark.multirank
@pytest.mark.parametrize(("kilobytes", "code"), [(60, 78), (4, 1)])
def test_a_run_says_that_the_disk_is_full_and_leaves_no_part_of_a_checkpoint(kilobytes, code, small_disk):
    disk = small_disk(kilobytes)
    text = run_ranks(1, ["-m", "tftrain.run", *TINY, f"--output_dir={disk}/x"], expected_code=code)
    last = [line for line in text.splitlines() if line.startswith("tftrain.run: ")][-1]
    assert "No space left on device" in last
    assert str(disk) in last
    assert "Traceback" not in text
    assert list(Path(disk).glob("x/checkpoints/*")) == []
