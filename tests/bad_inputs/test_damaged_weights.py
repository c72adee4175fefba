"""No program uses a damaged weight: each program that reads a checkpoint names the damaged file and writes nothing."""

import os
import shutil

import pytest

from tests.kit import programs, runs
from tftrain.checkpoint import manifest, shard
from tftrain.cli import flags
from tftrain.config.train import TrainConfig

TENSOR = "master/embeddings/word"
SMALL = ("--num_hidden_layers=1", "--hidden_size=32", "--num_attention_heads=2", "--eval_every=-1", "--max_steps=1")
# Each program with the arguments that make it read the checkpoint of {run}, and what its last line begins with.
PROGRAMS = {
    "predict": ("predict", "--output_dir={run} [MASK]"),
    "export": ("export", "--output_dir={run} --to={out}/export"),
    "convert": ("convert", "--from=tftrain:{run} --to=hf:{out}/hf"),
    "init_checkpoint": (
        "started",
        "--init_checkpoint=tftrain:{run} --data_dir={data} --micro_batch_size=2 --max_steps=1 --output_dir={out}/new",
    ),
    "resume": ("started", "--output_dir={run} --max_steps=2"),
    "evaluate": ("started", "--output_dir={run} --mode=evaluate"),
}


@pytest.fixture(scope="module")
def trained(prepared, tmp_path_factory):
    """A run whose checkpoint has several files."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    argv = ["tftrain.run", *SMALL, "--micro_batch_size=2", f"--data_dir={prepared}", f"--output_dir={folder}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard, "SHARD_BYTES", 4096)
        runs.train(runs.with_sizes(flags.parse(TrainConfig, argv).resolve(1)))
    return folder


def files(folder):
    """Returns the file with the token embedding, and another one."""
    (path,) = folder.glob("checkpoints/step_*")
    placement = manifest.read(path).files
    holds = {name: any(piece.name == TENSOR for piece in placement[name].pieces) for name in sorted(placement)}
    return path / max(holds, key=holds.get), path / min(holds, key=holds.get)


def flip_bits(path, _):
    content = bytearray(path.read_bytes())
    for place in range(len(content) // 2, len(content), 8):  # After the header.
        content[place] ^= 1
    path.write_bytes(content)


def cut_off(path, _):
    os.truncate(path, path.stat().st_size - 5)


def exchange(path, other):
    content = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(content)


def remove(path, _):
    path.unlink()


# What is damaged is found by what all programs read with: a flipped bit is the hardest to see.
LONG = [
    pytest.param(program, damage, marks=[] if program == "convert" else pytest.mark.nightly)
    for program in PROGRAMS
    for damage in (cut_off, exchange, remove)
]


@pytest.mark.parametrize(("program", "damage"), [*((program, flip_bits) for program in PROGRAMS), *LONG])
def test_a_program_names_the_damaged_file_and_writes_nothing(program, damage, trained, prepared, tmp_path):
    folder, out = shutil.copytree(trained, tmp_path / "run"), tmp_path / "out"
    first, second = files(folder)
    damage(first, second)
    name, arguments = PROGRAMS[program]
    code, lines = programs.outcome(name, arguments, 1, {"run": str(folder), "out": str(out), "data": prepared})
    assert code == 1, lines
    assert any(each.name in line and "traceback" not in line.lower() for line in lines for each in (first, second))
    written = [path for path in out.rglob("*") if path.is_file() and path.name != "run.lock"]
    assert not written, "nothing of damaged weights is written"
