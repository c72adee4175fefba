"""Names and order of the variables. Shapes: `tests/architecture`; values: `tests/optim/test_initial_masters.py`."""

import pytest
import tensorflow as tf

from tests.kit.ranks import ROOT
from tests.model.samples import small_config
from tftrain.architecture import parts
from tftrain.cli.flags import parse
from tftrain.config.model import ModelConfig
from tftrain.model.bert import BertPretrainer
from tftrain.model.parameters import Parameters

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
LARGE = {path.stem for path in ROOT.glob("configs/*large*.flags") if "bert" not in path.stem}


@pytest.mark.parametrize("name", sorted(LARGE | SIZES.keys()))
def test_flagfile_holds_the_size_of_its_name(name):
    config = parse(ModelConfig, ["test", f"--flagfile={ROOT / 'configs' / name}.flags"])
    assert (config.num_hidden_layers, config.hidden_size, config.head_size) == (*SIZES[name], 64)


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
    assert list(BertPretrainer(small_config(num_hidden_layers=2), "float32", 1).named_variables()) == expected


def test_keras_knows_every_variable_and_vectors_are_biases_and_norms():
    model = BertPretrainer(small_config(activation="geglu"), "float32", 1)
    named = model.named_variables()
    assert {id(variable) for variable in model.trainable_variables} == {id(variable) for variable in named.values()}
    for name, variable in named.items():
        assert variable.name == f"{name}:0"
        assert (variable.shape.rank == 1) == name.endswith(("bias", "beta", "gamma")), name


def test_initial_weights_of_float64_are_those_of_float32():
    wide, narrow = (BertPretrainer(small_config(), dtype, 1).named_variables() for dtype in ("float64", "float32"))
    assert all(bool(tf.reduce_all(wide[name] == tf.cast(narrow[name], "float64"))) for name in narrow)


def test_a_name_cannot_be_given_twice():
    parameters = Parameters("float32", 1, 0.02).inner("a")
    parameters.leaf("bias", parts.BiasSpec(2))
    with pytest.raises(ValueError, match="a/bias"):
        parameters.leaf("bias", parts.TableSpec(2, 2))
