"""The list of weights against published totals and against the variables of the models."""

import itertools

import numpy as np
import pytest

from tests.model.samples import small_config
from tftrain.architecture.describe import describe
from tftrain.config.data import DataConfig
from tftrain.config.model import ModelConfig
from tftrain.config.parallel import BatchConfig
from tftrain.config.run import RunConfig
from tftrain.config.train import TrainConfig
from tftrain.families import FAMILIES
from tftrain.model.bert import BertPretrainer
from tftrain.model.decoder import Decoder
from tftrain.plan.workload import from_config

LLAMA = {"model_family": "llama", **FAMILIES["llama"].defaults}
MODELS = [
    *(
        {"norm_position": norm, "activation": activation, "use_bias_in_keys": bias}
        for norm, activation, bias in itertools.product(("post", "pre"), ("gelu", "geglu"), (False, True))
    ),
    *({"model_family": "gpt", "position_embedding": positions} for positions in ("learned", "rotary", "alibi")),
    {**LLAMA, "num_key_value_heads": 1, "rope_theta": 5e5, "rope_scaling": "llama3:8,1,4,8192"},
    {**LLAMA, "bias": "query_key_value", "tie_output": True},
]


@pytest.mark.parametrize(
    ("sizes", "encoder"),
    [
        # bert-base-uncased and bert-large-uncased with pooler; `tests/test_configs.py` has the totals.
        ({}, 109_482_240),
        ({"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16}, 335_141_888),
    ],
)
def test_an_encoder_has_its_published_number_of_weights(sizes, encoder):
    found = describe(ModelConfig(**sizes, vocab_size=30522))
    heads = {"masked_lm", "next_sentence"}
    assert sum(each.size for each in found.variables() if each.name.split("/")[0] not in heads) == encoder


@pytest.mark.parametrize("flags", MODELS, ids=str)
def test_a_model_has_the_variables_that_are_listed_counted_and_planned(flags):
    model = small_config(**{"num_hidden_layers": 3, "hidden_size": 24, **flags})
    variables = (Decoder if model.is_causal else BertPretrainer)(model, "float32", 1).named_variables()
    described = describe(model)
    assert {each.name: each.shape for each in described.variables()} == {
        name: tuple(variable.shape) for name, variable in variables.items()
    }
    for each in described.variables():
        found = np.unique(variables[each.name].numpy())
        assert found.tolist() == [each.initial] if each.initial is not None else len(found) > 1, each.name
    counts = {name: variable.shape.num_elements() for name, variable in variables.items()}
    assert described.parameters == sum(counts.values())
    layers = sum(count for name, count in counts.items() if name.startswith("layer_"))
    assert described.layers * described.block_weights.total == layers
    data, run = DataConfig(synthetic_data=True, max_seq_length=12), RunConfig(output_dir="unused")
    config = TrainConfig(model, data, batch=BatchConfig(2), run=run)
    assert from_config(config.resolve(1), 1).model.parameters == sum(counts.values())
