"""The unigram entropy."""

import numpy as np

from tftrain.train.evaluate import entropy


def test_entropy_in_nats():
    assert entropy(np.array([5, 5, 0, 5, 5])) == np.log(4)
    assert entropy(np.array([0, 7, 0])) == 0
