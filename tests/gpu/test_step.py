"""A training step of BERT and of GPT, traced as for a GPU: what of it the host does. It needs no GPU.

With fused ops, it needs the library of `make setup GPU=1`.
"""

import re

import horovod.tensorflow as hvd
import pytest
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from tests.gpu.registry import PLACED, on_host
from tests.train.layouts import FUSED, SAMPLES, batches, case, token_batches
from tftrain.host import devices
from tftrain.parallel import collectives
from tftrain.parallel.mesh import Mesh
from tftrain.parallel.pending_collectives import PendingCollectives
from tftrain.state.new_run import new_run
from tftrain.train.gradients import Position
from tftrain.train.step import TrainStep

pytestmark = pytest.mark.skipif(not tf.test.is_built_with_cuda(), reason="this TensorFlow has no kernels for GPUs")

FUSED_OPS = pytest.param("fused", marks=pytest.mark.gpu_build)
ATTENTION = {"bert": "softmax", "gpt": "flash"}
REASONS = {PLACED: "the loss weights, the requests and the values of the step before are on the host, which reads them"}


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    """Makes the choices of a run on a GPU; the first rank's values are those of the only rank."""
    together = collectives._together

    def in_graphs(group, kind, name, tensors, operation):
        return tensors[0] if tf.executing_eagerly() else together(group, kind, name, tensors, operation)

    monkeypatch.setattr(devices, "has_gpu", lambda: True)
    monkeypatch.setattr(collectives, "_together", in_graphs)
    hvd.init()


def step_of(family, ops, ranks=1, jit="false"):
    """Returns a step of one micro-batch after the other in bf16, and its batch."""
    model = {"model_family": family, "hidden_size": 32}
    if ops == "fused":
        model |= {**FUSED, "attn_impl": ATTENTION[family]}
    config = case(2, f"{ops}_lamb", model, {"precision": "bf16", "jit_compile": jit}, tensor_parallel_size=ranks)
    mesh = Mesh(size=ranks, local_size=ranks, tensor_parallel_size=ranks, pending=PendingCollectives())
    draw = token_batches if config.model.is_causal else batches
    return TrainStep(new_run(config.resolve(ranks), mesh)), next(draw(1, samples=SAMPLES))


@pytest.mark.nightly
@pytest.mark.parametrize("ops", ["reference", FUSED_OPS])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("family", ["bert", "gpt"])
def test_nothing_of_a_step_falls_back_to_the_host(family, ranks, ops):
    step, batch = step_of(family, ops, ranks)
    found = list(on_host(step.traced(batch, tf.zeros([1])).graph))
    if not hvd.nccl_built():  # Horovod's kernels for GPUs come with NCCL.
        found = [each for each in found if not each.kind.startswith("Horovod")]
    assert [each for each in found if each.reason not in REASONS] == []
    assert found


@pytest.mark.gpu_build
@pytest.mark.parametrize("family", ["bert", "gpt"])
def test_xla_compiles_forward_and_backward_for_a_gpu_with_fused_ops(family):
    step, batch = step_of(family, "fused", jit="true")
    position = Position(tf.zeros([], tf.int64), tf.ones_like(step._run.task.loss_weights(batch)), tf.ones([]))
    traced = step._compute._compiled.get_concrete_function(batch, position, False)
    # Without a device, TensorFlow compiles no function that reads variables.
    frozen = convert_variables_to_constants_v2(traced, lower_control_flow=False)
    inputs = [tf.zeros(each.shape, each.dtype) for each in frozen.inputs]
    compiled = tf.function(
        lambda *given: frozen(*given), jit_compile=True, autograph=False
    ).experimental_get_compiler_ir(*inputs)
    calls = set(re.findall(r'custom_call_target="(\w+)"', compiled(stage="hlo", platform_name="GPU")))
    attention = {"bert": "AttentionSoftmax", "gpt": "FlashAttention"}[family]
    ops = [f"Tftrain{name}" for name in (attention, "BiasDropoutAdd", "Gelu", "LayerNorm")]
    assert calls == {*ops, *(f"{op}Grad" for op in ops)}
