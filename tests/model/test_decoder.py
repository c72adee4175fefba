"""The decoder against float64 NumPy, straight from the formulas: outputs, loss, and every gradient."""

import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf

from tests.kit.ranks import ROOT
from tests.model.samples import PLAIN, dropout_key
from tftrain.cli.flags import parse
from tftrain.config.model import ModelConfig
from tftrain.config.train import TrainConfig
from tftrain.data.causal_source import documents
from tftrain.families import FAMILIES
from tftrain.model.decoder import Decoder
from tftrain.model.part import ModelPart
from tftrain.ops.library import is_available

VOCAB, SAMPLES, LENGTH = 37, 3, 11


def config(model_family="gpt", **changes):
    sizes = {
        "num_hidden_layers": 2,
        "hidden_size": 24,
        "vocab_size": VOCAB,
        "num_attention_heads": 3,
        "intermediate_size": 40,
        "max_position_embeddings": 13,
        "initializer_range": 0.2,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "layer_norm_epsilon": 1e-5,
    }
    return ModelConfig(model_family, **{**sizes, **PLAIN, **FAMILIES[model_family].defaults, **changes})


def build(model_config, dtype="float32"):
    """A model whose biases, scales and shifts are random too."""
    model, random = Decoder(model_config, dtype, 1), np.random.default_rng(1)
    for name, variable in model.named_variables().items():
        if name.endswith(("bias", "beta", "gamma")):
            variable.assign_add(tf.constant(random.normal(scale=0.2, size=variable.shape), variable.dtype))
    return model


def batch():
    tokens = np.random.default_rng(2).integers(VOCAB, size=(SAMPLES, LENGTH + 1))
    return {
        name: tf.constant(part, tf.int32) for name, part in (("input_ids", tokens[:, :-1]), ("labels", tokens[:, 1:]))
    }


def total_loss(model, data, key=None):
    entropy, _ = model.cross_entropy(model.hidden_states(data, key), data["labels"])
    return tf.reduce_sum(entropy)


