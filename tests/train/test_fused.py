"""Training with the fused ops is training with their references, dropout masks included."""

import dataclasses

import numpy as np
import pytest

from tests.train.test_step import BASE, accumulating, assert_same_weights, norms, trained
from tftrain.model.implementations import FLAGS

pytestmark = pytest.mark.slow

FUSED = dict.fromkeys(FLAGS, "fused")


def with_changes(config, optimizer="reference_lamb", compute=(), **model):
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, **model),
        optimizer=dataclasses.replace(config.optimizer, optimizer=optimizer),
        compute=dataclasses.replace(config.compute, **dict(compute)),
    )


def assert_alike(config, fused, rtol=1e-5):
    run, infos = trained(with_changes(config, **fused))
    reference, expected = trained(config)
    np.testing.assert_allclose(norms(infos), norms(expected), rtol=rtol)
    np.testing.assert_allclose([info.sums for info in infos], [info.sums for info in expected], rtol=rtol)
    if rtol <= 1e-5:
        assert_same_weights(run, reference, rtol)


@pytest.mark.nightly
@pytest.mark.parametrize("lever", FUSED)
def test_each_fused_op_alone(lever):
    assert_alike(BASE, {lever: "fused"})


@pytest.mark.parametrize(
    ("jit", "precision"),
    [
        pytest.param("false", "fp32", marks=pytest.mark.nightly),
        pytest.param("true", "fp32", marks=pytest.mark.nightly),
        ("false", "bf16"),
    ],
)
def test_flash_attention(jit, precision):
    config = with_changes(BASE, compute={"jit_compile": jit, "precision": precision})
    assert_alike(config, {"attn_impl": "flash"}, rtol={"fp32": 1e-5, "bf16": 8 * 2**-8}[precision])


@pytest.mark.nightly
@pytest.mark.parametrize(
    "model",
    [
        {},
        {"activation": "geglu", "gelu_form": "erf", "norm_position": "pre", "use_bias_in_keys": False},
    ],
)
def test_all_fused_ops_with_accumulation(model):
    assert_alike(accumulating(3, with_changes(BASE, **model)), {**FUSED, "optimizer": "fused_lamb"})


def test_all_fused_ops_under_xla():
    assert_alike(with_changes(BASE, compute={"jit_compile": "true"}), {**FUSED, "optimizer": "fused_lamb"})


@pytest.mark.nightly
@pytest.mark.parametrize("rule", ["lamb", "adamw"])
def test_fused_optimizers(rule):
    assert_alike(with_changes(BASE, optimizer=f"reference_{rule}"), {"optimizer": f"fused_{rule}"})


@pytest.mark.nightly
@pytest.mark.parametrize(("precision", "epsilon"), [("bf16", 2**-8), ("fp16", 2**-11)])
def test_all_fused_ops_in_half_precision(precision, epsilon):
    # The fused ops round less often than the composition does.
    compute = {"precision": precision}
    assert_alike(with_changes(BASE, compute=compute), {**FUSED, "optimizer": "fused_lamb"}, rtol=8 * epsilon)
