"""The loss scale's transitions."""

import pytest
import tensorflow as tf

from tftrain.config.compute import ComputeConfig
from tftrain.config.parallel import BatchConfig
from tftrain.optim.loss_scale import DynamicLossScale, FixedLossScale, make_loss_scale


def run(scale, found):
    values = []
    for inf in found:
        scale.update(tf.constant(inf))
        values.append(float(scale.value))
    return values


@pytest.mark.parametrize("jit_compile", [None, False, True])
def test_doubles_after_good_steps_in_a_row_and_halves_at_once(jit_compile):
    scale = DynamicLossScale(initial=8.0, growth_interval=3)
    if jit_compile is not None:
        scale.update = tf.function(scale.update, jit_compile=jit_compile, autograph=False)
    found = [0, 0, 0, 0, 0, 1, 0, 0, 1, 1, 0, 0, 0, 0]
    expected = [8, 8, 16, 16, 16, 8, 8, 8, 4, 2, 2, 2, 4, 4]
    assert run(scale, [bool(inf) for inf in found]) == expected


def test_stays_within_its_bounds():
    scale = DynamicLossScale(initial=2.0, growth_interval=1, largest=8.0)
    assert run(scale, [True] * 3 + [False] * 5) == [*[1] * 3, 2, 4, *[8] * 3]


def test_starts_at_two_to_the_fifteen_and_grows_after_two_thousand_steps():
    scale = DynamicLossScale()
    scale.state()["loss_scale/good_steps"].assign(1998)
    assert float(scale.value) == 2.0**15
    assert run(scale, [False, False, False]) == [2.0**15, 2.0**16, 2.0**16]


def test_state_restores_the_position_between_two_growths():
    old, new = DynamicLossScale(growth_interval=4), DynamicLossScale(growth_interval=4)
    run(old, [True, False, False])
    for name, variable in new.state().items():
        variable.assign(old.state()[name])
    assert run(new, [False, False]) == run(old, [False, False]) == [2.0**14, 2.0**15]


def test_a_fixed_scale_is_one_and_stateless():
    scale = FixedLossScale()
    assert run(scale, [True, False]) == [1.0, 1.0]
    assert scale.state() == {}


@pytest.mark.parametrize(
    ("flags", "batch", "kind"),
    [
        ({}, {}, FixedLossScale),
        ({"precision": "bf16"}, {}, FixedLossScale),
        ({"precision": "fp16"}, {}, DynamicLossScale),
        ({"hvd_fp16_compression": True}, {}, DynamicLossScale),
        ({}, {"grad_accum_dtype": "fp16"}, FixedLossScale),
        ({}, {"grad_accum_dtype": "fp16", "grad_accum_steps": 2}, DynamicLossScale),
    ],
)
def test_scale_is_dynamic_where_gradients_pass_through_fp16_or_add_up_in_it(flags, batch, kind):
    sizes = {"micro_batch_size": 8, "grad_accum_steps": 1, **batch}
    sizes["global_batch_size"] = 8 * sizes["grad_accum_steps"]
    assert type(make_loss_scale(ComputeConfig(**flags), BatchConfig(**sizes))) is kind
