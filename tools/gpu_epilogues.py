"""What XLA makes of the products of a training step on an H100: calls, and what their epilogues do. It needs no GPU.

    .venv/bin/python tools/gpu_epilogues.py

tools/gpu_compiler.py compiles the step.
"""

import collections
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import tensorflow as tf
from gpu_compiler import CUBLAS, UNTIMED, Cluster, cluster_of, clusters, compiled

from tftrain.ops.library import library

LARGE = "--synthetic_data --num_hidden_layers=2 --hidden_size=1024 --num_attention_heads=16 --vocab_size=1024"
LARGE += " --max_seq_length=512 --micro_batch_size=32 --grad_accum_steps=1 --precision=bf16 --jit_compile=true"
LARGE += " --optimizer=reference_lamb --max_steps=1 --output_dir=unused"
IMPLEMENTATIONS = ("ln_impl", "attn_softmax_impl", "gelu_impl", "dropout_add_impl")
PLAIN, FUSED = (" ".join(f"--{name}={value}" for name in IMPLEMENTATIONS) for value in ("reference", "fused"))
STEPS = {
    f"{family}, {ops}": f"{LARGE} --model_family={family} {flags}"
    for family in ("bert", "gpt")
    for ops, flags in (("fused, flash", f"{FUSED} --attn_impl=flash"), ("plain", PLAIN))
}
CUBLAS_LT = f"{CUBLAS} xla_gpu_enable_cublaslt: true"
FLAGS = {
    "": UNTIMED,
    "without Triton": CUBLAS,
    "and with cuBLASLt": CUBLAS_LT,
    "and products merged up to 512 MB": f"{CUBLAS_LT} xla_gpu_dot_merger_threshold_mb: 512",
}


def feed_forward(is_written_out: bool) -> Cluster:
    """Returns a product, its bias and GeLU by tanh, with gradients.

    If it is written out, the cube is two products, as XLA looks for it, and backward is the fused op, which needs
    nothing but the GeLU's input.
    """
    shapes = [[16384, 1024], [1024, 4096], [4096], [16384, 4096]]

    @tf.custom_gradient
    def written_out(x):
        def numbers(*values):
            return (tf.constant(value, x.dtype) for value in values)

        half, one, slope, cubic = numbers(0.5, 1, 0.7978845608028654, 0.044715)
        y = x * (half * (one + tf.tanh(slope * (x + cubic * (x * x * x)))))
        return y, lambda dy: library().tftrain_gelu_grad(dy, x, [], approximate=1)[0]

    def both(x, kernel, bias, dy):
        with tf.GradientTape() as tape:
            tape.watch([x, kernel, bias])
            sums = tf.nn.bias_add(tf.matmul(x, kernel), bias)
            y = written_out(sums) if is_written_out else tf.nn.gelu(sums, approximate=True)
        return y, *tape.gradient(y, [x, kernel, bias], dy)

    return cluster_of(both, *(tf.TensorSpec(shape, tf.bfloat16) for shape in shapes))


def counts(hlo: str) -> list[str]:
    """Returns the calls of each kind of product, those that add to another tensor, and merged ones of 3072 columns."""
    calls, sums, merged = collections.Counter(), 0, 0
    for line in hlo.splitlines():
        if "__triton_gemm" in line and " fusion(" in line:
            calls["Triton"] += 1
        if target := re.search(r'custom_call_target="__(cublas[^"]*)"', line):
            epilogue = re.search(r'"epilogue":"(\w+)"', line)[1]
            calls[target[1] + f" {epilogue}" * (epilogue != "DEFAULT")] += 1
            sums += '"beta":1' in line
            merged += bool(re.search(r"= \(?\w+\[\d+,3072\]", line))
    return [", ".join(f"{number} {name}" for name, number in sorted(calls.items())), str(sums), str(merged)]


def main() -> None:
    """Prints a row for each program and each set of flags."""
    print("| program | XLA's flags | products | that add to another tensor | of 3072 columns |\n" + "| --- " * 5 + "|")
    programs = {name: (lambda flags=flags: clusters(flags.split())[0], FLAGS) for name, flags in STEPS.items()}
    few = f"{STEPS['bert, fused, flash']} --micro_batch_size=4".split()
    programs["bert, fused, flash, 4 x 512 tokens"] = lambda: clusters(few)[0], {"without Triton": CUBLAS}
    only_lt = {"and with cuBLASLt": CUBLAS_LT}
    programs["a product with bias and GeLU by tanh"] = lambda: feed_forward(False), only_lt
    programs["the same written out, backward by the fused op"] = lambda: feed_forward(True), only_lt
    for name, (program, sets) in programs.items():
        cluster = program()
        for what, flags in sets.items():
            hlo = compiled(cluster, flags, to_the_end=False).optimized
            print(f"| {name} | {what} | {' | '.join(counts(hlo))} |", flush=True)


if __name__ == "__main__":
    main()
