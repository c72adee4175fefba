"""Names, numbers and initial values of the variables."""

import dataclasses
import glob
import os

import numpy as np
import pytest
import tensorflow as tf

from tests.model.samples import PLAIN, VOCAB, small_config
from tftrain.architecture import parts
from tftrain.cli.flags import parse
from tftrain.config.model import ModelConfig
from tftrain.model.bert import BertPretrainer
from tftrain.model.parameters import Parameters, truncated_normal

CONFIGS = os.path.join(os.path.dirname(__file__), "..", "..", "configs")
SIZES = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "base": (12, 768),
    "large": (24, 1024),
    "xlarge": (24, 2048),
    "xlarge_48": (48, 2048),
    "xlarge_64": (64, 2048),
    "xxlarge_36": (36, 3072),
    "xxlarge_48": (48, 3072),
}
BERT_VOCAB = 30522


def load(name: str) -> ModelConfig:
    config = parse(ModelConfig, ["test", f"--flagfile={os.path.join(CONFIGS, name)}.flags"])
    return dataclasses.replace(config, **PLAIN)


def shapes(config: ModelConfig, vocab_size: int) -> dict[str, list[int]]:
    """Name -> shape, without allocating anything: in a graph, variables have no values until they are initialized."""
    with tf.Graph().as_default():
        sized = dataclasses.replace(config, vocab_size=vocab_size)
        variables = BertPretrainer(sized, "float32", 1).named_variables()
        return {name: variable.shape.as_list() for name, variable in variables.items()}


def count(variable_shapes: dict[str, list[int]]) -> int:
    return sum(int(np.prod(shape)) for shape in variable_shapes.values())


def expected_count(config: ModelConfig, vocab: int) -> int:
    """The number of parameters, from the architecture."""
    hidden, wide = config.hidden_size, config.feed_forward_size
    norm, square = 2 * hidden, hidden * hidden + hidden
    attention = 4 * square - (0 if config.use_bias_in_keys else hidden)
    feed_forward = (hidden * wide + wide) * (2 if config.activation == "geglu" else 1) + wide * hidden + hidden
    tables = (vocab + config.max_position_embeddings + config.type_vocab_size) * hidden
    heads = (square + 2 * hidden + 2) + (square + norm + vocab)
    return tables + norm + config.num_hidden_layers * (attention + feed_forward + 2 * norm) + heads


@pytest.mark.parametrize(
    ("name", "published"), [("base", 110_106_428), pytest.param("large", 336_226_108, marks=pytest.mark.nightly)]
)
def test_bert_has_its_published_number_of_parameters(name, published):
    assert count(shapes(load(name), BERT_VOCAB)) == published


# `test_flagfile_holds_the_size_of_its_name` has the largest too, and makes no graph of it.
@pytest.mark.parametrize("name", ["tiny", "mini", pytest.param("xlarge", marks=pytest.mark.nightly)])
def test_flagfile_gives_the_model_its_number_of_parameters(name):
    config = load(name)
    assert count(shapes(config, BERT_VOCAB)) == expected_count(config, BERT_VOCAB)


@pytest.mark.parametrize(
    "changes",
    [{}, {"norm_position": "pre"}, {"activation": "geglu"}, {"use_bias_in_keys": False}],
    ids=str,
)
def test_variants_have_the_number_of_parameters_of_their_architecture(changes):
    config = small_config(**changes)
    assert count(shapes(config, VOCAB)) == expected_count(config, VOCAB)


@pytest.mark.parametrize("name", SIZES)
def test_flagfile_holds_the_size_of_its_name(name):
    config = load(name)
    assert (config.num_hidden_layers, config.hidden_size) == SIZES[name]
    assert config.head_size == 64


def test_every_size_has_its_flagfile_tested():
    sized = glob.glob(os.path.join(CONFIGS, "*large*.flags"))
    sized = [path for path in sized if "modernbert" not in path]  # those of tests/test_configs.py
    assert {os.path.basename(path)[: -len(".flags")] for path in sized} <= set(SIZES)


def test_names_are_in_a_fixed_order_from_input_to_output():
    block = [
        *(f"attention/{part}/{kind}" for part in ("query", "key", "value", "output") for kind in ("kernel", "bias")),
        *("attention/norm/gamma", "attention/norm/beta"),
        *(f"feed_forward/{part}/{kind}" for part in ("up", "down") for kind in ("kernel", "bias")),
        *("feed_forward/norm/gamma", "feed_forward/norm/beta"),
    ]
    expected = [
        *(f"embeddings/{part}" for part in ("word", "position", "token_type", "norm/gamma", "norm/beta")),
        *(f"layer_{layer:02d}/{name}" for layer in range(2) for name in block),
        *("masked_lm/transform/kernel", "masked_lm/transform/bias"),
        *("masked_lm/norm/gamma", "masked_lm/norm/beta", "masked_lm/bias"),
        *("pooler/kernel", "pooler/bias", "next_sentence/kernel", "next_sentence/bias"),
    ]
    assert list(shapes(small_config(num_hidden_layers=2), VOCAB)) == expected


def test_keras_knows_every_variable():
    model = BertPretrainer(small_config(), "float32", 1)
    named = model.named_variables()
    assert {id(variable) for variable in model.trainable_variables} == {id(variable) for variable in named.values()}
    assert all(variable.name == f"{name}:0" for name, variable in named.items())


def test_vectors_are_biases_and_norms_and_all_else_is_a_matrix():
    for name, shape in shapes(small_config(activation="geglu"), VOCAB).items():
        assert (len(shape) == 1) == name.endswith(("bias", "beta", "gamma")), name


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_initial_weights_are_the_same_in_every_dtype(dtype):
    wide = BertPretrainer(small_config(), "float32", 1).named_variables()
    for name, variable in BertPretrainer(small_config(), dtype, 1).named_variables().items():
        assert variable.dtype == dtype
        np.testing.assert_array_equal(variable, tf.cast(wide[name], dtype), err_msg=name)


def test_initial_weights_do_not_depend_on_what_else_is_made():
    deep = BertPretrainer(small_config(num_hidden_layers=3), "float32", 1).named_variables()
    shallow = BertPretrainer(small_config(num_hidden_layers=1), "float32", 1).named_variables()
    for name, variable in shallow.items():
        np.testing.assert_array_equal(variable, deep[name], err_msg=name)


def test_initial_weights_differ_between_seeds_and_names():
    draws = [truncated_normal(name, [50], 0.02, seed) for name, seed in (("a", 1), ("b", 1), ("a", 2))]
    assert len({float(draw[0]) for draw in draws}) == 3


def test_initial_weights_are_a_normal_cut_off_at_two_deviations():
    drawn = truncated_normal("a", [100_000], 0.02, 1).numpy()
    assert np.abs(drawn).max() <= 0.04
    assert abs(drawn.mean()) < 5 * 0.02 / np.sqrt(drawn.size)
    assert drawn.std() == pytest.approx(0.8796 * 0.02, rel=0.01)  # the deviation of such a normal


def test_biases_start_at_zero_and_scales_at_one():
    for name, variable in BertPretrainer(small_config(), "float32", 1).named_variables().items():
        if name.endswith(("bias", "beta")):
            assert not variable.numpy().any()
        if name.endswith("gamma"):
            assert (variable.numpy() == 1).all()


def test_a_name_cannot_be_given_twice():
    parameters = Parameters("float32", 1, 0.02).inner("a")
    parameters.leaf("bias", parts.BiasSpec(2))
    with pytest.raises(ValueError, match="a/bias"):
        parameters.leaf("bias", parts.TableSpec(2, 2))
