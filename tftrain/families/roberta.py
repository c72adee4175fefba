"""RoBERTa (Liu et al., arXiv 1907.11692), XLM-R (1911.02116) and CamemBERT (1911.03894): BERT without token types."""

import re
from collections.abc import Mapping
from typing import Any

from tftrain.families import bert
from tftrain.families.family import CLASSIC, FIRST_TOKEN, MASKED, POST_NORM, Family, Flags, ModelType, sizes

_FIRST_POSITION = 2  # The padding has id 1.


def _read(config: Mapping[str, Any], values: Flags) -> dict[str, Any]:
    """Returns the flags of the positions, and of a pooler; the class without an output head has one.

    Positions are counted from the id of the padding on: fairseq's `make_positions`, which transformers has taken over.
    """
    padding = config.get("pad_token_id", _FIRST_POSITION - 1)
    if not isinstance(padding, int) or isinstance(padding, bool) or padding < 0:
        raise ValueError(f"pad_token_id is {padding!r}; expected an id, from which positions are counted")
    first, rows = padding + 1, values["max_position_embeddings"]
    if rows <= first:
        raise ValueError(f"max_position_embeddings is {rows}; expected more than pad_token_id + 1 = {first}")
    has_pooler = bool(re.search(r"Model\b", str(config.get("architectures"))))
    return {"first_position": first, "max_position_embeddings": rows - first, "next_sentence": has_pooler}


def _write(flags: Flags, values: Mapping[str, Any]) -> dict[str, Any]:
    first = _FIRST_POSITION if flags["first_position"] is None else flags["first_position"]
    return {"pad_token_id": first - 1, "max_position_embeddings": flags["max_position_embeddings"] + first}


def _named(name: str, stem: str) -> ModelType:
    """Returns the type with a name, whose classes begin with `stem`; the types have the names of tensors in common."""
    return bert.POST_NORM._replace(
        name=name,
        fields={**bert.POST_NORM.fields, **sizes(_WORDS.get(name, 30522), 768, 12, 12, 3072, 512)},
        architectures={f"{stem}{ending}": heads for ending, heads in _HEADS.items()},
        scopes=_SCOPES,
        prefix="roberta.",
        tied_copies={
            "lm_head.decoder.weight": _SCOPES["embeddings/word"],
            "lm_head.decoder.bias": _SCOPES["masked_lm/bias"],
        },
        sample_classifier="classifier.out_proj",
        special_tokens={"bos": "beginning", "eos": "separator"},
        read=_read,
        write=_write,
    )


_WORDS = {"roberta": 50265}
_HEADS = {
    "ForMaskedLM": ("masked_lm",),
    "Model": ("pooler",),
    **dict.fromkeys(("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"), ("classifier",)),
}
_SCOPES = {scope: name.replace("bert.", "roberta.", 1) for scope, name in bert.POST_NORM.scopes.items()} | {
    "masked_lm/transform": "lm_head.dense",
    "masked_lm/norm": "lm_head.layer_norm",
    "masked_lm/bias": "lm_head.bias",
    "classifier/dense": "classifier.dense",
}
FAMILY = Family(
    name="roberta",
    description="an encoder like bert without token types, which learns masked words",
    objective=MASKED,
    pre_norm=False,
    first_token_type=True,
    first_position=_FIRST_POSITION,
    scales_residual=False,
    head_gelu="erf",
    classifier_activation="tanh",
    values={**POST_NORM, **CLASSIC, **FIRST_TOKEN},
    types=(_named("camembert", "Camembert"), _named("xlm-roberta", "XLMRoberta"), _named("roberta", "Roberta")),
    defaults={"gelu_form": "erf", "layer_norm_epsilon": 1e-5, "next_sentence": False, "type_vocab_size": 1},
)
