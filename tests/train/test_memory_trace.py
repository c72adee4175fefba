"""The memory over a step: samples see what is held for a moment, and the picture shows both curves and the phases."""

import time

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tftrain.plan.timeline import Moment
from tftrain.train import memory_trace


def test_samples_see_memory_that_is_held_for_a_moment():
    sampler = memory_trace.Sampler()
    time.sleep(0.05)
    held = tf.ones([25_000_000], tf.float64)  # 200 MB
    time.sleep(0.05)
    del held
    time.sleep(0.05)
    length, found = sampler.stop()
    assert 0.1 < length < 5
    assert found.shape == (memory_trace.POINTS,)
    rise = found - found[0]
    assert 199e6 < rise.max() < 450e6
    assert rise[-1] < 50e6


@pytest.mark.usefixtures("drawn_pictures")
def test_the_picture_has_both_curves_and_a_colour_for_each_phase(tmp_path):
    moments = [
        Moment(0.0, 1e9, "forward"),
        Moment(1.0, 3e9, "forward"),
        Moment(3.0, 2e9, "backward"),
        Moment(4.0, 1e9, "update"),
    ]
    path = tmp_path / "memory.png"
    memory_trace.draw("Memory", 8.0, np.linspace(1e9, 2e9, 64), moments, 4e9, path)
    pixels = np.asarray(Image.open(path).convert("RGB"))

    def places(color):
        rgb = tuple(int(color[i : i + 2], 16) for i in (1, 3, 5))
        return np.flatnonzero((pixels == rgb).all(-1).any(0))

    assert pixels.shape == (900, 1600, 3)
    for color in (memory_trace.TRAIN, memory_trace.HELD_OUT, *memory_trace.PHASES.values()):
        assert len(places(color)) > 20, color
    memory_trace.draw("Memory", 8.0, np.linspace(1e9, 2e9, 64), [], 4e9, path)
    assert (np.asarray(Image.open(path).convert("RGB")) != pixels).any()
