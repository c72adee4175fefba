"""`--deterministic`: what it sets, what it refuses, and a run with it."""

import json

import numpy as np
import pytest
import tensorflow as tf

from tests.kit.ranks import run_ranks
from tftrain.host import determinism
from tftrain.train import process

SIZES = "--num_hidden_layers=1 --hidden_size=16 --num_attention_heads=2 --vocab_size=67 --max_seq_length=16"
SMALL = (*SIZES.split(), "--synthetic_data", "--global_batch_size=8", "--max_steps=3", "--log_every=1")


@pytest.mark.parametrize(
    ("environ", "given"),
    [
        ({"HOROVOD_AUTOTUNE": "1"}, "HOROVOD_AUTOTUNE=1"),
        ({"HOROVOD_FUSION_THRESHOLD": "1000", "NCCL_ALGO": "Tree"}, "HOROVOD_FUSION_THRESHOLD=1000, NCCL_ALGO=Tree"),
    ],
)
def test_an_environment_that_changes_the_order_of_sums_is_refused(environ, given):
    assert f"given {given}; unset it" in determinism.conflict(environ)


def test_an_environment_with_nothing_else_is_allowed_and_completed():
    assert not determinism.conflict({"PATH": "x"})
    found = determinism.variables({"XLA_FLAGS": "--xla_gpu_deterministic_ops=false"})
    assert not determinism.conflict(found)
    assert found["XLA_FLAGS"].split()[-1] == "--xla_gpu_deterministic_ops=true"


# As TensorFlow 2.20 and its XLA word them on a GPU.
REASONS = (
    "Deterministic GPU implementation of unsorted segment reduction op not available.",
    "HLO instruction %scatter does not have a deterministic implementation, but run-to-run determinism is required.",
)


@pytest.mark.parametrize("reason", REASONS)
def test_the_reason_is_found_in_the_words_of_tensorflow_and_xla(reason):
    error = tf.errors.UnimplementedError(None, None, f"Graph execution error:\n\n{reason}\n\t [[node]]")
    cause = process.cause_of(error, deterministic=True)
    assert f"--deterministic: an op has no deterministic form on this device: {reason}; leave out" in str(cause)
    assert process.cause_of(error, deterministic=False) is None
    other = tf.errors.UnimplementedError(None, None, "Incompatible shapes: [2] vs. [3]")
    assert process.cause_of(other, deterministic=True) is None


@pytest.mark.multirank
@pytest.mark.parametrize("other", ["again", pytest.param("without", marks=pytest.mark.nightly)])
def test_a_run_on_cpus_repeats_its_bits_with_it_and_differs_by_roundings(tmp_path, other):
    losses = []
    for name in ("with", other):
        more = ["--nosparse_as_dense", f"--output_dir={tmp_path / name}", f"--deterministic={name != 'without'}"]
        run_ranks(2, ["-m", "tftrain.run", *SMALL, "--eval_every=-1", *more])
        rows = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        losses.append([(row["loss"], row["grad_norm"]) for row in rows if "loss" in row])
        config = json.loads((tmp_path / name / "config.json").read_text())
        assert config["config"]["compute"]["deterministic"] == (name != "without")
    assert len(losses[0]) == 3
    # TensorFlow's deterministic ops may add in another order.
    np.testing.assert_allclose(*losses, rtol=0 if other == "again" else 8 * np.finfo(np.float32).eps)


@pytest.mark.multirank
def test_horovod_without_fusion_adds_each_tensor_in_an_order_of_its_own():
    """Three ranks add a tensor alone and beside another one; only where it shares no buffer are the bits equal."""
    for threshold, equal in ((None, False), ("0", True)):
        environ = {"HOROVOD_FUSION_THRESHOLD": threshold} if threshold else {}
        output = run_ranks(3, ["-m", "tests.parallel.three_ranks_fusion"], environ=environ)
        assert output.count(f"alone and together equal: {equal}") == 3
