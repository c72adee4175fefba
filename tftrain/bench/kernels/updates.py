"""The timed cases of the optimizers: a whole update of a model's weights, by fused ops and by `tftrain.optim`.

Both update the same variables, and both begin with the global norm of the gradients, for clipping. Master weights and
moments are fp32. If the model's weights have 16 bits, gradients have too, and the update ends with rounded weights.
"""

import dataclasses
from functools import partial

import tensorflow as tf

from tftrain.architecture.describe import describe
from tftrain.architecture.parts import Variable
from tftrain.architecture.shard import whole_shard
from tftrain.bench.kernels import traffic
from tftrain.bench.kernels.cases import Case, Pass, normal
from tftrain.config.model import ModelConfig
from tftrain.config.optimizer import OptimizerConfig
from tftrain.host.units import DTYPES
from tftrain.ops import lamb
from tftrain.optim import rules
from tftrain.optim.optimizer import Optimizer
from tftrain.optim.parameter_spec import ParameterSpec

MAX_STEPS = 1_000_000


def update_case(op: str, dtype: str, sizes: dict[str, int]) -> Case:
    """Returns the case of an optimizer, a key of `traffic.UPDATE_BYTES`, with one pass named update.

    `dtype` is fp32 or bf16, for weights and gradients. `sizes` has hidden, layers, seq and vocab of the model.
    """
    variables = weights_of(sizes)
    shapes = {each.name: list(each.shape) for each in variables}
    of_model = DTYPES[dtype]
    weights = [tf.Variable(normal(index, shape, of_model)) for index, shape in enumerate(shapes.values())]
    config = dataclasses.replace(OptimizerConfig(), optimizer=f"reference_{op}", warmup_steps=0)
    optimizer = Optimizer(
        config,
        MAX_STEPS,
        [
            ParameterSpec(each.name, weight, whole_shard(each.name, each.shape), decays=each.decays)
            for each, weight in zip(variables, weights, strict=True)
        ],
    )
    gradients = [normal(1000 + index, shape, of_model) for index, shape in enumerate(shapes.values())]
    decays = [config.weight_decay if each.decays else 0.0 for each in variables]
    adapted = tf.constant([float(each.decays) for each in variables])

    def fused(*gradients):
        norm = tf.sqrt(tf.reduce_sum(lamb.squared_norms(gradients)))
        factor = config.clip_global_norm / tf.maximum(norm, config.clip_global_norm)
        rate = tf.constant(config.learning_rate)
        scalars = rules.scalars(config, rate, optimizer.step, factor, tf.constant(False))
        slots = optimizer.state.slots
        stores = {"m": slots["adam_m"], "v": slots["adam_v"], "weights": optimizer.state.masters, "scalars": scalars}
        copies = {} if dtype == "fp32" else dict(enumerate(weights))
        settings = {"weight_decays": decays, "epsilon": config.adam_epsilon, "copies": copies}
        update = lamb.FusedUpdate(gradients, **stores, **settings)
        if op == "adamw":
            lamb.adamw(update)
        else:
            squares = lamb.lamb_moments(update)
            ratios = tf.where(adapted > 0, rules.trust_ratio(squares.weights, squares.updates), 1.0)
            lamb.lamb_weights(update, scalars.learning_rate * ratios)
        return norm

    def reference(*gradients):
        return optimizer.apply(list(gradients)).grad_norm

    total = sum(int(weight.shape.num_elements()) for weight in weights)
    compiled = {"fused": tf.function(fused, autograph=False), "reference": tf.function(reference, autograph=False)}
    run = {name: partial(function, *gradients) for name, function in compiled.items()}
    return Case(f"{total} in {len(weights)}", {"update": Pass(total * traffic.UPDATE_BYTES[op][dtype], run)})


def weights_of(sizes: dict[str, int]) -> list[Variable]:
    """Returns BERT's variables without the two heads, whose largest weight is the tied token embedding."""
    width, layers, words = sizes["hidden"], sizes["layers"], sizes["vocab"]
    model = ModelConfig(
        hidden_size=width, num_attention_heads=1, num_hidden_layers=layers, vocab_size=words, task="embedding"
    )
    return describe(model).variables()
