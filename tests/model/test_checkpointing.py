"""Backward computes again what it did not keep: the same losses, more products, less memory, also under XLA."""

import dataclasses
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from tests.model.samples import PLAIN, dropout_key, loss_and_gradients, small_batch, small_config
from tests.train.test_step import BASE, SAMPLES, batches, trained
from tftrain.config.compute import ComputeConfig
from tftrain.config.parallel import BatchConfig
from tftrain.model.bert import BertPretrainer
from tftrain.model.checkpointing import Checkpointing
from tftrain.model.implementations import FLAGS
from tftrain.run import LOW_MEMORY_XLA

FUSED = dict.fromkeys(FLAGS, "fused")
VARIANTS = {
    "post-gelu": PLAIN,
    "post-erf": {**PLAIN, "gelu_form": "erf"},
    "pre-geglu": {**PLAIN, "activation": "geglu", "norm_position": "pre"},
    "fused": FUSED,
    "fused-pre-geglu": {**FUSED, "activation": "geglu", "norm_position": "pre"},
}


def losses(mode, model, **compute):
    """Loss sums and gradient norms of three updates of three micro-batches each, dropout on."""
    config = dataclasses.replace(
        BASE,
        model=dataclasses.replace(BASE.model, num_hidden_layers=2, **model),
        optimizer=dataclasses.replace(BASE.optimizer, optimizer="reference_lamb"),
        compute=ComputeConfig(activation_checkpointing=mode, **compute),
        batch=BatchConfig(grad_accum_steps=3, global_batch_size=SAMPLES),
    )
    _, infos = trained(config, data=batches(3))
    return np.array([[*info.sums.numpy(), info.grad_norm.numpy()] for info in infos])


BF16, SPARSE = {"precision": "bf16"}, {"sparse_as_dense": False}
WHOLE_STEPS = [*((model, {}) for model in VARIANTS), ("fused-pre-geglu", BF16)]
WHOLE_STEPS += [("post-erf", SPARSE), ("post-erf", BF16), ("post-gelu", SPARSE)]


# The gradients of one micro-batch are below; tests/train/test_layouts.py has XLA.
@pytest.mark.nightly
@pytest.mark.parametrize(("model", "compute"), WHOLE_STEPS)
def test_losses_are_bit_equal(model, compute):
    kept = losses("none", VARIANTS[model], **compute)
    for mode in ("selective", "full"):
        np.testing.assert_array_equal(losses(mode, VARIANTS[model], **compute), kept, err_msg=mode)


def optimized_nodes(function):
    """Name -> node of the graph that is executed, as Grappler leaves it."""
    context.context().enable_run_metadata()
    tf.function(function, autograph=False)()
    metadata = context.context().export_run_metadata()
    context.context().disable_run_metadata()
    return {node.name: node for node in metadata.partition_graphs[-1].node}


def ancestors(nodes, name):
    """What a node waits for; in a loop, within one iteration."""
    found, left = set(), [name]
    while left:
        name = left.pop()
        if name not in found and nodes[name].op != "NextIteration":
            found.add(name)
            left += [edge.partition(":")[0].removeprefix("^") for edge in nodes[name].input]
    return found


DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}


@pytest.mark.slow
def test_gradients_are_bit_equal():
    config, batch, found = small_config(**VARIANTS["fused-pre-geglu"], **DROPOUT), small_batch(), []
    for mode in ("none", "selective", "full"):
        model = BertPretrainer(config, "bfloat16", 1, Checkpointing(mode))
        compute = tf.function(lambda model=model: loss_and_gradients(model, batch, dropout_key()), autograph=False)
        found.append(tf.nest.flatten(compute()))
    for kept, *computed_again in zip(*found, strict=True):
        for each in computed_again:
            np.testing.assert_array_equal(tf.convert_to_tensor(each), tf.convert_to_tensor(kept))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "micro_batches"),
    [
        *(("selective", 1), ("full", 2)),
        *(pytest.param(*each, marks=pytest.mark.nightly) for each in (("selective", 2), ("full", 1))),
    ],
)
def test_recomputation_in_graph_mode_waits_for_the_loss(mode, micro_batches):
    model, batch = BertPretrainer(small_config(**FUSED, **DROPOUT), "float32", 1, Checkpointing(mode)), small_batch()

    def body(index, total):
        key = dropout_key()._replace(first_sample=tf.cast(index, tf.int64) * 5)
        gradients = loss_and_gradients(model, batch, key)[1].values()
        return index + 1, total + sum(tf.reduce_sum(gradient) for gradient in gradients)

    def loop():
        if micro_batches == 1:
            return body(0, 0.0)
        return tf.while_loop(lambda index, _: index < micro_batches, body, (0, 0.0), parallel_iterations=1)

    nodes = optimized_nodes(loop)
    losses = {name for name, node in nodes.items() if node.op == "SparseSoftmaxCrossEntropyWithLogits"}
    cores = [name for name, node in nodes.items() if node.op == "TftrainAttentionSoftmax"]
    waiting = [name for name in cores if losses & ancestors(nodes, name)]
    assert (len(cores), len(waiting)) == (2 * 2, 2)


COMPILE = """
import tensorflow as tf
from tensorflow.compiler.xla.service import hlo_pb2
from tests.model.samples import *
from tftrain.model.checkpointing import Checkpointing
from tftrain.model.implementations import FLAGS
dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 128, "max_position_embeddings": 64}
config = small_config(num_hidden_layers=4, **sizes, **dropout)
batch = small_batch(samples=8, length=64)
for mode in ("none", "selective", "full"):
    model = BertPretrainer(config, "float32", 1, Checkpointing(mode, jit=True))
    compute = lambda: loss_and_gradients(model, batch, dropout_key())[1]
    gradients = tf.function(compute, jit_compile=True, autograph=False)
    compiled = gradients.experimental_get_compiler_ir()(stage="optimized_hlo_proto_serialized")
    proto = hlo_pb2.HloProto.FromString(compiled)
    codes = [i.opcode for c in proto.hlo_module.computations for i in c.instructions]
    memory = [
        a.size for a in proto.buffer_assignment.buffer_allocations
        if not (a.is_entry_computation_parameter or a.is_constant or a.maybe_live_out or a.is_thread_local)
    ]
    print("RESULT", mode, codes.count("dot"), codes.count("exponential"), sum(memory))
"""


@pytest.mark.nightly  # Losses above, the memory of graphs in `plan/`.
def test_compiled_memory_goes_down_and_products_are_made_again():
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], env={**os.environ, "XLA_FLAGS": LOW_MEMORY_XLA}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("RESULT")]
    found = {mode: tuple(map(int, figures)) for mode, *figures in rows}
    for mode, figures in found.items():
        print("\n{}: {} products, {} softmaxes, {} bytes of temporaries".format(mode, *figures), end="")
    none, selective, full = (found[mode] for mode in ("none", "selective", "full"))
    # Four blocks: six dense layers, scores and context each; a softmax each.
    assert (full[0] - none[0], full[1] - none[1]) == (4 * 8, 4 * 2)
    # Selective: XLA on the CPU merges the recomputed scores and softmax with the forward pass's own, which it keeps in
    # the place of the dropout's tensors. The memory is that of a recomputed softmax.
    assert selective[2] < 0.87 * none[2]
    assert full[2] < 0.6 * none[2]