def oracle(model_config, weights, data):
    """Returns the logits [b, S, vocab] and the summed cross-entropy, in float64."""

    def dense(name, x):
        return x @ weights[f"{name}/kernel"] + weights.get(f"{name}/bias", 0.0)

    def norm(name, x):
        epsilon = model_config.layer_norm_epsilon
        if model_config.model_family == "llama":
            return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * weights[f"{name}/gamma"]
        deviation = np.sqrt(x.var(-1, keepdims=True) + epsilon)
        return (x - x.mean(-1, keepdims=True)) / deviation * weights[f"{name}/gamma"] + weights[f"{name}/beta"]

    def gelu(x):
        return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2

    def turned(x):  # one head, [S, head_size], as complex numbers: the first half real, the second imaginary
        half = x.shape[1] // 2
        steps = model_config.rope_theta ** (-np.arange(half) / half)
        if model_config.rope_scaling != "none":
            steps = np.array([scaled(step) for step in steps])
        angles = np.arange(len(x))[:, None] * steps
        pairs = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * angles)
        return np.concatenate([pairs.real, pairs.imag], axis=1)

    def scaled(step):  # LLAMA3
        wavelength = 2 * math.pi / step
        if wavelength < 16 / 4:
            return step
        if wavelength > 16 / 1:
            return step / 8
        smooth = (16 / wavelength - 1) / (4 - 1)
        return (1 - smooth) * step / 8 + smooth * step

    def attention(name, x):
        result, size = np.zeros_like(x), model_config.head_size
        projected = [dense(f"{name}/{part}", x) for part in ("query", "key", "value")]
        heads = model_config.num_attention_heads
        for sample, head in np.ndindex(SAMPLES, heads):
            group = heads // (model_config.num_key_value_heads or heads)
            places = (head, head // group, head // group)
            query, key, value = (
                each[sample, :, place * size : (place + 1) * size]
                for each, place in zip(projected, places, strict=True)
            )
            if model_config.position_embedding == "rotary":
                query, key = turned(query), turned(key)
            for place in range(LENGTH):
                scores = key[: place + 1] @ query[place] / math.sqrt(size)
                if model_config.position_embedding == "alibi":  # 3 heads: 1/16 and 1/256 of two, 1/4 of four
                    scores -= (1 / 16, 1 / 256, 1 / 4)[head] * (place - np.arange(place + 1))
                powers = np.exp(scores)
                result[sample, place, head * size : (head + 1) * size] = powers / powers.sum() @ value[: place + 1]
        return dense(f"{name}/output", result)

    def feed_forward(name, x):
        up = dense(f"{name}/up", x)
        if model_config.activation == "swiglu":
            gate = dense(f"{name}/gate", x)
            return dense(f"{name}/down", gate / (1 + np.exp(-gate)) * up)
        gated = model_config.activation == "geglu"
        return dense(f"{name}/down", gelu(dense(f"{name}/gate", x)) * up if gated else gelu(up))

    ids, labels = data["input_ids"].numpy(), data["labels"].numpy()
    x = weights["embeddings/word"][ids]
    if model_config.position_embedding == "learned":
        x = x + weights["embeddings/position"][:LENGTH]
    pre = model_config.norm_position != "post"
    if not pre:
        x = norm("embeddings/norm", x)
    for layer in range(model_config.num_hidden_layers):
        for part, sublayer in (("attention", attention), ("feed_forward", feed_forward)):
            name = f"layer_{layer:02d}/{part}"
            x = x + sublayer(name, norm(f"{name}/norm", x)) if pre else norm(f"{name}/norm", x + sublayer(name, x))
    logits = (norm("final_norm", x) if pre else x) @ weights.get("output", weights["embeddings/word"]).T
    best = logits.max(-1, keepdims=True)
    entropies = (
        np.log(np.exp(logits - best).sum(-1)) + best[..., 0] - np.take_along_axis(logits, labels[..., None], -1)[..., 0]
    )
    return logits, entropies.sum()


LLAMA = {"model_family": "llama", "num_attention_heads": 6}
LLAMA3 = "llama3:8,1,4,16"  # of waves of 6.3 to 630 tokens
VARIANTS = [
    {},
    {"norm_position": "post"},
    {"activation": "geglu", "use_bias_in_keys": False},
    {"position_embedding": "rotary"},
    {"position_embedding": "alibi"},
    {"model_family": "llama"},
    {**LLAMA, "num_key_value_heads": 2, "rope_theta": 100.0, "rope_scaling": LLAMA3},
    {**LLAMA, "num_key_value_heads": 1, "tie_output": True, "bias": "query_key_value"},
    {**LLAMA, "bias": "all"},
    {**LLAMA, "num_key_value_heads": 2, "bias": "all", "ln_impl": "fused", "gelu_impl": "fused"},
]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_logits_loss_and_every_gradient_equal_numpy(changes):
    if "fused" in changes.values() and not is_available(gpu=False):
        pytest.skip("the library of ops is not built")
    model_config, data = config(**changes), batch()
    model = build(model_config)
    variables = model.named_variables()
    weights = {name: variable.numpy().astype(np.float64) for name, variable in variables.items()}
    logits, loss = oracle(model_config, weights, data)
    np.testing.assert_allclose(
        model.logits(model.hidden_states(data)), logits, rtol=1e-5, atol=1e-5 * abs(logits).max()
    )
    with tf.GradientTape() as tape:
        found = total_loss(model, data)
    np.testing.assert_allclose(found, loss, rtol=1e-5)
    gradients = dict(zip(variables, tape.gradient(found, list(variables.values())), strict=True))
    random, step = np.random.default_rng(3), 1e-5
    for name, gradient in gradients.items():
        direction = random.normal(size=gradient.shape)
        ahead, behind = (
            oracle(model_config, {**weights, name: weights[name] + sign * step * direction}, data)[1]
            for sign in (1, -1)
        )
        slope, scale = (ahead - behind) / (2 * step), np.linalg.norm(gradient)
        if name.endswith("key/bias") and model_config.position_embedding != "rotary":
            assert scale < 1e-4, name  # it cancels in the softmax
            continue
        np.testing.assert_allclose(
            (gradient.numpy() * direction).sum(), slope, rtol=1e-4, atol=1e-4 * scale, err_msg=name
        )


FUSED = {"ln_impl": "fused", "gelu_impl": "fused"}
# 2**-8 rounds one number of bf16, and a gradient has gone through some dozen of them.
ROUNDING = {("float32", "compute"): 1e-5, ("bfloat16", "compute"): 0.1, ("bfloat16", "fp32"): 0.1}


@pytest.mark.skipif(not is_available(gpu=False), reason="the library of ops is not built")
@pytest.mark.parametrize(  # Every two values of two arguments.
    ("bias", "dtype", "ln_dtype", "jit_compile"),
    [
        ("none", "float32", "compute", False),
        pytest.param("all", "float32", "compute", True, marks=pytest.mark.nightly),
        pytest.param("none", "bfloat16", "compute", True, marks=pytest.mark.nightly),
        pytest.param("all", "bfloat16", "compute", False, marks=pytest.mark.nightly),
        pytest.param("none", "bfloat16", "fp32", True, marks=pytest.mark.nightly),
        ("all", "bfloat16", "fp32", True),
    ],
)
def test_fused_norms_and_swiglu_give_the_plain_loss_and_gradients_of_llama_tiny(bias, dtype, ln_dtype, jit_compile):
    tiny = parse(TrainConfig, ["program", f"--flagfile={ROOT / 'configs/llama_tiny.flags'}"]).model
    results = []
    for implementations in (PLAIN, PLAIN | FUSED):
        changes = {"bias": bias, "ln_dtype": ln_dtype, "vocab_size": VOCAB, "initializer_range": 0.1, **implementations}
        model, data = build(dataclasses.replace(tiny, **changes), dtype), batch()
        variables = list(model.named_variables().values())

        @tf.function(autograph=False, jit_compile=jit_compile)
        def loss_and_gradients(model=model, data=data, variables=variables):
            with tf.GradientTape() as tape:
                loss = total_loss(model, data)
            return loss, tape.gradient(loss, variables)

        results.append((loss_and_gradients(), loss_and_gradients.get_concrete_function().graph))
    (((plain_loss, plain), _), ((loss, gradients), graph)) = results
    assert {"TftrainRmsNorm", "TftrainSwiglu"} <= {op.type for op in graph.get_operations()}
    allowed = ROUNDING[dtype, ln_dtype]
    np.testing.assert_allclose(loss, plain_loss, rtol=allowed)
    for name, expected, found in zip(model.named_variables(), plain, gradients, strict=True):
        expected, found = (tf.cast(tf.convert_to_tensor(each), tf.float64) for each in (expected, found))
        assert tf.norm(found - expected) <= allowed * tf.norm(expected) + 1e-6, name


def test_a_token_sees_nothing_behind_it():
    model, data = build(config()), batch()
    changed = tf.tensor_scatter_nd_update(data["input_ids"], [[0, 7]], [(int(data["input_ids"][0, 7]) + 1) % VOCAB])
    before, after = (model.hidden_states({**data, "input_ids": ids}) for ids in (data["input_ids"], changed))
    np.testing.assert_array_equal(before[0, :7], after[0, :7])
    np.testing.assert_array_equal(before[1:], after[1:])
    assert (before[0, 7:].numpy() != after[0, 7:].numpy()).any(axis=-1).all()


@pytest.mark.parametrize("core", ["plain", "fused", "flash"])
@pytest.mark.parametrize("changes", [{}, {"position_embedding": "alibi"}, {"model_family": "llama"}], ids=str)
def test_documents_of_a_row_have_the_losses_of_rows_of_their_own(changes, core):
    if core != "plain" and not is_available(gpu=False):
        pytest.skip("the library of ops is not built")
    flags = {"fused": {"attn_softmax_impl": "fused"}, "flash": {"attn_impl": "flash"}}.get(core, {})
    model, end = build(config(**changes, **flags)), 0
    first, second = np.array([end, 5, 9, 30, 7, end]), np.array([end, 11, 12, 13, 14, 15])

    def losses(*rows):
        tokens = np.array(rows, np.int32)
        data = {"input_ids": tf.constant(tokens[:, :-1]), "labels": tf.constant(tokens[:, 1:])}
        hidden = model.hidden_states(data | documents(data["input_ids"], end))
        return model.cross_entropy(hidden, data["labels"])[0].numpy()

    (whole,) = losses([*first[:-1], *second])
    np.testing.assert_allclose(whole, losses(first, second).ravel(), rtol=1e-5)
    other = np.array([end, 21, 22, 23, 24, 25])
    np.testing.assert_array_equal(losses([*first[:-1], *other])[0, :5], whole[:5])
    np.testing.assert_array_equal(losses([*other[:5], *second])[0, 5:], whole[5:])


def test_parts_one_after_another_are_the_model():
    model_config, data, key = config(hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2), batch(), dropout_key()
    x = Decoder(model_config, "float32", 1, part=ModelPart((0,), heads=False)).embedding(data, key)
    for blocks in ((0,), (1,)):
        part = Decoder(model_config, "float32", 1, part=ModelPart(blocks, embedding=False, heads=False))
        x = part.run_blocks(x, data, key)
    np.testing.assert_array_equal(x, Decoder(model_config, "float32", 1).hidden_states(data, key))
