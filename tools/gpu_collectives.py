"""Where XLA puts sums over ranks that are inside a compiled step, on an H100. It needs no GPU.

    .venv/bin/python tools/gpu_collectives.py

The program is backward of six dense layers; `CollectiveReduceV2`, which XLA makes an all-reduce, adds up each gradient
over two ranks, as `--gradient_transport=xla` does. docs/results/gpu/README.md has the step of `tftrain.run`.
"""

import re
import sys
from pathlib import Path

import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parent))
from gpu_compiler import CUBLAS, Cluster, cluster_of, compiled

LAYERS = 6
WITHOUT_GRAPHS = "xla_gpu_graph_min_graph_size: 1000000"
SMALLER = "xla_gpu_all_reduce_combine_threshold_bytes: 8388608"
FLAGS = {
    "": "",
    "sums of up to 8 MB": SMALLER,
    "and latency hiding": f"{SMALLER} xla_gpu_enable_latency_hiding_scheduler: true",
}
_INSTRUCTION = re.compile(r"= \(?(\w+\[[\d,]*\]).* (all-reduce-start|all-reduce-done|custom-call)\(")
_KINDS = {"all-reduce-start": "start", "all-reduce-done": "done", "custom-call": "product"}


def summed_gradients(dtype: tf.DType) -> Cluster:
    """Returns the layers' gradients, each added up over two ranks."""
    inputs = [tf.TensorSpec([4096, 1024], dtype), *[tf.TensorSpec([1024, 1024], dtype)] * LAYERS]

    def step(x: tf.Tensor, *kernels: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(kernels)
            for kernel in kernels:
                x = tf.nn.gelu(tf.matmul(x, kernel), approximate=True)
        return [
            tf.raw_ops.CollectiveReduceV2(
                input=gradient,
                **{"group_size": 2, "group_key": 1, "instance_key": number, "ordering_token": []},
                **{"merge_op": "Add", "final_op": "Id", "communication_hint": "nccl"},
            )
            for number, gradient in enumerate(tape.gradient(x, kernels))
        ]

    return cluster_of(step, *inputs)


def schedule(cluster: Cluster, flags: str) -> list[tuple[str, str]]:
    """Returns kind and shape of each product, and of each start and end of a sum, in the order of the program."""
    text = compiled(cluster, f"{CUBLAS} {WITHOUT_GRAPHS} {flags}").optimized
    entry = text[text.rindex("\nENTRY ") :].splitlines()
    found = [_INSTRUCTION.search(line) for line in entry if "__cublas" in line or " all-reduce-" in line]
    return [(_KINDS[each[2]], each[1]) for each in found if each]


def main() -> None:
    """Prints a row for each dtype and each set of flags."""
    print("| dtype | XLA's flags | sums | products after the first sum starts |\n" + "| --- " * 4 + "|")
    for dtype in (tf.float32, tf.bfloat16):
        cluster = summed_gradients(dtype)
        for what, flags in FLAGS.items():
            order = schedule(cluster, flags)
            kinds = [kind for kind, _ in order]
            sums = [shape for kind, shape in order if kind == "start"]
            after = kinds[kinds.index("start") :].count("product")
            print(f"| {dtype.name} | {what} | {', '.join(sums)} | {after} of {kinds.count('product')} |", flush=True)


if __name__ == "__main__":
    main()
