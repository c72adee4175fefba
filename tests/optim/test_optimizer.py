"""The update rules against tf-models' LAMB, tf-keras' AdamW and Lion, and the papers' formulas in double precision."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tests.checkpoint import states
from tests.kit.tf_models import tf_models
from tftrain.architecture.shard import whole_shard
from tftrain.config import param_groups
from tftrain.config.optimizer import UPDATE_RULES, OptimizerConfig
from tftrain.ops.library import MissingLibraryError
from tftrain.optim import rules, state_split
from tftrain.optim.optimizer import Optimizer
from tftrain.optim.parameter_spec import ParameterSpec

SHAPES = {
    "embeddings/word": (11, 4),
    "embeddings/norm/gamma": (4,),
    "embeddings/norm/beta": (4,),
    "layer_00/attention/query/kernel": (4, 4),
    "layer_00/attention/query/bias": (4,),
    "zero_gradient/kernel": (3, 2),
    "zero_weight/kernel": (2, 5),
    "all_zero/kernel": (2, 2),
    "single/kernel": (1,),
    "single/bias": (1,),
    "prime/kernel": (8209,),
    "prime_matrix/kernel": (37, 101),
}
MATRICES = {"layer_00/wide/kernel": (3, 7), "layer_00/tall/kernel": (9, 4)}
EXCLUDED = ("bias", "beta", "gamma")
CONFIG = OptimizerConfig(learning_rate=1e-2, warmup_steps=3, clip_global_norm=0.0)
MAX_STEPS = 12
GROUPS = "embeddings/* rate=0.5; prime*/kernel rate=2 weight_decay=0; */query/bias weight_decay=0.3"
RULES = ("reference_lamb", "reference_adamw", "fused_lamb", "fused_adamw", "lion", "muon", "stableadamw")
FOR_XLA = ("reference_lamb", "fused_lamb", "muon")


def initial_weights(seed=0):
    random = np.random.default_rng(seed)
    weights = {name: random.normal(0, 0.5, shape).astype(np.float32) for name, shape in SHAPES.items()}
    weights["zero_weight/kernel"][:] = 0
    weights["all_zero/kernel"][:] = 0
    weights["embeddings/norm/beta"][0] = -0.0
    return weights


def gradient_steps(count, seed=1, more=()):
    random = np.random.default_rng(seed)
    steps = []
    for _ in range(count):
        shapes = {**SHAPES, **dict(more)}
        gradients = {name: random.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
        gradients["zero_gradient/kernel"][:] = 0
        gradients["all_zero/kernel"][:] = 0
        gradients["embeddings/word"][3] = -0.0
        steps.append(gradients)
    return steps


def specs(variables, groups=None):
    """Describes variables by name, as a model would."""
    return [
        ParameterSpec(
            name,
            variable,
            whole_shard(name, variable.shape),
            decays=not name.endswith(EXCLUDED),
            group=(groups or {}).get(name),
            is_matrix=name.startswith("layer_") and name.endswith("/kernel"),
        )
        for name, variable in variables.items()
    ]


def make(config=CONFIG, dtype=tf.float32, weights=None, split_strategy=None, mesh=None):
    weights = weights or initial_weights()
    variables = [tf.Variable(tf.cast(value, dtype)) for value in weights.values()]
    described = specs(dict(zip(weights, variables, strict=True)), param_groups.of_names(config.param_groups, weights))
    return Optimizer(config, MAX_STEPS, described, mesh, split_strategy), variables


def whole(optimizer):
    """Returns the whole state by name."""
    return {"optimizer/step": np.asarray(optimizer.step), **states.owned(optimizer.state)}


def apply(optimizer, gradients, loss_scale=None):
    return optimizer.apply([tf.constant(value) for value in gradients.values()], loss_scale)


def compiled(optimizer, how, loss_scale=None):
    """Returns an update, eager, of a graph or of XLA, as a function of gradients."""
    update = lambda *gradients: optimizer.apply(list(gradients), loss_scale)  # noqa: E731
    return update if how == "eager" else tf.function(update, jit_compile=how == "xla", autograph=False)


def updated(optimizer, steps, how="graph", loss_scale=None):
    """Applies gradients, in shards if the state is sharded, and yields what each update reported."""
    step, split = compiled(optimizer, how, loss_scale), optimizer.state.split
    for gradients in steps:
        values = [tf.constant(value) for value in gradients.values()]
        yield step(*(split.take(values.__getitem__) if split else values))


def assert_bits_equal(found, expected):
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def assert_equal_after_ten_updates(actual, expected, name, rtol=3e-6):
    """Each update rounds a few times; what then cancels was once as large as the tensor's largest number."""
    largest = np.abs(expected).max()
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=10 * 2**-24 * largest, err_msg=name)


