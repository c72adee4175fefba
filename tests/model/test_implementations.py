"""`auto` takes the fused op where it can run, says why where it cannot, and computes what the named one computes."""

import dataclasses

import numpy as np
import pytest

from tests.model.samples import dropout_key, loss_and_gradients, small_batch, small_config, small_model
from tftrain.config.model import ModelConfig
from tftrain.families import FAMILIES
from tftrain.model.implementations import FLAGS, describe, resolve_implementations
from tftrain.ops import library as module
from tftrain.ops.library import MissingLibraryError, candidates

AUTO = dict.fromkeys(FLAGS, "auto")
needs_ops = pytest.mark.skipif(not any(path.exists() for path in candidates()), reason="the ops are not built")


def implementations(config: ModelConfig) -> set[str]:
    return {getattr(config, flag) for flag in FLAGS}


@pytest.fixture
def without_library(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "candidates", lambda: [tmp_path / module.NAME])
    monkeypatch.setattr(module, "library", module.library.__wrapped__)


def test_auto_is_the_default_of_every_implementation():
    assert implementations(ModelConfig()) == {"auto"}


@needs_ops
def test_flash_stands_in_the_place_of_the_softmax():
    line = describe(ModelConfig(attn_impl="flash"), "float32", gpu=False)
    assert line == "implementations: ln_impl=fused attn_impl=flash gelu_impl=fused dropout_add_impl=fused"


@needs_ops
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_auto_is_fused_where_the_ops_are_built(dtype):
    config = ModelConfig()
    assert implementations(resolve_implementations(config, dtype, gpu=False)) == {"fused"}
    assert describe(config, dtype, gpu=False) == "implementations: " + " ".join(f"{flag}=fused" for flag in FLAGS)


@needs_ops
def test_auto_is_plain_for_the_parts_that_have_no_fused_op():
    config = ModelConfig("llama", **FAMILIES["llama"].defaults)
    line = describe(config, "bfloat16", gpu=False)
    assert line == (
        "implementations: ln_impl=fused attn_softmax_impl=fused gelu_impl=fused dropout_add_impl="
        "reference (auto is reference where no op is fused: a residual add without bias)"
    )


def test_auto_is_plain_for_a_dtype_that_the_ops_refuse():
    assert implementations(resolve_implementations(ModelConfig(), "float64", gpu=False)) == {"reference"}
    assert describe(ModelConfig(), "float64", gpu=False).endswith("(auto is reference: fused ops do not take float64)")


@needs_ops
def test_auto_is_plain_on_a_gpu_for_which_the_ops_were_not_built(monkeypatch):
    cpu_only = module.kernels.get_registered_kernels_for_op("TftrainLayerNorm")
    del cpu_only.kernel[:]
    monkeypatch.setattr(module.kernels, "get_registered_kernels_for_op", lambda name: cpu_only)
    assert implementations(resolve_implementations(ModelConfig(), "bfloat16", gpu=True)) == {"reference"}
    assert "built without CUDA kernels" in describe(ModelConfig(), "bfloat16", gpu=True)
    assert implementations(resolve_implementations(ModelConfig(), "bfloat16", gpu=False)) == {"fused"}
    named = ModelConfig(ln_impl="fused", attn_impl="flash")
    with pytest.raises(MissingLibraryError, match=r"without CUDA kernels; .* --ln_impl=fused --attn_impl=flash"):
        resolve_implementations(named, "bfloat16", gpu=True)


def test_auto_is_plain_without_the_library(without_library):
    assert implementations(resolve_implementations(ModelConfig(), "float32", gpu=False)) == {"reference"}
    assert describe(ModelConfig(), "float32", gpu=False).endswith("(auto is reference: the fused ops are not built)")


def test_a_library_that_cannot_be_loaded_is_not_taken(without_library, tmp_path):
    (tmp_path / module.NAME).write_bytes(b"not a library")
    assert implementations(resolve_implementations(ModelConfig(), "float32", gpu=False)) == {"reference"}
    assert "cannot load" in describe(ModelConfig(), "float32", gpu=False)


def test_a_named_implementation_is_never_changed(without_library):
    config = ModelConfig(ln_impl="fused", gelu_impl="reference")
    resolved = resolve_implementations(config, "float32", gpu=False)
    assert (resolved.ln_impl, resolved.gelu_impl, resolved.attn_softmax_impl) == ("fused", "reference", "reference")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_auto_and_the_named_implementation_are_equal_bitwise(dtype):
    config = small_config(**AUTO, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    automatic = resolve_implementations(config, dtype, gpu=False)
    named = dataclasses.replace(config, **{flag: getattr(automatic, flag) for flag in FLAGS})
    results = [
        loss_and_gradients(small_model(each, dtype), small_batch(), dropout_key()) for each in (automatic, named)
    ]
    (loss, gradients), (expected_loss, expected) = results
    np.testing.assert_array_equal(loss, expected_loss)
    for name, gradient in gradients.items():
        np.testing.assert_array_equal(gradient, expected[name], err_msg=name)
