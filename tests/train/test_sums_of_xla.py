"""--gradient_transport=xla: the program that computes the gradients sums them over ranks, before backward ends.

On CPUs, TensorFlow's XLA sums nothing over ranks. So the step is compiled for a GPU that isn't there, and not run.
"""

import math
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

from tests.train.test_step import accumulating, batches, with_compute
from tftrain import run
from tftrain.parallel.gradient_reduction import GradientReduction
from tftrain.parallel.mesh import Group, Mesh
from tftrain.parallel.tensorflow_transport import TensorFlowTransport
from tftrain.state.new_run import new_run
from tftrain.train.gradients import Accumulation, Position
from tools import gpu_budget
from tools.gpu_compiler import clusters, compiled

pytestmark = pytest.mark.slow

FLAGS = (
    *(gpu_budget.STEP.split() + gpu_budget.FUSED.split()),
    *("--vocab_size=1024", "--max_seq_length=128", "--micro_batch_size=4", "--num_attention_heads=16"),
    *("--num_hidden_layers=3", "--hidden_size=1024", "--gradient_transport=xla"),
)
WEIGHTS = 3 * 12_596_224 + (1024 + 512 + 2) * 1024 + 1024 * 1024 + 1024 + 1024  # at least: blocks, embeddings, heads
XLA_FLAGS = " ".join(each.removeprefix("--").replace("=", ": ") for each in run.SUMS_OF_XLA)
WITHOUT_GRAPHS = "xla_gpu_graph_min_graph_size: 1000000"
INSTRUCTION = re.compile(r"= (.*?) (all-reduce-start|all-reduce-done|custom-call)\(")


@pytest.mark.parametrize("steps", [1, 3])
def test_the_program_sends_the_sum_of_its_micro_batches(steps, monkeypatch):
    config = accumulating(steps, with_compute(jit_compile="true", precision="bf16")).resolve(1)
    alone, sent = new_run(config, Mesh()), []

    def sum_in_program(transport, tensor):  # as if the other rank had the same gradients
        sent.append((transport._name, tensor.dtype))
        return 2 * tensor

    monkeypatch.setattr(TensorFlowTransport, "sum_in_program", sum_in_program)

    def gradients(in_program):
        reduction = GradientReduction(Group("data", (0, 1)), tf.float32, None, False, Group(), [], [], in_program)
        position = Position(tf.constant(3, tf.int64), tf.constant([20.0, 12.0]), tf.constant(1.0))
        return Accumulation(alone, reduction)(next(batches(1)), position)

    expected, found = gradients(False), gradients(True)
    own = tf.bfloat16 if steps == 1 else tf.float32
    assert sent == [(f"data.gradients.{index}", own) for index in reversed(range(len(found.dense)))]
    np.testing.assert_allclose(found.sums, expected.sums, rtol=1e-6)
    for each, half in zip(found.dense, expected.dense, strict=True):
        assert (each.dtype, each.shape) == (own, half.shape)
        half = tf.cast(half, tf.float32).numpy()
        # Two programs may round in other places.
        np.testing.assert_allclose(tf.cast(each, tf.float32), 2 * half, atol=2 * 2**-7 * np.abs(half).max())


@pytest.mark.nightly  # The test above shows what travels.
@pytest.mark.skipif(not shutil.which("ptxas"), reason="XLA makes no machine code without CUDA's ptxas")
@pytest.mark.parametrize(("steps", "wire"), [(1, "bf16"), (2, "f32")])
def test_sums_start_before_the_last_products_of_backward(steps, wire):
    (cluster, *_) = clusters([*FLAGS, f"--grad_accum_steps={steps}"], ranks=2)
    text = compiled(cluster, f"{gpu_budget.RUN} {WITHOUT_GRAPHS} {XLA_FLAGS}").optimized
    entry = text[text.rindex("\nENTRY ") :].splitlines()
    found = [INSTRUCTION.search(line) for line in entry if " all-reduce-" in line or "__cublas" in line]
    kinds, shapes = zip(*((each[2], each[1]) for each in found if each), strict=True)
    sums = [shape for kind, shape in zip(kinds, shapes, strict=True) if kind == "all-reduce-start"]
    numbers = [re.findall(r"(\w+)\[([\d,]*)\]", shape) for shape in sums]
    assert {dtype for each in numbers for dtype, _ in each} == {wire}
    assert sum(math.prod(map(int, filter(None, dims.split(",")))) for each in numbers for _, dims in each) >= WEIGHTS
    # Only the embeddings' gradients are ready after the last product.
    assert kinds[kinds.index("all-reduce-start") :].count("custom-call") >= 3 * 4
    last = max(index for index, kind in enumerate(kinds) if kind == "custom-call")
    assert kinds[last:].count("all-reduce-start") == 1
