"""BERT for TensorFlow 2 of NVIDIA's DeepLearningExamples: its pre-training model, and its TransformerEncoder alone.

Its layers have numbers: four for the embedding, one for each block, and the pooler.
"""

from functools import partial

from tftrain.formats import object_based, tf1
from tftrain.formats.links import Names
from tftrain.formats.object_based import LEAVES, VALUE, Library

_FIRST_BLOCK = 4
_LAYER = "layer_with_weights-"
_BLOCK = f"encoder/{_LAYER}{{layer}}"
_NAMES = Names(
    scopes={
        "embeddings/word": f"encoder/{_LAYER}0/embeddings{VALUE}",
        "embeddings/position": f"encoder/{_LAYER}1/embeddings{VALUE}",
        "embeddings/token_type": f"encoder/{_LAYER}2/embeddings{VALUE}",
        "embeddings/norm": f"encoder/{_LAYER}3",
        "attention/query": f"{_BLOCK}/_attention_layer/_query_dense",
        "attention/key": f"{_BLOCK}/_attention_layer/_key_dense",
        "attention/value": f"{_BLOCK}/_attention_layer/_value_dense",
        "attention/output": f"{_BLOCK}/_attention_output_dense",
        "attention/norm": f"{_BLOCK}/_attention_layer_norm",
        "feed_forward/up": f"{_BLOCK}/_intermediate_dense",
        "feed_forward/down": f"{_BLOCK}/_output_dense",
        "feed_forward/norm": f"{_BLOCK}/_output_layer_norm",
        "masked_lm/transform": f"masked_lm/{_LAYER}0",
        "masked_lm/norm": f"masked_lm/{_LAYER}1",
        "masked_lm/bias": f"masked_lm/{_LAYER}2/bias{VALUE}",
        "next_sentence": f"head/{_LAYER}0",
    },
    leaves=LEAVES,
    first_layer=_FIRST_BLOCK,
)
_IN_PRETRAINER = {"encoder": f"{_LAYER}0/", "masked_lm": f"{_LAYER}1/", "head": f"{_LAYER}2/"}


def _roots_in(names: list[str]) -> dict[str, str]:
    encoder = object_based.begins(names, f"{_LAYER}{_FIRST_BLOCK}/_output_layer_norm/gamma{VALUE}")
    if encoder is None:
        return {}
    # In the pre-training model, the encoder is the first of three layers; alone, it is the saved object.
    pretrainer = encoder.removesuffix(_IN_PRETRAINER["encoder"])
    if pretrainer == encoder:
        return {"encoder": encoder}
    roots = {part: f"{pretrainer}{place}" for part, place in _IN_PRETRAINER.items()}
    return {part: root for part, root in roots.items() if any(name.startswith(root) for name in names)}


_LIBRARY = Library(
    name="NVIDIA's BERT",
    whole="BertPretrainer",
    alone="TransformerEncoder",
    names=_NAMES,
    poolers=(_BLOCK,),
    roots={part: f"model/{_LAYER}0/{place}" for part, place in _IN_PRETRAINER.items()},
    root_alone="model/",
    roots_in=_roots_in,
    note=(
        "NVIDIA's pre-training has no GeLU in its masked-LM output head, and this project has one: the encoder's "
        "outputs are equal, and predictions of masked words are not until the head is trained again"
    ),
)
read_model, read, write = tf1.read_model, partial(object_based.read, _LIBRARY), partial(object_based.write, _LIBRARY)
