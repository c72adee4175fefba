"""The spike monitor on series whose spikes are known."""

import math

import numpy as np
import pytest

from tftrain.state.spikes import WARMUP, SpikeMonitor


def falling(steps, seed, noise=0.1):
    """A loss as pre-training has it, and the norm of its gradient, which varies by factors."""
    random = np.random.default_rng(seed)
    time = np.arange(steps)
    losses = 2 + 8 * np.exp(-time / 300) + random.normal(0, noise, steps)
    norms = np.exp(random.normal(0, 0.4, steps) - time / 2000)
    return losses, norms


def spikes(losses, norms, zscore=6.0):
    monitor = SpikeMonitor(zscore)
    return [
        step
        for step, (loss, norm) in enumerate(zip(losses, norms, strict=True))
        if monitor.observe(float(loss), float(norm))
    ]


@pytest.mark.parametrize("seed", range(20))
def test_a_noisy_falling_loss_raises_no_alarm(seed):
    assert spikes(*falling(3000, seed)) == []


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("where", [WARMUP + 20, 700, 2500])
def test_a_spike_of_either_is_found(seed, where):
    losses, norms = falling(3000, seed)
    losses[where] += 4.0  # Early, when the loss still falls steeply, the mean lies far above it.
    assert spikes(losses, norms) == [where]
    losses, norms = falling(3000, seed)
    norms[where] *= 100
    assert spikes(losses, norms) == [where]


def test_one_spike_does_not_hide_the_next():
    losses, norms = falling(1500, 0)
    losses[[800, 810, 820]] += 4.0
    assert spikes(losses, norms) == [800, 810, 820]


def test_numbers_that_are_not_finite_and_few_numbers_are_no_spikes():
    monitor = SpikeMonitor(6.0)
    assert monitor.observe(1.0, 1.0) is None
    assert monitor.observe(1e9, 1.0) is None
    losses, norms = falling(500, 1)
    losses[100], norms[200] = math.nan, math.inf
    assert spikes(losses, norms) == []


def test_zero_switches_it_off():
    losses, norms = falling(500, 1)
    losses[300] = 1e9
    assert spikes(losses, norms, zscore=0) == []


def test_a_series_without_noise_raises_no_alarm_at_a_rounding():
    monitor = SpikeMonitor(6.0)
    for _ in range(200):
        assert monitor.observe(2.0, 1.0) is None
    assert monitor.observe(2.001, 1.001) is None
    assert monitor.observe(3.0, 1.0) is not None
