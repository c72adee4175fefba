"""Collectives between two real ranks, and what they are on one."""

import numpy as np
import pytest
import tensorflow as tf

from tests.kit.ranks import run_ranks
from tftrain.parallel import collectives
from tftrain.parallel.gradient_reduction import all_reduce_sum
from tftrain.parallel.mesh import Group


def test_one_rank_talks_to_nobody():
    tensor = tf.constant([1.0, 2.0])
    assert all_reduce_sum(Group(), [tensor], "x")[0] is tensor
    assert collectives.all_gather_rows(Group(), tensor, "x") is tensor
    np.testing.assert_array_equal(collectives.gather_numbers(Group(), 3.5, "x"), [3.5])


ABORTED = "Collective ops is aborted by: Socket closed"


@pytest.mark.parametrize(
    ("kind", "words", "lost"),
    [
        ("Unknown", "Horovod has been shut down. This was caused by an exception on one of the ranks", True),
        ("Unknown", "[/tmp/gloo/gloo/transport/tcp/pair.cc:589] Read error [127.0.0.1]:1: Connection reset", True),
        ("Unknown", "Incompatible shapes: [2] vs. [3]", False),
        ("Unavailable", ABORTED, True),
        ("InvalidArgument", ABORTED, False),
    ],
)
def test_a_lost_rank_is_told_from_other_errors(kind, words, lost):
    assert collectives.is_peer_failure(getattr(tf.errors, f"{kind}Error")(None, None, words)) == lost


@pytest.mark.multirank
def test_two_ranks():
    output = run_ranks(2, ["-m", "tests.parallel.two_ranks"])
    assert output.count("two ranks agree") == 2