class Reference:
    """The papers' algorithms in float64 NumPy, one tensor after the other, with the schedule and clipping."""

    def __init__(self, config, weights):
        self.config, self.t, self.clipped = config, 0, False
        self.groups = param_groups.of_names(config.param_groups, weights)
        self.w = {name: value.astype(np.float64) for name, value in weights.items()}
        self.m = {name: np.zeros_like(value) for name, value in self.w.items()}
        self.v = {name: np.zeros_like(value) for name, value in self.w.items()}

    def slot(self, name):
        return {"adam_m": self.m, "adam_v": self.v, "lion_m": self.m, "muon_m": self.m}[name]

    def apply(self, gradients):
        config = self.config
        norm = np.sqrt(sum(np.sum(np.square(g.astype(np.float64))) for g in gradients.values()))
        clip = min(1.0, config.clip_global_norm / norm) if config.clip_global_norm else 1.0
        warmup = config.warmup_steps
        rate = (
            config.learning_rate * max(self.t, 1) / warmup
            if self.t < warmup
            else config.learning_rate * (MAX_STEPS - self.t) / (MAX_STEPS - warmup)
        )
        self.t += 1
        b1, b2 = config.adam_beta1, config.adam_beta2
        for name, w in self.w.items():
            g = gradients[name].astype(np.float64) * clip
            if config.optimizer == "muon" and name.startswith("layer") and name.endswith("kernel"):
                mu = config.muon_momentum
                self.m[name] = mu * self.m[name] + (1 - mu) * g
                x = mu * self.m[name] + (1 - mu) * g
                x /= np.linalg.norm(x) + 1e-7
                for _ in range(5):  # The singular values one by one, without products of matrices.
                    u, s, v = np.linalg.svd(x, full_matrices=False)
                    x = u @ np.diag(3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5) @ v
                update = 0.2 * np.sqrt(max(x.shape)) * x
            elif config.optimizer == "lion":
                update = np.sign(b1 * self.m[name] + (1 - b1) * g)
                self.m[name] = b2 * self.m[name] + (1 - b2) * g
            else:
                m = self.m[name] = b1 * self.m[name] + (1 - b1) * g
                v = self.v[name] = b2 * self.v[name] + (1 - b2) * g**2
                update = (m / (1 - b1**self.t)) / (np.sqrt(v / (1 - b2**self.t)) + config.adam_epsilon)
            excluded = name.split("/")[-1] in EXCLUDED
            group = self.groups.get(name, param_groups.ParamGroup(name))
            decay = 0.0 if excluded else config.weight_decay
            update = update + (decay if group.weight_decay is None else group.weight_decay) * w
            ratio = 1.0
            if config.optimizer.endswith("lamb") and not excluded and np.any(w) and np.any(update):
                ratio = np.linalg.norm(w) / np.linalg.norm(update)
            if config.optimizer == "stableadamw":
                root = np.sqrt(v / (1 - b2**self.t))
                ratio = 1 / max(1, np.sqrt(np.mean((g / np.maximum(root, config.adam_epsilon)) ** 2)))
                self.clipped |= ratio < 0.9
            self.w[name] = w - rate * group.rate * ratio * update
        return rate, norm


