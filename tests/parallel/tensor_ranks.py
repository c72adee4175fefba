"""What each rank does in `test_tensor`: loss sums and gradients of a divided model against those of a whole one.

The whole model is computed in the same process by the code for one rank, eagerly and without recomputation.
"""

import dataclasses
import zlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tests.model.samples import half_unit, loss_sums, small_batch, small_config, small_model
from tftrain.config.model import ModelConfig
from tftrain.config.parallel import ParallelConfig
from tftrain.model.bert import BertPretrainer
from tftrain.model.checkpointing import Checkpointing
from tftrain.model.implementations import FLAGS
from tftrain.ops.dropout import DropoutKey
from tftrain.parallel import collectives
from tftrain.parallel.launcher import launch_from_environment
from tftrain.parallel.mesh import Group
from tftrain.parallel.start import start
from tftrain.parallel.tensor import TensorRanks

SEED, SAMPLES, VOCAB = 1, 6, 59  # words that no number of ranks divides
FUSED = dict.fromkeys(FLAGS, "fused")
PRE = {"activation": "geglu", "norm_position": "pre", "gelu_form": "erf"}
WIDE = {"hidden_size": 2560, "num_attention_heads": 40, "intermediate_size": 1280, "initializer_range": 0.02}
# See tests/model/test_precision.py: about 50 results are rounded forward, and as many backward.
HALF_ROUNDINGS = 100
LOSS_SCALE = 64  # keeps small gradients within fp16's range


class Case(NamedTuple):
    """A model and the way its gradients are made."""

    model: Mapping = MappingProxyType({})
    dtype: str = "float32"
    checkpointing: str = "none"
    micro_batches: int = 1
    sparse_rows: bool = False
    ranks: tuple[int, ...] = (2, 4)  # sizes of the run
    pairs: bool = False  # groups of two ranks in a run of four


CASES = {
    "reference": Case(),
    "fused, pre-norm geglu": Case({**FUSED, **PRE}, ranks=(2,)),
    "selective checkpointing, pre-norm geglu, key bias": Case(
        {**PRE, "use_bias_in_keys": True}, checkpointing="selective", ranks=(2,)
    ),
    "full checkpointing, fused, micro-batches, two layers": Case(
        {**FUSED, "num_hidden_layers": 2}, checkpointing="full", micro_batches=3
    ),
    "sparse rows, micro-batches": Case(sparse_rows=True, micro_batches=2, ranks=(2,)),
    "bfloat16, full checkpointing, pre-norm geglu": Case(PRE, "bfloat16", checkpointing="full", ranks=(2,)),
    "float16, fused": Case(FUSED, "float16", ranks=(2,)),
    "bfloat16, fused, pairs": Case(FUSED, "bfloat16", ranks=(4,), pairs=True),
    "wide": Case(WIDE, ranks=(2,)),
}


def config(case: Case) -> ModelConfig:
    sizes = {"num_hidden_layers": 1, "hidden_size": 24, "num_attention_heads": 4, "intermediate_size": 36}
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    return small_config(**{**sizes, **dropout, "use_bias_in_keys": False, **case.model})


def divided_model(case: Case, group: Group, whole: BertPretrainer) -> BertPretrainer:
    """A model with the weights of a whole one, after a look at the initial ones."""
    checkpointing = Checkpointing(case.checkpointing)
    model = BertPretrainer(config(case), case.dtype, SEED, checkpointing, TensorRanks(group))
    initial = BertPretrainer(config(case), case.dtype, SEED).named_variables()
    assert list(model.named_variables()) == list(initial)
    for name, variable in model.named_variables().items():
        np.testing.assert_array_equal(variable, own_part(model, group, name, initial[name]), err_msg=name)
        variable.assign(own_part(model, group, name, whole.named_variables()[name]))
    return model


def own_part(model, group, name, whole):
    whole = tf.convert_to_tensor(whole)
    return model.shards[name].take(whole)


