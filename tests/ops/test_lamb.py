import math

import numpy as np
import pytest
import tensorflow as tf

from tests.ops.comparison import normal, ways
from tftrain.ops.lamb import FusedUpdate, UpdateScalars, adamw, lamb_moments, lamb_weights, squared_norms

EPSILON = 1e-6
BETA1, BETA2 = 0.9, 0.999
SHAPES = ((), (1,), (7, 3), (0, 4), (130, 257))
DECAYS = (0.0, 0.01, 0.01, 0.01, 0.1)


def scalars(step, factor=0.5, rate=0.01):
    time = step + 1
    return UpdateScalars(
        factor, rate, BETA1, BETA2, BETA1 - 1, 1 - BETA2, 1 / (1 - BETA1**time), -1 / math.expm1(time * math.log(BETA2))
    )


class Model:
    def __init__(self, shapes=SHAPES):
        self.weights = [tf.Variable(normal(i, shape, "float32")) for i, shape in enumerate(shapes)]
        self.m = [tf.Variable(tf.zeros(shape)) for shape in shapes]
        self.v = [tf.Variable(tf.zeros(shape)) for shape in shapes]

    def gradients(self, step):
        return [normal(100 * step + i, weight.shape, "float32") for i, weight in enumerate(self.weights, start=1)]

    def values(self):
        return [variable.numpy() for variable in self.weights + self.m + self.v]

    def update(self, gradients, at, decays=DECAYS, **more):
        return FusedUpdate(gradients, self.m, self.v, self.weights, at, decays, EPSILON, **more)

    def lamb(self, gradients, at, decays=DECAYS, segments=()):
        update = self.update(gradients, at, decays, segments=segments)
        squares = lamb_moments(update)
        ratios = tf.sqrt(squares.weights) / tf.sqrt(squares.updates)
        ratios = tf.where((squares.weights > 0) & (squares.updates > 0), ratios, 1.0)
        lamb_weights(update, at.learning_rate * ratios)

    def adamw(self, gradients, at):
        adamw(self.update(gradients, at))


def specification(weights, steps, with_trust_ratios):
    """Weights after `steps` updates, in fp64."""
    model = Model()
    weights = [weight.astype(np.float64) for weight in weights]
    m, v = ([np.zeros_like(weight) for weight in weights] for _ in range(2))
    for step in range(steps):
        at = scalars(step)
        for i, gradient in enumerate(model.gradients(step)):
            g = gradient.numpy().astype(np.float64) * at.gradient_factor
            m[i] = BETA1 * m[i] + (1 - BETA1) * g
            v[i] = BETA2 * v[i] + (1 - BETA2) * g * g
            update = m[i] * at.m_correction / (np.sqrt(v[i] * at.v_correction) + EPSILON) + DECAYS[i] * weights[i]
            norms = np.linalg.norm(weights[i]), np.linalg.norm(update)
            ratio = norms[0] / norms[1] if with_trust_ratios and all(norms) else 1
            weights[i] = weights[i] - at.learning_rate * ratio * update
    return weights


