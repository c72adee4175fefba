"""`auto` takes the fused op where it can run, says why where it cannot, and computes what the named one computes."""

import pytest

from tests.model.samples import NEEDS_OPS
from tftrain.config.attention_core import AttentionChoice
from tftrain.config.model import ModelConfig
from tftrain.families import FAMILIES
from tftrain.model import implementations
from tftrain.model.implementations import FLAGS, describe, resolve_implementations
from tftrain.ops import library as module
from tftrain.ops.library import MissingLibraryError

AUTO = dict.fromkeys(FLAGS, "auto")


def resolved(dtype="float32", gpu=False, config=None):
    """Returns the implementations that a run takes, and the line that says so."""
    config = config or ModelConfig()
    found = resolve_implementations(config, dtype, gpu=gpu)
    return {getattr(found, flag) for flag in FLAGS}, describe(config, dtype, gpu=gpu)


@pytest.fixture
def without_library(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "candidates", lambda: [tmp_path / module.NAME])
    monkeypatch.setattr(module, "library", module.library.__wrapped__)


@NEEDS_OPS
def test_flash_stands_in_the_place_of_the_softmax():
    line = describe(ModelConfig(attn_impl="flash"), "float32", gpu=False)
    assert line == "implementations: ln_impl=fused attn_impl=flash gelu_impl=fused dropout_add_impl=fused"


@NEEDS_OPS
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_auto_is_the_default_and_fused_where_the_ops_are_built(dtype):
    assert {getattr(ModelConfig(), flag) for flag in FLAGS} == {"auto"}
    assert resolved(dtype) == ({"fused"}, "implementations: " + " ".join(f"{flag}=fused" for flag in FLAGS))


@NEEDS_OPS
def test_auto_is_plain_for_the_parts_that_have_no_fused_op():
    config = ModelConfig("llama", **FAMILIES["llama"].defaults)
    line = describe(config, "bfloat16", gpu=False)
    assert line == (
        "implementations: ln_impl=fused attn_softmax_impl=fused gelu_impl=fused dropout_add_impl="
        "reference (auto is reference where no op is fused: a residual add without bias)"
    )


def test_auto_is_plain_for_a_dtype_that_the_ops_refuse():
    found, line = resolved("float64")
    assert found == {"reference"}
    assert line.endswith("(auto is reference: fused ops do not take float64)")


@NEEDS_OPS
def test_auto_is_plain_on_a_gpu_for_which_the_ops_were_not_built(monkeypatch):
    cpu_only = module.kernels.get_registered_kernels_for_op("TftrainLayerNorm")
    del cpu_only.kernel[:]
    monkeypatch.setattr(module.kernels, "get_registered_kernels_for_op", lambda name: cpu_only)
    found, line = resolved("bfloat16", gpu=True)
    assert (found, resolved("bfloat16")[0]) == ({"reference"}, {"fused"})
    assert "built without CUDA kernels" in line
    with pytest.raises(MissingLibraryError, match=r"without CUDA kernels; .* --ln_impl=fused --attn_impl=flash"):
        resolved("bfloat16", gpu=True, config=ModelConfig(ln_impl="fused", attn_impl="flash"))


@pytest.mark.parametrize("is_built", [False, True])
def test_auto_is_plain_without_the_library_and_with_one_that_cannot_be_loaded(without_library, tmp_path, is_built):
    if is_built:
        (tmp_path / module.NAME).write_bytes(b"not a library")
    found, line = resolved()
    assert found == {"reference"}
    assert ("cannot load" if is_built else "(auto is reference: the fused ops are not built)") in line


def test_a_named_implementation_is_never_changed(without_library):
    found = resolve_implementations(ModelConfig(ln_impl="fused", gelu_impl="reference"), "float32", gpu=False)
    assert (found.ln_impl, found.gelu_impl, found.attn_softmax_impl) == ("fused", "reference", "reference")


class Cudnn:
    """Stands for cuDNN on a GPU that refuses rows of more than 300 tokens."""

    @staticmethod
    def refusal(shape, causal, dtype):
        return "cuDNN does not take rows of that length" if shape[0] > 300 else ""


@NEEDS_OPS
@pytest.mark.parametrize(
    ("flag", "core", "lengths", "dtype", "taken", "words"),
    [
        ("auto", "softmax", (128,), "bfloat16", "softmax", ""),
        ("auto", "flash", (512,), "bfloat16", "flash", ""),
        ("auto", "cudnn", (128, 300), "bfloat16", "cudnn", ""),
        ("auto", "cudnn", (128, 512), "bfloat16", "flash", "attn_impl=auto is flash, not cudnn: cuDNN does not"),
        ("auto", "flash", (512,), "float64", "softmax", "attn_impl=auto is softmax, not flash: fused ops do not take"),
        ("flash", "flash", (64,), "bfloat16", "flash", ""),
        ("cudnn", "cudnn", (64,), "bfloat16", "cudnn", ""),
    ],
)
def test_auto_takes_the_core_of_the_flags_that_can_run(monkeypatch, flag, core, lengths, dtype, taken, words):
    monkeypatch.setattr(implementations, "cudnn_attention", Cudnn)
    config, choice = ModelConfig(attn_impl=flag), AttentionChoice(core, lengths)
    assert resolve_implementations(config, dtype, False, choice).attn_impl == taken
    line = describe(config, dtype, False, choice)
    assert f"attn_impl={taken}" in line
    assert words in line
    assert ("attn_impl=auto" in line) == bool(words)


@NEEDS_OPS
def test_cudnn_that_is_named_never_becomes_another_core(monkeypatch):
    monkeypatch.setattr(implementations, "cudnn_attention", Cudnn)
    with pytest.raises(MissingLibraryError, match=r"--attn_impl=cudnn: cuDNN does not take .*; choose flash, softmax"):
        resolve_implementations(ModelConfig(attn_impl="cudnn"), "bfloat16", False, AttentionChoice("cudnn", (512,)))


def test_auto_without_the_library_is_softmax(without_library):
    config, choice = ModelConfig(attn_impl="auto"), AttentionChoice("cudnn", (128,))
    assert resolve_implementations(config, "bfloat16", True, choice).attn_impl == "softmax"
    assert "attn_impl=auto is softmax, not cudnn: the fused ops are not built" in describe(
        config, "bfloat16", True, choice
    )
