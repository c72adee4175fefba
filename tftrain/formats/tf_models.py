"""tf-models for TensorFlow 2: BertPretrainerV2 and BertEncoderV2, in object-based checkpoints.

The next-sentence head is the classification head of the pre-training model, whose inner layer is the pooler. The
encoder has a pooler of its own as well, which the pre-training model does not use; it gets the same values.
"""

from functools import partial

from tftrain.formats import object_based, tf1
from tftrain.formats.links import Names
from tftrain.formats.object_based import LEAVES, VALUE, Library

_BLOCK = "encoder/_transformer_layers/{layer}"
_NAMES = Names(
    scopes={
        "embeddings/word": f"encoder/_embedding_layer/embeddings{VALUE}",
        "embeddings/position": f"encoder/_position_embedding_layer/embeddings{VALUE}",
        "embeddings/token_type": f"encoder/_type_embedding_layer/embeddings{VALUE}",
        "embeddings/norm": "encoder/_embedding_norm_layer",
        "attention/query": f"{_BLOCK}/_attention_layer/_query_dense",
        "attention/key": f"{_BLOCK}/_attention_layer/_key_dense",
        "attention/value": f"{_BLOCK}/_attention_layer/_value_dense",
        "attention/output": f"{_BLOCK}/_attention_layer/_output_dense",
        "attention/norm": f"{_BLOCK}/_attention_layer_norm",
        "feed_forward/up": f"{_BLOCK}/_intermediate_dense",
        "feed_forward/down": f"{_BLOCK}/_output_dense",
        "feed_forward/norm": f"{_BLOCK}/_output_layer_norm",
        "masked_lm/transform": "masked_lm/dense",
        "masked_lm/norm": "masked_lm/layer_norm",
        "masked_lm/bias": f"masked_lm/output_bias.Sbias{VALUE}",
        "next_sentence": "head/out_proj",
    },
    leaves=LEAVES,
)
_ANCHORS = {
    "encoder": f"_embedding_norm_layer/gamma{VALUE}",
    "masked_lm": f"layer_norm/gamma{VALUE}",
    "head": f"out_proj/kernel{VALUE}",
}
_POOLER = {f"next_sentence..pooler_dense/{leaf}{VALUE}": f"encoder/_pooler_layer/{leaf}{VALUE}" for leaf in LEAVES}


def _roots_in(names: list[str]) -> dict[str, str]:
    roots = {part: object_based.begins(names, anchor) for part, anchor in _ANCHORS.items()}
    return {part: root for part, root in roots.items() if root is not None}


_LIBRARY = Library(
    name="tf-models",
    whole="BertPretrainerV2",
    alone="BertEncoderV2",
    names=_NAMES,
    poolers=("encoder/_pooler_layer", "head/dense"),
    roots={
        "encoder": "model/encoder_network/",
        "masked_lm": "model/masked_lm/",
        "head": "model/classification_heads/0/",
    },
    root_alone="encoder/",
    roots_in=_roots_in,
    aliases={f"masked_lm/embedding_table{VALUE}": f"encoder/_embedding_layer/embeddings{VALUE}", **_POOLER},
)
read_model, read, write = tf1.read_model, partial(object_based.read, _LIBRARY), partial(object_based.write, _LIBRARY)