def contribution(model, batch, first, masked, sparse_rows):
    """Loss sums of some samples, and gradients of their share of the loss of all, scaled."""
    named = model.named_variables()
    watched = [*named.values()]
    if sparse_rows:
        rows = model.token_embedding.rows(batch["input_ids"])
        watched, batch = [*watched, rows.values], batch | {"token_rows": rows.values}
    key = DropoutKey(3, tf.constant(5, tf.int64), first)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(watched)
        sums = loss_sums(model, batch, key)
        loss = LOSS_SCALE * (sums.mlm_sum / masked + sums.nsp_sum / SAMPLES)
    gradients = [tf.cast(gradient, tf.float32) for gradient in tape.gradient(loss, watched)]
    if sparse_rows:
        of_rows = tf.reshape(gradients.pop(), [rows.ids.shape[0], -1])
        table = list(named).index("embeddings/word")
        gradients[table] = tf.tensor_scatter_nd_add(gradients[table], rows.ids[:, tf.newaxis], of_rows)
    return [tf.stack(sums), *gradients]


@tf.function(autograph=False)
def accumulated(model, batch, masked, sparse_rows, steps):
    """The same over all samples, in a loop over micro-batches."""
    if steps == 1:
        return contribution(model, batch, tf.constant(0, tf.int64), masked, sparse_rows)
    size = SAMPLES // steps

    def body(index, *totals):
        micro = {name: tf.reshape(value, [steps, size, *value.shape[1:]])[index] for name, value in batch.items()}
        new = contribution(model, micro, tf.cast(index, tf.int64) * size, masked, sparse_rows)
        return index + 1, *(total + part for total, part in zip(totals, new, strict=True))

    shapes = [[6], *(variable.shape for variable in model.named_variables().values())]
    zeros = [tf.zeros(shape) for shape in shapes]
    return tf.while_loop(lambda index, *_: index < steps, body, (0, *zeros), parallel_iterations=1)[1:]


def distance(actual, expected, dtype):
    """How far tensors are from each other, 1 is just near enough."""
    difference, expected = np.asarray(actual, np.float64) - expected, np.asarray(expected, np.float64)
    if dtype == "float32":
        return np.abs(difference).max() / (1e-5 * np.abs(expected).max())
    return np.linalg.norm(difference) / (HALF_ROUNDINGS * half_unit(dtype) * np.linalg.norm(expected))


def check_bits(group, arrays):
    """What every rank has must be the same on all of them to the last bit, or they drift apart."""
    digest = zlib.crc32(b"".join(array.tobytes() for array in arrays))
    assert len(set(collectives.gather_numbers(group, digest, "digest"))) == 1


def check(case: Case, group: Group) -> float:
    """Compares, and returns the largest distance of a tensor."""
    whole = small_model(config(case), case.dtype, SEED)
    model = divided_model(case, group, whole)
    if case.dtype != "float32":  # both in full precision, from the same rounded weights
        rounded, whole = whole, small_model(config(case), "float32", SEED)
        for name, variable in whole.named_variables().items():
            variable.assign(tf.cast(rounded.named_variables()[name], tf.float32))
    batch = small_batch(samples=SAMPLES)
    masked = tf.reduce_sum(batch["masked_lm_weights"])
    expected = contribution(whole, batch, tf.constant(0, tf.int64), masked, False)
    actual = accumulated(model, batch, masked, case.sparse_rows, case.micro_batches)
    shared = [
        g.numpy()
        for name, g in zip(model.named_variables(), actual[1:], strict=True)
        if not model.shards[name].is_divided
    ]
    check_bits(group, [actual[0].numpy(), *shared])
    distances = {"loss sums": distance(actual[0], expected[0], case.dtype)}
    for name, ours, reference in zip(whole.named_variables(), actual[1:], expected[1:], strict=True):
        if not name.endswith("key/bias"):  # 0 but for rounding
            distances[name] = distance(ours, own_part(model, group, name, reference), case.dtype)
    far = {name: round(float(value), 2) for name, value in distances.items() if not value <= 1}
    assert not far, f"rank {group.rank}: {far}"
    return max(distances.values())


if __name__ == "__main__":
    launch = launch_from_environment()
    mesh = start(launch, parallel=ParallelConfig(tensor_parallel_size=2, group_transport="horovod"))
    everyone = dataclasses.replace(mesh.world, name="tensor")
    for title, case in CASES.items():
        if mesh.size in case.ranks:
            worst = check(case, mesh.tensor if case.pairs else everyone)
            print(f"{title}: {worst:.2f} of the tolerance", flush=True)
    collectives.gather_numbers(mesh.world, 0.0, "end")  # the first to end would stop the others
    print("the divided model is the whole one", flush=True)
