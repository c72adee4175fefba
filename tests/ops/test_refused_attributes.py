"""A counter outside of the counters is refused. Slices outside of a tensor: custom_ops/interface/calls_test.cc."""

import pytest
import tensorflow as tf

from tftrain.ops.library import counters, library


@pytest.mark.parametrize("number", [-1, 2**62, -(2**63), 10_000_000])
def test_a_counter_is_one_of_this_process(number):
    known = counters().tftrain_add_counter()
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"counter is .*expected the number of a counter"):
        library().tftrain_count([tf.zeros([])], counter=number)
    library().tftrain_count([tf.zeros([])], counter=known)
    assert [counters().tftrain_counter_value(each) for each in (known, number)] == [1, -1]