def assert_equals_the_formulas(config, steps, how="graph", weights=None, split_strategy=None, rtol=3e-6):
    """Compares rates, norms, weights and slots after some updates; returns the optimizer and the reference."""
    weights = weights or initial_weights()
    optimizer, variables = make(config, weights=weights, split_strategy=split_strategy)
    reference = Reference(config, weights)
    for info, gradients in zip(updated(optimizer, steps, how), steps, strict=True):
        rate, norm = reference.apply(gradients)
        np.testing.assert_allclose(info.learning_rate, rate, rtol=1e-6)
        np.testing.assert_allclose(info.grad_norm, norm, rtol=1e-6)
    state = whole(optimizer)
    for name, variable in zip(weights, variables, strict=True):
        assert_equal_after_ten_updates(variable, reference.w[name], name, rtol)
        np.testing.assert_array_equal(variable, state[f"master/{name}"])
        for slot in optimizer.slots_of(name):
            assert_equal_after_ten_updates(state[f"{slot}/{name}"], reference.slot(slot)[name], name)
    assert int(optimizer.step) == len(steps)
    return optimizer, reference


WAYS = (("graph", {"adam_beta1": 0.0, "adam_beta2": 0.99}), ("xla", {"clip_global_norm": 0.5}))
# No rule has code for these; `test_flat_buckets_are_updated_as_their_tensors_are` has clipping and groups of each.
OF_ALL_RULES = ({"weight_decay": 0.0}, {"clip_global_norm": 0.5}, {"clip_global_norm": 1e3}, {"param_groups": GROUPS})


# XLA compiles those that have most operations, and a fused one.
@pytest.mark.parametrize(
    ("how", "flags", "rule"),
    [
        *(
            pytest.param(*way, rule, marks=[pytest.mark.nightly] * (way[0] == "xla" and rule not in FOR_XLA))
            for way, rule in itertools.product(WAYS, RULES)
        ),
        *(("graph", flags, rule) for flags, rule in itertools.product(OF_ALL_RULES, ("reference_lamb", "fused_adamw"))),
    ],
)
def test_ten_updates_equal_the_papers_formulas_in_double_precision(rule, flags, how):
    assert_equals_the_formulas(dataclasses.replace(CONFIG, optimizer=rule, **flags), gradient_steps(10), how)


def followed(optimizer, weights, oracle, change=lambda rate, values, twins: values):
    """Makes ten updates by the optimizer, and by one of Keras, of which it returns the weights by name.

    `change` returns the gradients for the oracle, and may update its weights.
    """
    twins = [tf.Variable(value, name=name) for name, value in weights.items()]
    for gradients in gradient_steps(10):
        values = [tf.constant(gradients[name]) for name in weights]
        rate = optimizer.apply(values).learning_rate
        values, oracle.learning_rate = change(rate, values, twins), rate
        oracle.apply_gradients(zip(values, twins, strict=True))
    return {twin.name.partition(":")[0]: twin for twin in twins}


@pytest.mark.parametrize("rule", ["reference_lamb", "fused_lamb"])
@pytest.mark.parametrize(("weight_decay", "clip"), [(0.01, 0.0), (0.0, 0.0), (0.1, 0.5)])
def test_ten_updates_equal_the_lamb_of_tf_models(weight_decay, clip, rule):
    config = dataclasses.replace(CONFIG, optimizer=rule, weight_decay=weight_decay, clip_global_norm=clip)
    optimizer, variables = make(config)
    excluded = [f"{ending}$" for ending in EXCLUDED]
    oracle = tf_models("official.modeling.optimization.lamb").LAMB(
        learning_rate=0.0,
        weight_decay_rate=weight_decay,
        exclude_from_weight_decay=excluded,
        exclude_from_layer_adaptation=excluded,
    )
    clipped = lambda _, values, __: tf.clip_by_global_norm(values, clip)[0] if clip else values  # noqa: E731
    twins = followed(optimizer, initial_weights(), oracle, clipped)
    for name, variable in zip(SHAPES, variables, strict=True):
        np.testing.assert_allclose(variable, twins[name], rtol=1e-5, atol=1e-8, err_msg=name)


