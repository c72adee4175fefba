"""What the optimizer keeps, and that a skipped update changes none of it."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.checkpoint import states
from tests.optim.test_optimizer import (
    CONFIG,
    RULES,
    SHAPES,
    apply,
    assert_bits_equal,
    compiled,
    gradient_steps,
    initial_weights,
    make,
    updated,
    whole,
)
from tftrain.checkpoint import memory
from tftrain.optim.loss_scale import DynamicLossScale

pytestmark = pytest.mark.slow


def bits(optimizer, variables=()):
    state = {**whole(optimizer), **dict(enumerate(variables))}
    return {name: np.asarray(value).tobytes() for name, value in state.items()}


def twins(steps=(), **options):
    """Returns two optimizers of other weights, of which the first one has made some updates, and their variables."""
    (old, expected), (new, variables) = make(**options), make(weights=initial_weights(seed=9), **options)
    list(updated(old, steps, "eager"))
    return old, expected, new, variables


POISONS = {
    "reference_lamb": {"eager": -np.inf, "graph": np.nan, "xla": np.inf},
    "fused_lamb": {"eager": np.inf, "graph": np.nan, "xla": -np.inf},
    "reference_adamw": {"graph": np.nan},
    "fused_adamw": {"graph": np.inf},
    "lion": {"graph": np.nan},
    "stableadamw": {"graph": np.nan},
    "muon": {"graph": np.nan},
}


@pytest.mark.parametrize(
    ("rule", "how", "poison"), [(rule, *each) for rule, ways in POISONS.items() for each in ways.items()]
)
def test_a_non_finite_gradient_changes_no_bit_and_backs_the_scale_off(rule, poison, how):
    optimizer, variables = make(dataclasses.replace(CONFIG, optimizer=rule), dtype=tf.bfloat16)
    scale = DynamicLossScale(initial=4.0)
    step = compiled(optimizer, how, scale)
    first, second, third = gradient_steps(3)
    step(*[tf.constant(value) * 4 for value in first.values()])
    # A moment and a weight of -0.0 keep their sign only if nothing is added to them.
    for store in (optimizer.state.masters[0], next(iter(optimizer.state.slots.values()))[0]):
        store.assign(tf.tensor_scatter_nd_update(store, [[1, 1]], [-0.0]))
    optimizer.state.publish()
    before = bits(optimizer, variables)
    second["layer_00/attention/query/bias"][2] = poison
    info = step(*[tf.constant(value) * 4 for value in second.values()])
    assert bits(optimizer, variables) == before
    assert bool(info.skipped)
    assert not np.isfinite(info.grad_norm)
    assert (float(info.loss_scale), float(scale.value)) == (4.0, 2.0)
    info = step(*[tf.constant(value) * 2 for value in third.values()])
    assert not bool(info.skipped)
    assert int(optimizer.step) == 2
    assert bits(optimizer, variables) != before


@pytest.mark.parametrize("rule", RULES)
def test_a_skipped_step_leaves_no_trace_in_the_updates_after_it(rule):
    (plain, expected), (skipping, variables) = (make(dataclasses.replace(CONFIG, optimizer=rule)) for _ in range(2))
    first, second = gradient_steps(2)
    bad = {name: value * np.nan for name, value in second.items()}
    list(updated(plain, [first, second], "eager"))
    list(updated(skipping, [first, bad, second], "eager"))
    assert bits(skipping, variables) == bits(plain, expected)


def test_unscaling_undoes_the_loss_scale_exactly():
    (plain, expected), (scaled, variables) = (make(dataclasses.replace(CONFIG, clip_global_norm=0.5)) for _ in range(2))
    for gradients in gradient_steps(3):
        unscaled_info = apply(plain, gradients)
        info = apply(scaled, {name: value * 2**12 for name, value in gradients.items()}, DynamicLossScale(2.0**12))
        assert float(info.grad_norm) == float(unscaled_info.grad_norm)
    assert bits(scaled, variables) == bits(plain, expected)


@pytest.mark.parametrize("rule", ["reference_lamb", "fused_lamb"])
@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
def test_variables_of_low_precision_are_the_rounded_master_weights(dtype, rule):
    config = dataclasses.replace(CONFIG, optimizer=rule)
    weights = initial_weights()
    rounded = {name: np.asarray(tf.cast(tf.cast(value, dtype), tf.float32)) for name, value in weights.items()}
    low, variables = make(config, dtype=dtype)
    full, expected = make(config, weights=rounded)
    for optimizer in (low, full):
        list(updated(optimizer, gradient_steps(5), "eager"))
    for variable, master, twin in zip(variables, low.state.masters, expected, strict=True):
        assert variable.dtype == dtype
        np.testing.assert_array_equal(master, twin)
        np.testing.assert_array_equal(variable, tf.cast(twin, dtype))


def test_state_has_one_copy_of_an_fp32_weight_and_names_for_everything():
    optimizer, variables = make()
    expected = {
        f"{kind}/{name}": list(shape) for kind in ("master", "adam_m", "adam_v") for name, shape in SHAPES.items()
    }
    assert {name: list(value.shape) for name, value in states.owned(optimizer.state).items()} == expected
    for variable, master in zip(variables, optimizer.state.masters, strict=True):
        assert master is variable
    assert len({id(variable) for variable in optimizer.variables}) == 3 * len(SHAPES) + 1


def test_a_checkpoint_is_read_into_the_state_and_into_nothing_else(tmp_path):
    old, _ = make()
    apply(old, gradient_steps(1)[0])
    before = {name: tf.constant(value) for name, value in initial_weights(seed=9).items()}
    new, variables = make(weights=before)
    assert address(variables[0]) == address(next(iter(before.values()))), "nothing here has the same memory"
    reader, buffers = states.saved(tmp_path, states.owned(old.state)), new.state.restore_buffers()
    reader.verify(wanted=buffers)
    new.step.assign(old.step)
    assert bits(new) == bits(old)
    new.state.load(reader)
    assert bits(new) == bits(old)
    stores = [*new.state.masters, *itertools.chain.from_iterable(new.state.slots.values())]
    assert [values.ctypes.data for values in buffers.values()] == [address(store) for store in stores]
    assert_bits_equal(before, initial_weights(seed=9))


def test_a_restored_state_takes_no_memory_of_the_reader_s(tmp_path):
    old, _, new, _ = twins(gradient_steps(1))
    reader, buffers = states.saved(tmp_path, states.owned(old.state)), memory.arrays(new.state.restore_buffers())
    reader.verify(wanted=buffers)
    new.step.assign(old.step)
    new.state.load(reader)
    for values in buffers.values():
        values.fill(np.nan)
    assert bits(new) == bits(old)


def address(values):
    return np.asarray(memoryview(tf.convert_to_tensor(values))).ctypes.data


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_a_restored_state_continues_bit_for_bit(dtype, tmp_path):
    old, expected, new, variables = twins(gradient_steps(4)[:2], dtype=dtype)
    new.step.assign(old.step)
    new.state.load(states.saved(tmp_path, states.owned(old.state)))
    for optimizer in (old, new):
        list(updated(optimizer, gradient_steps(4)[2:], "eager"))
    assert bits(new, variables) == bits(old, expected)
