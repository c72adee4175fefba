"""Attributes of the ops that would reach outside of their tensors are refused."""

import pytest
import tensorflow as tf

from tftrain.ops.library import counters, library

SEGMENTS = [[-50_000_000, 50_000_004], [2**63 - 1, 2**63 - 1, 6], [5], [4, 1], [-1, 5], [-(2**63)]]


@pytest.mark.parametrize("segments", SEGMENTS, ids=str)
@pytest.mark.parametrize("op", ["adam_w", "lamb_moments", "lamb_weights"])
def test_slices_lie_in_their_tensor(op, segments):
    gradient, m, v, weights = (tf.Variable(tf.ones([4])) for _ in range(4))
    parts = tf.zeros([len(segments)])
    moments = {"m": [m.handle], "v": [v.handle], "weights": [weights.handle], "segments": segments, "epsilon": 1e-6}
    leading = {"scalars": tf.ones([8]), "weight_decays": parts}
    more = {"rates": parts} if op == "lamb_weights" else {"gradients": [gradient.value()]}
    copies = {} if op == "lamb_moments" else {"copies": [], "copied": []}
    with pytest.raises(tf.errors.InvalidArgumentError, match="segments has"):
        getattr(library(), f"tftrain_{op}")(**leading, **more, **moments, **copies)
    assert weights.numpy().tolist() == [1] * 4


@pytest.mark.parametrize("number", [-1, 2**62, -(2**63), 10_000_000])
def test_a_counter_is_one_of_this_process(number):
    known = counters().tftrain_add_counter()
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"counter is .*expected the number of a counter"):
        library().tftrain_count([tf.zeros([])], counter=number)
    library().tftrain_count([tf.zeros([])], counter=known)
    assert [counters().tftrain_counter_value(each) for each in (known, number)] == [1, -1]
