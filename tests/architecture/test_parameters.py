"""The count of weights against published totals and against lists of shapes written out by hand."""

import subprocess
import sys
from math import prod

import numpy as np
import pytest

from tftrain.architecture.describe import describe
from tftrain.config.data import DataConfig
from tftrain.config.model import ModelConfig
from tftrain.config.parallel import BatchConfig
from tftrain.config.run import RunConfig
from tftrain.config.train import TrainConfig
from tftrain.families import FAMILIES
from tftrain.plan.workload import from_config

LLAMA = {"model_family": "llama", **FAMILIES["llama"].defaults}
BASE, LARGE = {}, {"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16}


@pytest.mark.parametrize(
    ("sizes", "encoder", "total"),
    [
        # bert-base-uncased and bert-large-uncased: 109,482,240 and 335,141,888 with pooler.
        (BASE, 109_482_240, 110_106_428),
        (LARGE, 335_141_888, 336_226_108),
    ],
)
def test_published_totals(sizes, encoder, total):
    found = describe(ModelConfig(**sizes, vocab_size=30522))
    heads = {"masked_lm", "next_sentence"}
    assert sum(each.size for each in found.variables() if each.name.split("/")[0] not in heads) == encoder
    assert found.parameters == total


def shapes(layers, h, i, v, positions, types, pre, geglu, key_bias):
    """Every tensor of the model, one by one."""
    found = [(v, h), (positions, h), (types, h)]
    if not pre:
        found += [(h,), (h,)]
    for _ in range(layers):
        found += [(h, h), (h,), (h, h), (h, h), (h,), (h, h), (h,)]
        found += [(h,)] if key_bias else []
        found += [(h,), (h,), (h,), (h,)]
        found += [(h, i), (i,), (i, h), (h,)]
        found += [(h, i), (i,)] if geglu else []
    if pre:
        found += [(h,), (h,)]
    return [*found, (h, h), (h,), (h, h), (h,), (h,), (h,), (v,), (h, 2), (2,)]


def listed(model):
    """Name and shape of every variable without building the model, in the order of the model."""
    return {each.name: each.shape for each in describe(model).variables()}


def assert_begin_as_described(model, variables):
    """The elements of a variable are the constant that its description says, or they differ."""
    for each in describe(model).variables():
        found = np.unique(variables[each.name].numpy())
        assert found.tolist() == [each.initial] if each.initial is not None else len(found) > 1, each.name


@pytest.mark.parametrize("pre", [False, True])
@pytest.mark.parametrize("geglu", [False, True])
@pytest.mark.parametrize("key_bias", [False, True])
def test_every_variant_equals_the_sum_of_its_tensors(pre, geglu, key_bias):
    model = ModelConfig(
        vocab_size=101,
        num_hidden_layers=3,
        hidden_size=20,
        num_attention_heads=4,
        intermediate_size=28,
        max_position_embeddings=17,
        type_vocab_size=5,
        norm_position="pre" if pre else "post",
        activation="geglu" if geglu else "gelu",
        use_bias_in_keys=key_bias,
    )
    expected = sum(prod(shape) for shape in shapes(3, 20, 28, 101, 17, 5, pre, geglu, key_bias))
    assert describe(model).parameters == expected


@pytest.mark.parametrize("pre", [False, True])
@pytest.mark.parametrize("geglu", [False, True])
@pytest.mark.parametrize("key_bias", [False, True])
def test_every_variant_equals_the_variables_of_the_model(pre, geglu, key_bias):
    from tftrain.model.bert import BertPretrainer

    model = ModelConfig(
        vocab_size=31,
        num_hidden_layers=2,
        hidden_size=16,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=12,
        norm_position="pre" if pre else "post",
        activation="geglu" if geglu else "gelu",
        use_bias_in_keys=key_bias,
        ln_impl="reference",
        attn_softmax_impl="reference",
    )
    variables = BertPretrainer(model, "float32", 1).named_variables()
    assert_begin_as_described(model, variables)
    assert listed(model) == {name: tuple(variable.shape) for name, variable in variables.items()}
    found = describe(model)
    assert found.parameters == sum(variable.shape.num_elements() for variable in variables.values())
    layers = sum(variable.shape.num_elements() for name, variable in variables.items() if name.startswith("layer_"))
    assert found.layers * found.block_weights.total == layers


DECODERS = [
    *({"model_family": "gpt", "position_embedding": positions} for positions in ("learned", "rotary", "alibi")),
    {**LLAMA, "num_key_value_heads": 1, "rope_theta": 5e5, "rope_scaling": "llama3:8,1,4,8192"},
    {**LLAMA, "bias": "query_key_value", "tie_output": True},
]


@pytest.mark.parametrize("flags", DECODERS, ids=str)
def test_a_decoder_has_the_variables_that_are_counted_and_planned(flags):
    from tftrain.model.decoder import Decoder

    model = ModelConfig(
        **flags,
        vocab_size=31,
        num_hidden_layers=2,
        hidden_size=16,
        num_attention_heads=2,
        max_position_embeddings=12,
        ln_impl="reference",
        attn_softmax_impl="reference",
    )
    variables = Decoder(model, "float32", 1).named_variables()
    assert_begin_as_described(model, variables)
    assert listed(model) == {name: tuple(variable.shape) for name, variable in variables.items()}
    held = sum(variable.shape.num_elements() for variable in variables.values())
    assert describe(model).parameters == held
    config = TrainConfig(
        model,
        DataConfig(synthetic_data=True, max_seq_length=12),
        batch=BatchConfig(2),
        run=RunConfig(output_dir="unused"),
    )
    assert from_config(config.resolve(1), 1).model.parameters == held


def test_counting_loads_no_tensorflow():
    program = (
        "import sys, tftrain.architecture.describe, tftrain.architecture.flops; sys.exit('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