@pytest.mark.parametrize("optimizer", ["lamb", "adamw"])
@pytest.mark.parametrize("way", ["eager", "graph", "xla"])
def test_ten_steps_are_those_of_the_specification(way, optimizer):
    model = Model()
    expected = specification([weight.numpy() for weight in model.weights], 10, optimizer == "lamb")
    step_function = ways(lambda gradients, at: getattr(model, optimizer)(gradients, UpdateScalars(*tf.unstack(at))))[
        way
    ]
    for step in range(10):
        step_function(model.gradients(step), scalars(step).pack())
    for actual, wanted in zip(model.weights, expected, strict=True):
        np.testing.assert_allclose(actual.numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_the_compiled_program_updates_in_place():
    model = Model()

    @tf.function(jit_compile=True, autograph=False)
    def update(gradients):
        model.lamb(gradients, scalars(0))

    hlo = update.experimental_get_compiler_ir(model.gradients(0))(stage="optimized_hlo")
    for op in ("TftrainLambMoments", "TftrainLambWeights"):
        calls = [line for line in hlo.splitlines() if f'custom_call_target="{op}"' in line]
        assert len(calls) == 1
        assert "output_to_operand_aliasing" in calls[0]


def test_a_flat_bucket_of_segments_is_updated_as_its_tensors_are():
    shapes = [(5,), (1,), (4096,), (77,)]
    decays = (0.0, 0.01, 0.1, 0.01)
    apart, together = Model(shapes), Model([(sum(math.prod(shape) for shape in shapes) + 3,)])
    padding = [tf.zeros([3])]
    together.weights[0].assign(tf.concat([*apart.weights, *padding], 0))
    for step in range(3):
        gradients = apart.gradients(step)
        apart.lamb(gradients, scalars(step), decays)
        together.lamb([tf.concat([*gradients, *padding], 0)], scalars(step), decays, [shape[0] for shape in shapes])
    for name in ("weights", "m", "v"):
        expected = tf.concat([*getattr(apart, name), *padding], 0)
        np.testing.assert_array_equal(getattr(together, name)[0], expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("optimizer", ["lamb", "adamw"])
@pytest.mark.parametrize("way", ["eager", "graph", "xla"])
def test_16_bit_gradients_and_copies_save_casts_and_change_no_bit(way, optimizer, dtype):
    wide, narrow = Model(), Model()
    copied = [1, 2, 4]
    copies = {number: tf.Variable(tf.zeros(SHAPES[number], dtype)) for number in copied}

    def update(model, gradients, copies):
        call = model.update(gradients, scalars(0), copies=copies)
        if optimizer == "adamw":
            adamw(call)
        else:
            squares = lamb_moments(call)
            lamb_weights(call, call.scalars.learning_rate * (1.0 + squares.updates))
        return squared_norms(gradients)

    gradients = [tf.cast(gradient, dtype) for gradient in wide.gradients(0)]
    gradients[0] = tf.cast(gradients[0], tf.float32)  # the dtypes of one list may differ
    norms = ways(lambda gradients: update(narrow, gradients, copies))[way](gradients)
    expected = update(wide, [tf.cast(gradient, tf.float32) for gradient in gradients], {})
    np.testing.assert_array_equal(norms, expected)
    for actual, wanted in zip(narrow.values(), wide.values(), strict=True):
        np.testing.assert_array_equal(actual, wanted)
    for number, copy in copies.items():
        np.testing.assert_array_equal(copy.numpy(), tf.cast(wide.weights[number], dtype).numpy())


def test_a_copy_of_another_shape_or_dtype_is_refused():
    model = Model([(2,), (1,)])
    for copy, message in ((tf.zeros([2]), "float32, expected float16 or bfloat16"), (tf.zeros([3], "half"), r"\[3\]")):
        with pytest.raises(tf.errors.InvalidArgumentError, match=rf"copies\[0\] (is|has).*{message}"):
            adamw(model.update(model.gradients(0), scalars(0), (0.0, 0.1), copies={0: tf.Variable(copy)}))


def test_what_was_read_before_an_update_stays():
    model = Model()
    read = [weight.read_value() for weight in model.weights]
    before = [value.numpy().copy() for value in read]
    model.adamw(model.gradients(0), scalars(0))
    for value, expected in zip(read, before, strict=True):
        np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("epsilon", {"epsilon": 0.0}),
        (r"v\[1\]", {"v": lambda model: [model.v[0], tf.Variable(tf.zeros([2]))]}),
        (r"gradients\[0\]", {"gradients": lambda model: [tf.zeros([3]), tf.zeros([1])]}),
        ("weight_decays", {"weight_decays": (0.1,)}),
        ("segments", {"segments": [1]}),
    ],
)
def test_bad_input_is_refused_by_name(name, change):
    model = Model([(), (1,)])
    update = model.update(model.gradients(0), scalars(0), (0.0, 0.1))
    changed = {key: value(model) if callable(value) else value for key, value in change.items()}
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"{name} (is|are|has)\b"):
        lamb_moments(update._replace(**changed))