@pytest.mark.parametrize("rule", ["reference_adamw", "fused_adamw", "lion"])
def test_ten_updates_equal_those_of_tf_keras(rule):
    # tf-keras' AdamW adds epsilon to the root of the moment before its bias correction; a small one makes the two
    # agree. It takes 1 - beta2 ** t in fp32, which leaves five digits of the corrections.
    lion = {"learning_rate": 1e-3, "weight_decay": 0.1} if rule == "lion" else {}
    config = dataclasses.replace(CONFIG, optimizer=rule, adam_epsilon=1e-12, **lion)
    weights = {name: value for name, value in initial_weights().items() if lion or not name.startswith("all_zero")}
    optimizer, variables = make(config, weights=weights)
    options = {"learning_rate": 0.0, "beta_1": config.adam_beta1, "beta_2": config.adam_beta2, "jit_compile": False}
    if lion:
        oracle = tf_keras.optimizers.Lion(**options)
    else:
        oracle = tf_keras.optimizers.experimental.AdamW(weight_decay=0.01, epsilon=1e-12, **options)
        oracle.exclude_from_weight_decay(var_names=EXCLUDED)

    def decayed(rate, values, twins):
        """Decays weights by a step of its own before the update, as tf-keras does, but not the excluded ones."""
        for twin in twins if lion else ():
            if not twin.name.partition(":")[0].endswith(EXCLUDED):
                twin.assign_sub(rate * config.weight_decay * twin)
        return values

    twins = followed(optimizer, weights, oracle, decayed)
    for name, variable in zip(weights, variables, strict=True):
        assert_equal_after_ten_updates(variable, twins[name], name, rtol=3e-6 if lion else 1e-5)


@pytest.mark.parametrize("name", ["lamb", "adamw"])
def test_a_rule_takes_its_fused_ops_where_they_are_built(name, monkeypatch):
    results = []
    for choice in (name, f"fused_{name}"):
        optimizer, _ = make(dataclasses.replace(CONFIG, optimizer=choice))
        assert optimizer.is_fused
        list(updated(optimizer, gradient_steps(3), "eager"))
        results.append(whole(optimizer))
    assert_bits_equal(*results)
    monkeypatch.setattr("tftrain.optim.optimizer.unavailable_reason", lambda gpu: "not built")
    assert not make(dataclasses.replace(CONFIG, optimizer=name))[0].is_fused


def test_a_fused_update_that_a_gpu_lacks_is_refused_with_its_flag(monkeypatch):
    monkeypatch.setattr("tftrain.optim.optimizer.devices.has_gpu", lambda: True)
    reason = "the fused ops were built without CUDA kernels"
    monkeypatch.setattr("tftrain.ops.library.unavailable_reason", lambda gpu: reason)
    with pytest.raises(MissingLibraryError, match=rf"{reason}; build .* `make setup GPU=1`.*--optimizer=fused_lamb"):
        make(dataclasses.replace(CONFIG, optimizer="fused_lamb"))


def test_every_optimizer_of_the_flag_is_a_rule_and_every_rule_is_in_the_flag():
    expected = {name: rule.has_fused for name, rule in UPDATE_RULES.items()}
    assert {name: rule.fused_update is not None for name, rule in rules.RULES.items()} == expected


@pytest.mark.parametrize("groups", [pytest.param(None, marks=pytest.mark.nightly), GROUPS], ids=["", "groups"])
@pytest.mark.parametrize("rule", RULES)
def test_flat_buckets_are_updated_as_their_tensors_are(rule, groups, monkeypatch):
    monkeypatch.setattr(state_split, "BUCKET_BYTES", 4 * 40)  # several, and tensors larger than one
    config = dataclasses.replace(CONFIG, optimizer=rule, clip_global_norm=0.25, param_groups=groups)
    optimizer, _ = assert_equals_the_formulas(config, gradient_steps(10), split_strategy="even")
    assert len(optimizer.state.split.buckets) > 3


