"""tf-models for TensorFlow 2: BertPretrainerV2 and BertEncoderV2, in object-based checkpoints.

The next-sentence head is the classification head of the pre-training model, whose inner layer is the pooler. The
encoder has a pooler of its own as well, which the pre-training model does not use; it gets the same values.
"""

from pathlib import Path

from tftrain.architecture.describe import describe
from tftrain.architecture.parts import Variable
from tftrain.config.train import ModelConfig
from tftrain.formats import object_based, tf1
from tftrain.formats.links import Link, Names, reshaped, same
from tftrain.formats.object_based import VALUE, Library
from tftrain.formats.weights import Weights, part_of

read_model = tf1.read_model

_NAMES = Names(
    scopes={
        "embeddings/word": f"encoder/_embedding_layer/embeddings{VALUE}",
        "embeddings/position": f"encoder/_position_embedding_layer/embeddings{VALUE}",
        "embeddings/token_type": f"encoder/_type_embedding_layer/embeddings{VALUE}",
        "embeddings/norm": "encoder/_embedding_norm_layer",
        "attention/query": "encoder/_transformer_layers/{layer}/_attention_layer/_query_dense",
        "attention/key": "encoder/_transformer_layers/{layer}/_attention_layer/_key_dense",
        "attention/value": "encoder/_transformer_layers/{layer}/_attention_layer/_value_dense",
        "attention/output": "encoder/_transformer_layers/{layer}/_attention_layer/_output_dense",
        "attention/norm": "encoder/_transformer_layers/{layer}/_attention_layer_norm",
        "feed_forward/up": "encoder/_transformer_layers/{layer}/_intermediate_dense",
        "feed_forward/down": "encoder/_transformer_layers/{layer}/_output_dense",
        "feed_forward/norm": "encoder/_transformer_layers/{layer}/_output_layer_norm",
        "masked_lm/transform": "masked_lm/dense",
        "masked_lm/norm": "masked_lm/layer_norm",
        "masked_lm/bias": f"masked_lm/output_bias.Sbias{VALUE}",
        "next_sentence": "head/out_proj",
    },
    leaves={leaf: f"/{leaf}{VALUE}" for leaf in ("kernel", "bias", "gamma", "beta")},
    kernel=same,
)


def by_head(link: Link, variable: Variable, model: ModelConfig) -> Link:
    """Returns the link of a variable of the attention, in which each head has an axis of its own."""
    scope, _, leaf = variable.name.rpartition("/")
    heads = (model.num_attention_heads, model.head_size)
    if scope.endswith(("attention/query", "attention/key", "attention/value")):
        return reshaped(link.theirs, variable, (model.hidden_size, *heads) if leaf == "kernel" else heads)
    if scope.endswith("attention/output") and leaf == "kernel":
        return reshaped(link.theirs, variable, (*heads, model.hidden_size))
    return link


def _links(model: ModelConfig, parts: set[str]) -> list[Link]:
    found = []
    for each in describe(model).variables():
        if part_of(each.name) == "pooler":
            leaf = each.name.rpartition("/")[2]
            places = [
                f"{part}/{name}" for part, name in (("encoder", "_pooler_layer"), ("head", "dense")) if part in parts
            ]
            found += [same(f"{place}/{leaf}{VALUE}", each) for place in places]
            continue
        link = by_head(_NAMES.link(each), each, model)
        if link.theirs.partition("/")[0] in parts:
            found.append(link)
    return found


_ANCHORS = {
    "encoder": f"_embedding_norm_layer/gamma{VALUE}",
    "masked_lm": f"layer_norm/gamma{VALUE}",
    "head": f"out_proj/kernel{VALUE}",
}


def _roots_in(names: list[str]) -> dict[str, str]:
    found = {part: object_based.begins(names, anchor) for part, anchor in _ANCHORS.items()}
    return {part: root for part, root in found.items() if root is not None}


LIBRARY = Library(
    name="tf-models",
    whole="BertPretrainerV2",
    alone="BertEncoderV2",
    roots={
        "encoder": "model/encoder_network/",
        "masked_lm": "model/masked_lm/",
        "head": "model/classification_heads/0/",
    },
    root_alone="encoder/",
    roots_in=_roots_in,
    links=_links,
    aliases={
        f"masked_lm/embedding_table{VALUE}": f"encoder/_embedding_layer/embeddings{VALUE}",
        **{
            f"next_sentence..pooler_dense/{leaf}{VALUE}": f"encoder/_pooler_layer/{leaf}{VALUE}"
            for leaf in ("kernel", "bias")
        },
    },
)


def read(folder: Path) -> Weights:
    """Opens a model, see `object_based.read`."""
    return object_based.read(folder, LIBRARY)


def write(folder: Path, weights: Weights, architecture: str | None = None) -> list[str]:
    """Writes a model, see `object_based.write`."""
    return object_based.write(folder, LIBRARY, weights, architecture)
