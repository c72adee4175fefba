"""`tools/compare_revisions.py`: what it reads, what it calls different, and which code it runs."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tools import compare_revisions, revision_runs
from tools.revision_cases import CASES, DATA, ROUNDING
from tools.revision_results import compare, read_rows, read_tensors

ROOT = Path(__file__).parents[2]
WHOLE = np.arange(24, dtype=np.float32).reshape(4, 6)


def checkpoint(folder, blocks, values):
    """Writes a checkpoint of the tensor `w`: WHOLE, in blocks as in a manifest, and shards that hold a piece each."""
    files = {f"shard_{number:05d}_000.safetensors": {} for number in range(len(values))}
    for name, piece in zip(files, values, strict=True):
        save_file({"w": np.ascontiguousarray(piece)}, folder / name)
    tensors = {"w": {"dtype": "F32", "shape": [4, 6], "blocks": blocks}}
    (folder / "manifest.json").write_text(json.dumps({"tensors": tensors, "files": files}))
    return folder


def row(step, **changes):
    numbers = {"loss": 6.5, "mlm_loss": 5.8, "nsp_loss": 0.7, "grad_norm": 1.5, "mlm_accuracy": 0.1}
    numbers |= {"learning_rate": 0.01, "loss_scale": 1.0, "skipped_steps": 0, "nan_steps": 0}
    numbers |= {"global_batch_size": 16, "consumed_samples": 16 * step, "consumed_tokens": 1024 * step}
    return {"step": step, **numbers, **changes}


def result(changes=None, tensors=None):
    rows = {("train", step): row(step) for step in (1, 2)}
    rows["train", 2] |= changes or {}
    return rows, {"master/w": WHOLE, "master/attention/key/bias": WHOLE[0], **(tensors or {})}


def verdict(other, limit=ROUNDING, after=0):
    return compare(result(), other, after).verdict(limit)


def test_a_checkpoint_is_put_together_from_blocks_and_their_ranges(tmp_path):
    blocks = [
        {"offset": [0, 0], "shape": [4, 3], "pieces": [[0, 0, 12]]},
        {"offset": [0, 3], "shape": [4, 3], "pieces": [[1, 0, 6], [2, 6, 12]]},
    ]
    values = [WHOLE[:, :3], *WHOLE[:, 3:].reshape(2, 6)]
    np.testing.assert_array_equal(read_tensors(checkpoint(tmp_path, blocks, values))["w"], WHOLE)


def test_pieces_of_neighbouring_ranks_are_one_series(tmp_path):
    folder = checkpoint(tmp_path, [{"pieces": [[0, 0, 8, 3, 1, 8]]}], WHOLE.reshape(3, 8))
    np.testing.assert_array_equal(read_tensors(folder)["w"], WHOLE)


def test_a_checkpoint_with_missing_elements_is_refused(tmp_path):
    with pytest.raises(ValueError, match="w has 12 elements, expected 24"):
        read_tensors(checkpoint(tmp_path, [{"pieces": [[0, 0, 12]]}], [WHOLE.ravel()[:12]]))


def test_rows_are_read_by_kind_and_step(tmp_path):
    rows = [row(1), {"step": 1, "memory_rank": 0}, {"step": 1, "eval_mlm_loss": 5.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    assert read_rows(tmp_path) == {("train", 1): rows[0], ("eval", 1): rows[2]}


@pytest.mark.parametrize(
    ("changes", "tensors", "expected"),
    [
        ({}, {}, "identical"),
        # What is measured may change a little, and the bias of keys by any amount; what is set may not.
        ({"loss": 6.5 * (1 + 5e-7)}, {}, "rounding"),
        ({"mlm_accuracy": 0.11}, {}, "rounding"),
        ({}, {"master/attention/key/bias": -WHOLE[0]}, "rounding"),
        *(({name: value}, {}, "DIFFERENT") for name, value in (("loss", 6.50001), ("grad_norm", None))),
        *(({name: value}, {}, "DIFFERENT") for name, value in (("grad_norm", 1.50001), ("nan_steps", 1))),
        ({"learning_rate": 0.0100000001}, {}, "DIFFERENT"),
        *(({}, {"master/w": value}, "DIFFERENT") for value in (WHOLE.T, WHOLE * 1.01)),
        ({}, {"master/new": WHOLE}, "DIFFERENT"),
    ],
)
def test_small_changes_are_rounding_and_others_different(changes, tensors, expected):
    assert verdict(result(changes, tensors)) == expected


def test_one_bit_of_a_tensor_is_rounding_in_fp32_and_different_elsewhere():
    other = result(tensors={"master/w": np.nextafter(WHOLE, np.float32(99))})
    assert (verdict(other), verdict(other, limit=0.0)) == ("rounding", "DIFFERENT")
    assert compare(result(), other).differing == 1


def test_steps_before_a_resume_are_not_compared():
    rows, tensors = result()
    assert verdict(({("train", 2): rows["train", 2]}, tensors), after=1) == "identical"
    assert verdict(({("train", 2): rows["train", 2]}, tensors)) == "DIFFERENT"


def test_a_value_is_renamed_only_for_a_program_that_does_not_know_it():
    old, new = "  --optimizer=lamb|adamw (default lamb)", "  --optimizer=lamb|reference_lamb (default lamb)"
    assert revision_runs.known_value(old, "optimizer", "reference_lamb") == "lamb"
    assert revision_runs.known_value(new, "optimizer", "reference_lamb") == "reference_lamb"
    assert revision_runs.known_value(old, "split_opt_state", True) == "true"


def test_the_programs_know_every_flag_and_value_of_the_cases(monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    for module, every in (
        ("tftrain.run", [case.all_flags() for case in CASES.values()]),
        ("tftrain.prepare", DATA.values()),
    ):
        command = [sys.executable, "-m", module, "--helpfull"]
        text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for flags in every:
            for name, value in flags.items():
                (listed,) = [line for line in text.splitlines() if line.startswith(f"  --{name}=")]
                choices = listed.split("=", 1)[1].split()[0].split("|")
                assert len(choices) == 1 or revision_runs.known_value(text, name, value) in choices


@pytest.fixture
def tree(tmp_path):
    """A checkout with a program that prints where it runs, and ends with --code."""
    (tmp_path / "tree" / "tftrain").mkdir(parents=True)
    (tmp_path / "tree" / "tftrain" / "__init__.py").touch()
    program = "import os, sys\nprint(__file__, os.getcwd())\nsys.exit('--code=3' in sys.argv and 3)\n"
    (tmp_path / "tree" / "tftrain" / "program.py").write_text(program)
    (tmp_path / "work").mkdir()
    return revision_runs.Tree(tmp_path / "tree")


def test_a_tree_runs_its_own_code_in_the_folder_of_the_result(tree, tmp_path):
    tree.run("tftrain.program", {}, tmp_path / "work")
    printed = (tmp_path / "work" / "rank_0.log").read_text().split()
    assert printed == [str(tmp_path / "tree" / "tftrain" / "program.py"), str(tmp_path / "work")]


def test_a_program_that_fails_is_named_with_its_log(tree, tmp_path):
    with pytest.raises(revision_runs.RunError, match=r"tftrain.program .* ended with \[3\].*work/rank_"):
        tree.run("tftrain.program", {"code": 3}, tmp_path / "work")


def test_a_tree_without_the_package_is_refused(tmp_path):
    with pytest.raises(revision_runs.RunError, match=f"expected {tmp_path}/tftrain"):
        revision_runs.Tree(tmp_path).run("tftrain.run", {"seed": 1}, tmp_path)


def test_a_result_is_made_once_for_all_that_it_depends_on(tmp_path):
    def make(folder):
        (folder / "made").touch()

    first, _ = compare_revisions.kept(tmp_path / "case", make, {"seed": 1})
    second, seconds = compare_revisions.kept(tmp_path / "case", lambda folder: pytest.fail("made again"), {"seed": 1})
    other, _ = compare_revisions.kept(tmp_path / "case", make, {"seed": 2})
    assert (second, seconds) == (first, 0.0)
    assert other != first
    assert (other / "made").exists()
