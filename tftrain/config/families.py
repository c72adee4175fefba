"""The model families by name: what they learn, what they are made of, and which options they have, apart from sizes."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Family(NamedTuple):
    """A model family."""

    objective: str  # what it is pre-trained on: "masked" words or, of a decoder, the "causal" next token
    pre_norm: bool  # whether each sub-layer has its norm before it, where `--norm_position` does not say
    norm: str  # "layer" or "rms" (arXiv 1910.07467)
    token_types: bool  # whether the embedding has a table of token types
    scales_residual: bool  # whether projections into the residual stream begin with smaller weights, as in GPT-2
    values: Mapping[str, tuple]  # by flag, the values that the family takes; of other flags it takes all
    # By flag, the value where the command line gives none, if it is another one than the flag's default.
    defaults: Mapping[str, Any] = {}
    norm_shift: bool = True  # whether a norm has a shift beside its scale
    # Whether a pre-norm model has a norm after the embedding, in the place of that before the first attention.
    norms_embedding: bool = False
    # Whether classifiers read what the masked words' layer and norm make of a token, in the place of BERT's pooler or
    # of the token itself.
    transforms_for_tasks: bool = False


_ALL_GLOBAL = {"local_attention": (0,), "global_attn_every": (3,), "local_rope_theta": (10_000.0,)}
_FIRST_TOKEN = {"classifier_pooling": ("cls",)}
_EVEN_HEADS = {"attention_head_size": (None,), "query_key_norm": (False,)}
_OF_DECODERS = {"next_sentence": (True,), **_FIRST_TOKEN}
# The options that BERT and GPT-2 came without.
_CLASSIC = {
    "activation": ("gelu", "geglu"),
    "bias": ("all",),
    "num_key_value_heads": (None,),
    "tie_output": (True,),
    **_ALL_GLOBAL,
    **_EVEN_HEADS,
}
_ROTARY = {"norm_position": ("auto", "pre"), "position_embedding": ("rotary",), "use_bias_in_keys": (True,)}
_ROTARY_DEFAULTS = {"bias": "none", "layer_norm_epsilon": 1e-5, "position_embedding": "rotary"}
_NO_DROPOUT = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}
FAMILIES = {
    "bert": Family(
        "masked", False, "layer", True, False, {"position_embedding": ("learned",), **_CLASSIC, **_FIRST_TOKEN}
    ),
    "gpt": Family("causal", True, "layer", False, True, {**_CLASSIC, **_OF_DECODERS}),
    "llama": Family(
        objective="causal",
        pre_norm=True,
        norm="rms",
        token_types=False,
        scales_residual=False,
        values={"activation": ("swiglu",), "gelu_form": ("tanh",), **_ROTARY, **_ALL_GLOBAL, **_OF_DECODERS},
        defaults={"activation": "swiglu", "tie_output": False, **_NO_DROPOUT, **_ROTARY_DEFAULTS},
        norm_shift=False,
    ),
    "modernbert": Family(
        objective="masked",
        pre_norm=True,
        norm="layer",
        token_types=False,
        scales_residual=True,
        values={
            "activation": ("geglu",),
            "bias": ("none",),
            "next_sentence": (False,),
            "num_key_value_heads": (None,),
            **_ROTARY,
            "rope_scaling": ("none",),
            "tie_output": (True,),
            **_EVEN_HEADS,
        },
        defaults={
            "activation": "geglu",
            "gelu_form": "erf",
            **_NO_DROPOUT,
            **_ROTARY_DEFAULTS,
            "local_attention": 128,
            "next_sentence": False,
            "rope_theta": 160_000.0,
        },
        norm_shift=False,
        norms_embedding=True,
        transforms_for_tasks=True,
    ),
}


def listed(objective: str) -> str:
    """Returns the names of the families that are pre-trained on an objective, for a message."""
    return " or ".join(name for name, family in FAMILIES.items() if family.objective == objective)


def taking(flag: str, value: Any, objective: str) -> str:
    """Returns the names of the families that take a value of a flag, if there are some those of an objective."""
    families = [name for name, family in FAMILIES.items() if value in family.values.get(flag, (value,))]
    same = [name for name in families if FAMILIES[name].objective == objective]
    return " or ".join(same or families)
