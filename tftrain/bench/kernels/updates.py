"""The timed cases of the optimizers: a whole update of a model's weights, by fused ops and by `tftrain.optim`.

Both update the same variables, and both begin with the global norm of the gradients, for clipping. If the model's
weights have 16 bits, gradients have too, and the update ends with rounded weights.
"""

import dataclasses

import tensorflow as tf

from tftrain.bench.kernels import traffic
from tftrain.bench.kernels.cases import DTYPES, Case, Pass, normal
from tftrain.config import OptimizerConfig
from tftrain.ops import lamb
from tftrain.optim import rules
from tftrain.optim.optimizer import Optimizer
from tftrain.optim.update import EXCLUDED

MAX_STEPS = 1_000_000


def update_case(op: str, dtype: str, sizes: dict[str, int]) -> Case:
    """Makes the case of an optimizer.

    Args:
        op: a key of `traffic.UPDATE_BYTES`.
        dtype: fp32 or bf16, of gradients and weights; master weights and moments are fp32.
        sizes: hidden, layers, seq and vocab of the model.

    Returns:
        The case, with one pass named update.
    """
    shapes = weight_shapes(sizes)
    of_model = DTYPES[dtype]
    weights = [tf.Variable(normal(index, shape, of_model)) for index, shape in enumerate(shapes.values())]
    config = dataclasses.replace(OptimizerConfig(), optimizer=f"reference_{op}", warmup_steps=0)
    optimizer = Optimizer(config, MAX_STEPS, dict(zip(shapes, weights, strict=True)))
    gradients = [normal(1000 + index, shape, of_model) for index, shape in enumerate(shapes.values())]
    decays = [0.0 if name.endswith(EXCLUDED) else config.weight_decay for name in shapes]
    adapted = tf.constant([0.0 if name.endswith(EXCLUDED) else 1.0 for name in shapes])

    def fused(*gradients):
        norm = tf.sqrt(tf.reduce_sum(lamb.squared_norms(gradients)))
        factor = config.clip_global_norm / tf.maximum(norm, config.clip_global_norm)
        rate = tf.constant(config.learning_rate)
        scalars = rules.scalars(config, rate, optimizer.step, factor, tf.constant(False))
        slots = optimizer.state.slots
        state = {"m": slots["adam_m"], "v": slots["adam_v"], "weights": optimizer.state.masters}
        common = {"scalars": scalars, "weight_decays": decays, "epsilon": config.adam_epsilon}
        copies = {} if dtype == "fp32" else dict(enumerate(weights))
        if op == "adamw":
            lamb.adamw(gradients, **state, **common, copies=copies)
        else:
            squares = lamb.lamb_moments(gradients, **state, **common)
            ratios = tf.where(adapted > 0, rules.trust_ratio(squares.weights, squares.updates), 1.0)
            lamb.lamb_weights(**state, rates=scalars.learning_rate * ratios, **common, copies=copies)
        return norm

    def reference(*gradients):
        return optimizer.apply(list(gradients)).grad_norm

    total = sum(int(weight.shape.num_elements()) for weight in weights)
    run = {}
    for name, function in (("fused", fused), ("reference", reference)):
        compiled = tf.function(function, autograph=False)
        run[name] = lambda compiled=compiled: compiled(*gradients)
    return Case(f"{total} in {len(weights)}", {"update": Pass(total * traffic.UPDATE_BYTES[op][dtype], run)})


def weight_shapes(sizes: dict[str, int]) -> dict[str, list[int]]:
    """Returns name -> shape of BERT's weights, without the two heads (whose largest weight is the tied embedding)."""
    hidden, wide = sizes["hidden"], 4 * sizes["hidden"]
    shapes = {
        "embeddings/word": [sizes["vocab"], hidden],
        "embeddings/position": [512, hidden],
        "embeddings/token_type": [2, hidden],
        "embeddings/norm/gamma": [hidden],
        "embeddings/norm/beta": [hidden],
    }
    for layer in range(sizes["layers"]):
        prefix = f"layer_{layer:02d}"
        linear = {f"attention/{name}": [hidden, hidden] for name in ("query", "key", "value", "output")}
        linear |= {"feed_forward/up": [hidden, wide], "feed_forward/down": [wide, hidden]}
        for name, shape in linear.items():
            shapes[f"{prefix}/{name}/kernel"] = shape
            shapes[f"{prefix}/{name}/bias"] = shape[1:]
        for name in ("attention", "feed_forward"):
            shapes[f"{prefix}/{name}/norm/gamma"] = shapes[f"{prefix}/{name}/norm/beta"] = [hidden]
    return shapes
