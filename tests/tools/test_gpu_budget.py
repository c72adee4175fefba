"""The budget of a step on a GPU: how it is read from a compiled program, and what the steps of today may take."""

import shutil
from types import SimpleNamespace

import pytest

from tools import gpu_budget, gpu_compiler

CUDA = pytest.mark.skipif(not shutil.which("ptxas"), reason="XLA makes no machine code without CUDA's ptxas")


def row(opcode, kind="", times=1, **others):
    """Returns a row as tools/gpu_compiler.cc writes it."""
    fields = {"graph": "", "loop": "", "name": "n", "flops": 0, "bytes": 0, "shape": "f32[2]{0}", "operands": ""}
    fields |= {"result": "", "source": "", "config": ""} | others
    values = {**fields, "times": times, "opcode": opcode, "kind": kind}
    return "\t".join(str(values[name]) for name in gpu_budget.Row._fields)


@pytest.mark.parametrize(
    ("line", "category", "moved"),
    [
        (row("custom-call", "__cublas$gemm"), "products", 0),
        (row("fusion", "custom __triton_gemm dot:64"), "products", 0),
        (row("custom-call", "__cudnn$fmhaSoftmaxBackward"), "attention", 0),
        (row("custom-call", "TftrainAttentionSoftmaxGrad"), "attention", 0),
        (row("custom-call", "TftrainRmsNorm"), "norms", 0),
        (row("custom-call", "TftrainSwigluGrad"), "activations", 0),
        (row("custom-call", "TftrainBiasDropoutAdd"), "bias, dropout, add", 0),
        (row("custom-call", "Unheard"), "other calls", 0),
        (row("copy", shape="bf16[1024,1024]{0,1}"), "copies", 2**21),
        (row("fusion", "loop  bitcast:8 transpose:4000000", shape="f32[1000,1000]{0,1}"), "copies", 4_000_000),
        (row("fusion", "input  transpose:4000000 multiply:4000000"), "elementwise", 4_000_000),
        (row("fusion", "loop  convert:80 reduce:8"), "reductions", 0),
        (row("fusion", "loop  scatter:80 add:8"), "look-ups", 0),
        (row("fusion", "loop  broadcast:80"), "casts, fills", 0),
        (row("copy-start", shape="(f32[4]{0:S(5)}, f32[4]{0}, u32[])"), "host transfers", 0),
    ],
)
def test_an_instruction_has_a_class_and_the_bytes_that_it_moves(line, category, moved):
    (found,) = gpu_budget.Budget([line], "h200").rows
    assert (found.category, found.moved_bytes) == (category, moved)


def test_a_call_costs_its_operands_and_results_without_the_workspace():
    operands = ";".join([" bf16[2,512,4,64]{3,2,1,0}"] * 3) + ";tensor s32[2,512]{1,0}"
    result = "(bf16[2,512,4,64]{3,2,1,0}, f32[2,4,512]{2,1,0}, u8[1000]{0})"
    line = row("custom-call", "TftrainFlashAttention", operands=operands, shape=result, config="{causal = false}")
    (found,) = gpu_budget.Budget([line], "h200").rows
    context = 2 * 512 * 4 * 64
    assert found.cost == (4 * context * 512, 4 * 2 * context + 4 * 1024 + 4 * 4096)


def test_loops_count_as_often_as_they_run_and_facts_name_what_a_graph_does_not_keep():
    rows = [
        row("while", "9", graph="g"),
        row("while", "9?"),
        row("copy", times=9, loop="w", operands=" f32[1000000]{0}", shape="f32[1000000]{0}", bytes=9e6),
        row("custom-call", "TftrainGelu", graph="g", operands="tensor s32[8]{0}; f32[8]{0}", result="result"),
        row("custom-call", "TftrainGelu", operands="variable f32[8]{0}"),
    ]
    found = gpu_budget.Budget(["\n".join(rows)], "h200")
    assert found.by_class()["copies in loops"] == pytest.approx(
        {"kernels": 9, "tflop": 0, "gb": 0.072, "ms": 72e6 / 4.8e12 * 1000}
    )
    assert list(found.facts().values()) == ["1 of 9, 1 of 9?", "0.0", "0", "1", "10", "2", "1", "1"]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--card=b200"], "--card: expected one of h100, h200, given b200"),
        (["--programs=bert huge"], "--programs: expected some of bert large; "),
        (["--programs=bert base; bert huge"], "given bert huge"),
        (["--largest=-1"], "--largest=-1: expected a number of at least 0"),
        (["--autotune_results=nowhere"], "--autotune_results=nowhere: no such file"),
    ],
)
def test_wrong_flags_are_named(flags, expected, capsys):
    with pytest.raises(SystemExit):
        gpu_budget.main(flags)
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("card", "ptxas", "expected"),
    [
        ("b200", "/bin/true", "b200: expected a card whose sizes tools/gpu_compiler.py has: h100, h200"),
        ("h100", None, "no ptxas on PATH"),
    ],
)
def test_what_is_missing_is_named_before_anything_is_compiled(card, ptxas, expected, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: ptxas)
    with pytest.raises(gpu_budget.CompilerError, match=expected):
        gpu_budget.compiled(gpu_budget.Cluster("f", b"", ""), gpu_budget.RUN, card)


@pytest.mark.parametrize(
    ("compiler", "expected"),
    [(None, r"no g\+\+ on PATH"), ("/bin/false", r"g\+\+ can't build gpu_compiler.cc with TensorFlow none: see above")],
)
def test_a_compiler_that_is_missing_or_fails_is_named(compiler, expected, monkeypatch):
    monkeypatch.setattr(gpu_compiler.tf, "__version__", "none")  # No library was built for it.
    monkeypatch.setattr(shutil, "which", lambda name: compiler)
    monkeypatch.setattr(gpu_compiler.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=1))
    with pytest.raises(gpu_compiler.CompilerError, match=expected):
        gpu_compiler._library.__wrapped__()


def test_what_xla_refuses_is_told_with_the_flags_for_xla(monkeypatch, capsys):
    def refuse(*_):
        raise gpu_budget.CompilerError("INVALID_ARGUMENT: unreadable")

    monkeypatch.setattr(gpu_budget, "budget", refuse)
    assert gpu_budget.main(["--programs=bert base", "--xla_flags=nonsense: 1", f"--autotune_results={__file__}"]) == 1
    expected = (
        f"bert base: INVALID_ARGUMENT: unreadable; given --xla_flags=nonsense: 1; given --autotune_results={__file__}\n"
    )
    assert capsys.readouterr().err == expected


# Kernels, GB, GB of copies and transposes of 1 MB or more, loops whose runs the host counts, calls of fused ops with
# arguments of the program: those of today, and a twentieth more kernels and GB.
TODAY = {
    "bert large": (1015, 104, 0.15, 0, 0),
    "gpt large": (1243, 140, 0.2, 0, 0),
    "bert large, 8 ranks": (1068, 105, 0.7, 0, 154),
    "modernbert base": (918, 68, 1.2, 0, 0),
}


@CUDA
@pytest.mark.nightly
@pytest.mark.parametrize("name", TODAY)
def test_a_step_stays_within_its_budget(name):
    found = gpu_budget.budget(name, "h200")
    sums, counted = found.sums(found.kernels), sum(row.kind.endswith("?") for row in found.loops)
    measured = (sums["kernels"], sums["gb"], found.copied_gb, counted, len(found.calls_with_arguments))
    assert [each <= most for each, most in zip(measured, TODAY[name], strict=True)] == [True] * 5, measured
    assert sum(row.category == "host transfers" for row in found.rows) == 0