def test_sparse_gradients_count_each_row_as_often_as_it_occurs():
    dense, expected = make(weights={"embeddings/word": initial_weights()["embeddings/word"]})
    sparse, variables = make(weights={"embeddings/word": initial_weights()["embeddings/word"]})
    rows = np.random.default_rng(3).normal(size=(3, 4)).astype(np.float32)
    whole = np.zeros((11, 4), np.float32)
    np.add.at(whole, [2, 5, 2], rows)
    dense.apply([tf.constant(whole)])
    sparse.apply([tf.IndexedSlices(tf.constant(rows), tf.constant([2, 5, 2]), tf.constant([11, 4]))])
    np.testing.assert_array_equal(variables[0], expected[0])


def test_gradients_that_do_not_match_the_variables_are_refused():
    optimizer, variables = make()
    with pytest.raises(ValueError, match=f"expected {len(SHAPES)} gradients, given 1"):
        optimizer.apply([tf.zeros(3)])
    with pytest.raises(ValueError, match="no gradient for embeddings/word"):
        optimizer.apply([None, *[tf.zeros(variable.shape) for variable in variables[1:]]])


def test_stableadamw_divides_the_rate_by_the_root_mean_square_where_gradients_jump():
    steps = [
        {name: value * 10.0 ** (number > 3) for name, value in gradients.items()}
        for number, gradients in enumerate(gradient_steps(6))
    ]
    _, reference = assert_equals_the_formulas(dataclasses.replace(CONFIG, optimizer="stableadamw"), steps, "eager")
    assert reference.clipped


@pytest.mark.parametrize("split_strategy", [None, "even", "naive"])
def test_muon_orthogonalizes_wide_and_tall_matrices(split_strategy, monkeypatch):
    monkeypatch.setattr(state_split, "BUCKET_BYTES", 4 * 40)
    config = dataclasses.replace(CONFIG, optimizer="muon", param_groups=GROUPS)
    weights = initial_weights() | {
        name: np.random.default_rng(5).normal(0, 0.5, shape).astype(np.float32) for name, shape in MATRICES.items()
    }
    steps = gradient_steps(6, more=MATRICES)
    optimizer, _ = assert_equals_the_formulas(config, steps, weights=weights, split_strategy=split_strategy)
    held = {name.partition("/")[::2] for name in whole(optimizer)}
    assert ("muon_m", "layer_00/tall/kernel") in held
    assert ("adam_m", "layer_00/tall/kernel") not in held
    assert ("adam_v", "layer_00/attention/query/bias") in held


@pytest.mark.parametrize(("rule", "split_strategy"), [("fused_lamb", None), ("muon", "even"), ("fused_adamw", "even")])
def test_the_average_follows_the_weights_and_is_exchanged_exactly(rule, split_strategy):
    config = dataclasses.replace(CONFIG, optimizer=rule, ema_decay=0.3)
    optimizer, variables = make(config, split_strategy=split_strategy, dtype=tf.bfloat16)
    optimizer.state.start_average()
    before = whole(optimizer)
    expected = {name: before[f"master/{name}"].astype(np.float64) for name in SHAPES}
    bad = {name: np.full(shape, np.nan, np.float32) for name, shape in SHAPES.items()}
    for number, _ in enumerate(updated(optimizer, [*gradient_steps(5), bad])):
        state, decay = whole(optimizer), min(0.3, (1 + number) / (10 + number))
        for name in SHAPES if number < 5 else ():
            expected[name] = decay * expected[name] + (1 - decay) * state[f"master/{name}"]
    for name in SHAPES:
        np.testing.assert_allclose(state[f"ema/{name}"], expected[name], rtol=1e-6, atol=1e-7, err_msg=name)
    optimizer.state.swap_average()
    average = {name: tf.cast(state[f"ema/{name}"], tf.bfloat16) for name in SHAPES}
    assert_bits_equal(dict(zip(SHAPES, variables, strict=True)), average)
    optimizer.state.swap_average()
    assert_bits_equal(whole(optimizer), state)
