"""What XLA makes of the products of a training step on an H100: calls, and what their epilogues do. It needs no GPU.

    .venv/bin/python tools/gpu_epilogues.py

TensorFlow's wheel has XLA's compiler for GPUs; tools/gpu_optimized_hlo.cc calls it with the sizes of an H100. Products
are not timed (`xla_gpu_autotune_level` 0), so the choice between Triton and cuBLAS is that of the flags.
"""

import collections
import ctypes
import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from tftrain.bench.config import run_config
from tftrain.data import pipeline
from tftrain.inputs.inputs import Inputs
from tftrain.ops.library import library
from tftrain.parallel.launcher import Launch
from tftrain.parallel.start import start
from tftrain.state.new_run import new_run
from tftrain.tasks import sources
from tftrain.train.gradients import Position
from tftrain.train.step import TrainStep

H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  shared_memory_per_block: 49152 shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3350000000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98 device_memory_size: 85899345920
  cuda_compute_capability { major: 9 }
}
platform_name: "CUDA" dnn_version_info { major: 9 minor: 10 } runtime_version { major: 12 minor: 5 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
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
UNTIMED = "xla_gpu_autotune_level: 0"
CUBLAS = f"{UNTIMED} xla_gpu_enable_triton_gemm: false"
CUBLAS_LT = f"{CUBLAS} xla_gpu_enable_cublaslt: true"
FLAGS = {
    "": UNTIMED,
    "without Triton": CUBLAS,
    "and with cuBLASLt": CUBLAS_LT,
    "and products merged up to 512 MB": f"{CUBLAS_LT} xla_gpu_dot_merger_threshold_mb: 512",
}


def unoptimized(function: Callable, *arguments: tf.Tensor) -> str:
    """Returns the program of a function for a GPU, before XLA's passes."""
    compiled = tf.function(function, jit_compile=True, autograph=False).experimental_get_compiler_ir(*arguments)
    return compiled(stage="hlo", platform_name="GPU")


def training_step(flags: str) -> str:
    """Returns the program of forward and backward with flags of tftrain.run; weights are parameters of it."""
    config = run_config(flags.split())
    step = TrainStep(new_run(config, start(Launch(), config.compute.cpu_threads)))
    run = step._run
    for variable in run.task.model.named_variables().values():  # XLA would drop the addition of zeros
        variable.assign(tf.cast(tf.random.normal(variable.shape), variable.dtype))
    size, source = config.batch.micro_batch_size, sources.open_source(run.task, Inputs.open(config).data[0], "train", 0)
    batch = next(iter(pipeline.train_batches(source, config.data, 0, 0, size, 0, size)))
    position = Position(tf.zeros([], tf.int64), tf.ones_like(run.task.loss_weights(batch)), tf.ones([]))
    traced = step._compute._compiled.get_concrete_function(batch, position, False)
    # Without a device, TensorFlow compiles no function that reads variables.
    frozen = convert_variables_to_constants_v2(traced, lower_control_flow=False)
    hlo = unoptimized(lambda *given: frozen(*given), *(tf.zeros(each.shape, each.dtype) for each in frozen.inputs))
    return with_parameters(hlo)


def with_parameters(hlo: str) -> str:
    """Returns the program with a parameter in place of each large constant, whose numbers it does not show."""
    head, _, entry = hlo.rpartition("\nENTRY ")
    signature, body = entry.split("{\n", 1)
    number = len(re.findall(r" parameter\(\d+\)", body))
    pieces = body.split("constant({...})")
    body = pieces[0] + "".join(f"parameter({number + i}){piece}" for i, piece in enumerate(pieces[1:]))
    head = re.sub(r", entry_computation_layout=.*", "", head, count=1)
    return f"{head}\nENTRY {signature.split('(')[0].strip()} {{\n{body}"


def feed_forward(is_written_out: bool) -> str:
    """Returns the program of a product, its bias and GeLU by tanh, with gradients.

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

    return unoptimized(both, *(tf.zeros(shape, tf.bfloat16) for shape in shapes))


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


def compiler(folder: str) -> Callable[..., str]:
    """Builds the compiler's library; returns a function of a program, XLA's flags and whether to compile all of it."""
    path, source = f"{folder}/liboptimized_hlo.so", Path(__file__).with_name("gpu_optimized_hlo.cc")
    tensorflow = Path(tf.__file__).parent
    libraries = [tensorflow / f"libtensorflow_{name}.so.2" for name in ("cc", "framework")]
    options = ["-std=c++17", "-w", "-fPIC", "-shared", f"-I{tf.sysconfig.get_include()}"]
    subprocess.run(["g++", *options, "-o", path, source, *libraries], check=True)
    function = ctypes.CDLL(path).optimized_hlo
    function.restype = ctypes.c_char_p

    def compiled(hlo: str, flags: str, to_the_end: bool = False) -> str:
        optimized = function(hlo.encode(), H100.encode(), flags.encode(), to_the_end).decode()
        if optimized.startswith("error: "):
            raise RuntimeError(optimized)
        return optimized

    return compiled


def main() -> None:
    """Prints a row for each program and each set of flags."""
    print("| program | XLA's flags | products | that add to another tensor | of 3072 columns |\n" + "| --- " * 5 + "|")
    with tempfile.TemporaryDirectory() as folder:
        compiled = compiler(folder)
        programs = {name: (lambda flags=flags: training_step(flags), FLAGS) for name, flags in STEPS.items()}
        few = f"{STEPS['bert, fused, flash']} --micro_batch_size=4"
        programs["bert, fused, flash, 4 x 512 tokens"] = lambda: training_step(few), {"without Triton": CUBLAS}
        only_lt = {"and with cuBLASLt": CUBLAS_LT}
        programs["a product with bias and GeLU by tanh"] = lambda: feed_forward(False), only_lt
        programs["the same written out, backward by the fused op"] = lambda: feed_forward(True), only_lt
        for name, (program, sets) in programs.items():
            hlo = program()
            for what, flags in sets.items():
                print(f"| {name} | {what} | {' | '.join(counts(compiled(hlo, flags)))} |", flush=True)


if __name__ == "__main__":
    main()
