"""Sums over ranks inside a program that XLA compiles for a GPU, which takes none: they start before backward ends."""

import math
import re

import pytest
import tensorflow as tf

from tools import gpu_collectives


@pytest.mark.nightly  # tests/train/test_sums_of_xla.py shows what a run sends.
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_with_latency_hiding_a_sum_starts_before_the_last_products_and_travels_in_its_dtype(dtype):
    cluster, kinds = gpu_collectives.summed_gradients(dtype), {}
    for what, flags in gpu_collectives.FLAGS.items():
        order = gpu_collectives.schedule(cluster, flags)
        kinds[what] = [kind for kind, _ in order]
        shapes = [shape for kind, shape in order if kind == "start"]
        assert all(shape.startswith({"float32": "f32", "bfloat16": "bf16"}[dtype.name]) for shape in shapes)
        numbers = sum(math.prod(map(int, re.findall(r"\d+", shape.partition("[")[2]))) for shape in shapes)
        assert numbers == gpu_collectives.LAYERS * 1024 * 1024
    assert "product" not in kinds[""][kinds[""].index("start") :]
    last = kinds["and latency hiding"]
    assert last[last.index("start") : last.index("done")].count("product") >= 2
