"""The decoder against float64 NumPy, straight from the formulas: outputs, loss, and every gradient."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.kit.ranks import ROOT
from tests.model.numpy_oracle import Oracle
from tests.model.samples import NEEDS_OPS, PLAIN, dropout_key, small_config, small_model
from tftrain.cli.flags import parse
from tftrain.config.train import TrainConfig
from tftrain.data.causal_source import documents
from tftrain.families import FAMILIES
from tftrain.model.decoder import Decoder
from tftrain.model.part import ModelPart

VOCAB, SAMPLES, LENGTH = 37, 3, 11


def config(model_family="gpt", **changes):
    sizes = {"num_hidden_layers": 2, "hidden_size": 24, "vocab_size": VOCAB, "intermediate_size": 40}
    sizes |= {"max_position_embeddings": 13, "layer_norm_epsilon": 1e-5}
    return small_config(model_family=model_family, **{**sizes, **FAMILIES[model_family].defaults, **changes})


def batch():
    tokens = tf.constant(np.random.default_rng(2).integers(VOCAB, size=(SAMPLES, LENGTH + 1)), tf.int32)
    return {"input_ids": tokens[:, :-1], "labels": tokens[:, 1:]}


def loss_and_gradients(model, data):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model.cross_entropy(model.hidden_states(data), data["labels"])[0])
    return loss, tape.gradient(loss, list(model.named_variables().values()))


LLAMA = {"model_family": "llama", "num_attention_heads": 6}
LLAMA3 = "llama3:8,1,4,16"  # for waves of 6.3 to 630 tokens
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


@pytest.mark.parametrize(
    "changes", [pytest.param(each, marks=NEEDS_OPS if "fused" in each.values() else []) for each in VARIANTS], ids=str
)
def test_logits_loss_and_every_gradient_equal_numpy(changes):
    model_config, data = config(**changes), batch()
    model = small_model(model_config)
    weights = {name: variable.numpy().astype(np.float64) for name, variable in model.named_variables().items()}
    ids, labels = data["input_ids"].numpy(), data["labels"].numpy()
    logits, loss = Oracle(model_config, weights).decoder(ids, labels)
    found_logits = model.logits(model.hidden_states(data))
    np.testing.assert_allclose(found_logits, logits, rtol=1e-5, atol=1e-5 * abs(logits).max())
    found, gradients = loss_and_gradients(model, data)
    np.testing.assert_allclose(found, loss, rtol=1e-5)
    random, step = np.random.default_rng(3), 1e-5
    for name, gradient in zip(weights, gradients, strict=True):
        direction = random.normal(size=gradient.shape)
        ahead, behind = (
            Oracle(model_config, {**weights, name: weights[name] + change}).decoder(ids, labels)[1]
            for change in (step * direction, -step * direction)
        )
        slope, scale = (ahead - behind) / (2 * step), np.linalg.norm(gradient)
        if name.endswith("key/bias") and model_config.position_embedding != "rotary":
            assert scale < 1e-4, name  # it cancels in the softmax
            continue
        product = (gradient.numpy() * direction).sum()
        np.testing.assert_allclose(product, slope, rtol=1e-4, atol=1e-4 * scale, err_msg=name)


FUSED = {"ln_impl": "fused", "gelu_impl": "fused"}
# 2**-8 rounds one number of bf16, and a gradient has gone through some dozen of them.
ROUNDING = {("float32", "compute"): 1e-5, ("bfloat16", "compute"): 0.1, ("bfloat16", "fp32"): 0.1}


# With these, every two values of two arguments.
NIGHTLY = [("all", "float32", "compute", True), ("none", "bfloat16", "compute", True)]
NIGHTLY += [("all", "bfloat16", "compute", False), ("none", "bfloat16", "fp32", True)]


@NEEDS_OPS
@pytest.mark.parametrize(
    ("bias", "dtype", "ln_dtype", "jit_compile"),
    [
        *(("none", "float32", "compute", False), ("all", "bfloat16", "fp32", True)),
        *(pytest.param(*each, marks=pytest.mark.nightly) for each in NIGHTLY),
    ],
)
def test_fused_norms_and_swiglu_give_the_plain_loss_and_gradients_of_llama_tiny(bias, dtype, ln_dtype, jit_compile):
    tiny = parse(TrainConfig, ["program", f"--flagfile={ROOT / 'configs/llama_tiny.flags'}"]).model
    results = []
    for implementations in (PLAIN, PLAIN | FUSED):
        sizes = {"vocab_size": VOCAB, "num_hidden_layers": 2, "initializer_range": 0.1}
        changes = {"bias": bias, "ln_dtype": ln_dtype, **sizes, **implementations}
        model = small_model(dataclasses.replace(tiny, **changes), dtype)
        compute = tf.function(loss_and_gradients, autograph=False, jit_compile=jit_compile)
        results.append((compute(model, batch()), compute.get_concrete_function(model, batch()).graph))
    (((plain_loss, plain), _), ((loss, gradients), graph)) = results
    assert {"TftrainRmsNorm", "TftrainSwiglu"} <= {op.type for op in graph.get_operations()}
    allowed = ROUNDING[dtype, ln_dtype]
    np.testing.assert_allclose(loss, plain_loss, rtol=allowed)
    for name, expected, found in zip(model.named_variables(), plain, gradients, strict=True):
        expected, found = (tf.cast(tf.convert_to_tensor(each), tf.float64) for each in (expected, found))
        assert tf.norm(found - expected) <= allowed * tf.norm(expected) + 1e-6, name


@pytest.mark.parametrize(
    "flags",
    [{}, *(pytest.param(each, marks=NEEDS_OPS) for each in ({"attn_softmax_impl": "fused"}, {"attn_impl": "flash"}))],
    ids=str,
)
@pytest.mark.parametrize("changes", [{}, {"position_embedding": "alibi"}, {"model_family": "llama"}], ids=str)
def test_documents_of_a_row_have_the_losses_of_rows_of_their_own(changes, flags):
    model, end = small_model(config(**changes, **flags)), 0
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
