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


def graph_mode(compute):
    return dataclasses.replace(compute, jit_compile="false")


def assert_alike(config, fused, rtol):
    run, infos = trained(with_changes(config, **fused))
    # test_step compares XLA with graph mode.
    reference, expected = trained(dataclasses.replace(config, compute=graph_mode(config.compute)))
    np.testing.assert_allclose(norms(infos), norms(expected), rtol=rtol)
    np.testing.assert_allclose([info.sums for info in infos], [info.sums for info in expected], rtol=rtol)
    if rtol <= 1e-5:
        assert_same_weights(run, reference, rtol)


EVERY = {**FUSED, "optimizer": "fused_lamb"}
ERF = {"activation": "geglu", "gelu_form": "erf", "norm_position": "pre", "use_bias_in_keys": False}
XLA, BF16, FP16 = {"jit_compile": "true"}, {"precision": "bf16"}, {"precision": "fp16"}
ALONE = [({"optimizer": f"reference_{rule}"}, {"optimizer": f"fused_{rule}"}, 1) for rule in ("lamb", "adamw")]
ALONE += [({}, {lever: "fused"}, 1) for lever in FUSED]
# The fused ops round less often than the composition does.
NIGHTLY = [*ALONE, *(({"compute": compute}, {"attn_impl": "flash"}, 1) for compute in ({}, XLA, BF16))]
NIGHTLY += [({}, EVERY, 3), (ERF, EVERY, 3), *(({"compute": compute}, EVERY, 1) for compute in (BF16, FP16))]


@pytest.mark.parametrize(
    ("model", "fused", "steps"),
    [
        ({"compute": XLA}, EVERY, 1),
        *(pytest.param(*each, marks=pytest.mark.nightly) for each in NIGHTLY),
    ],
    ids=str,
)
def test_updates_are_those_of_the_references(model, fused, steps):
    epsilon = {"bf16": 2**-8, "fp16": 2**-11}.get(model.get("compute", {}).get("precision"))
    config = with_changes(BASE, **model)
    assert_alike(accumulating(steps, config) if steps > 1 else config, fused, 8 * epsilon if epsilon else 1e-5)
