"""Master weights start from the initializer's fp32 values, in every precision and layout; the weights round them."""

import dataclasses
import itertools
import math
import zlib

import numpy as np
import pytest
import tensorflow as tf

from tests.train.test_step import BASE
from tftrain.config.parallel import BatchConfig, ParallelConfig
from tftrain.optim import state_split
from tftrain.parallel import collectives
from tftrain.parallel.mesh import Mesh
from tftrain.state.new_run import new_run

ZERO = {"split_opt_state": True}
LAYOUTS = {
    "one rank": (1, {}),
    "even": (3, {**ZERO, "state_split_strategy": "even"}),
    "naive": (3, {**ZERO, "state_split_strategy": "naive"}),
    "greedy": (3, {**ZERO, "state_split_strategy": "greedy:2"}),
    "tensor parallel and even": (4, {"tensor_parallel_size": 2, **ZERO}),
}

SHORT = ("one rank", "tensor parallel and even")


def expected_master(name, shape):
    """Returns what a master weight must start from: computed here from seed and name, for the whole tensor."""
    if name.endswith(("bias", "beta")):
        return np.zeros(shape, np.float32)
    if name.endswith("gamma"):
        return np.ones(shape, np.float32)
    key = tf.constant([BASE.run.seed, zlib.crc32(name.encode())], tf.int64)
    stddev = BASE.model.initializer_range
    return tf.random.stateless_truncated_normal(shape, key, stddev=stddev, alg="philox").numpy()


def in_precision(precision, **parallel):
    return dataclasses.replace(
        BASE,
        batch=BatchConfig(global_batch_size=12),
        model=dataclasses.replace(BASE.model, num_hidden_layers=1, ln_dtype="fp32"),
        compute=dataclasses.replace(BASE.compute, precision=precision),
        parallel=ParallelConfig(**parallel),
    )


# Every layout in bf16; the other precisions where one rank has everything, and where it has least.
@pytest.mark.parametrize(
    ("precision", "layout"),
    [
        pytest.param(precision, layout, marks=[pytest.mark.nightly] * (precision != "bf16" and layout not in SHORT))
        for precision, layout in itertools.product(["fp32", "bf16", "fp16"], LAYOUTS)
    ],
)
def test_masters_are_the_fp32_draws_bit_for_bit(layout, precision, monkeypatch):
    ranks, parallel = LAYOUTS[layout]
    monkeypatch.setattr(state_split, "BUCKET_BYTES", 1024)  # several buckets, larger and smaller than a tensor
    monkeypatch.setattr(collectives, "broadcast_variables", lambda group, variables: None)
    # The weights that other ranks own are compared by `tests.train.layouts`, with several processes.
    if ranks > 1:
        monkeypatch.setattr("tftrain.optim.state.OptimizerState.publish", lambda self: None)
    config = in_precision(precision, **parallel).resolve(ranks)
    counts = {}
    for rank in range(ranks):
        run = new_run(config, Mesh(rank, ranks, rank, ranks, config.parallel.tensor_parallel_size))
        for piece, values in run.optimizer.state.tensors_to_save():
            kind, _, name = piece.name.partition("/")
            if kind == "master":
                whole = expected_master(name, piece.whole)
                block = whole[tuple(slice(o, o + n) for o, n in zip(piece.offset, piece.shape, strict=True))]
                np.testing.assert_array_equal(values, block.reshape(-1)[piece.start : piece.stop], err_msg=piece.name)
                counts[name] = counts.get(name, 0) + values.size
        for name, variable in run.task.model.named_variables().items():
            shard = run.task.model.shards[name]
            block = shard.take(expected_master(name, shard.whole))
            np.testing.assert_array_equal(variable, tf.cast(block, variable.dtype), err_msg=name)
    # The ranks together hold each element once.
    assert counts == {name: math.prod(run.task.model.shards[name].whole) for name in counts}
    assert counts.keys() == run.task.model.named_variables().keys()
