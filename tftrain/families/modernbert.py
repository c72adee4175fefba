"""ModernBERT (Warner et al., arXiv 2412.13663): an encoder with rotary positions and local attention."""

from collections.abc import Mapping
from typing import Any

from tftrain.families import bert, family, rope
from tftrain.families.family import Family, Flags, ModelType, sizes

_WINDOW = 128
_FIXED = dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), False) | {"decoder_bias": True}
_BASES = {
    "full_attention": ("rope_theta", "global_rope_theta", 160_000.0),
    "sliding_attention": ("local_rope_theta", "local_rope_theta", 10_000.0),
}  # by the type of a layer: our flag, the field of config.json before 5.0, and its default


def _read(config: Mapping[str, Any], values: Flags) -> dict[str, Any]:
    activation, act = config.get("classifier_activation", "gelu"), config.get("hidden_activation", "gelu")
    if activation != act:
        raise ValueError(f"classifier_activation is {activation!r}; this project has only that of hidden_activation")
    pooling = config.get("classifier_pooling", "cls")
    if pooling not in ("cls", "mean"):
        raise ValueError(f"classifier_pooling is {pooling!r}; expected 'cls' or 'mean'")
    types, every = config.get("layer_types"), values["global_attn_every"]
    if types is not None:
        is_global = [each == "full_attention" for each in types] if isinstance(types, list) else []
        first_global = next((index for index, each in enumerate(is_global) if index and each), len(is_global))
        every = every if "global_attn_every_n_layers" in config else max(1, first_global)
        if is_global != [layer % every == 0 for layer in range(values["num_hidden_layers"])]:
            expected = f"expected full_attention every {every} layers, and sliding_attention"
            raise ValueError(f"layer_types is {types!r}; {expected}")
    flags = {"global_attn_every": every, "classifier_pooling": pooling}
    parameters = config.get("rope_parameters") or {}
    for layers, (flag, field, default) in _BASES.items():
        own = parameters.get(layers, {}) if isinstance(parameters, dict) else parameters
        own = own or {"rope_theta": config.get(field, default)}
        if not isinstance(own, dict) or own.get("rope_type", "default") != "default":
            raise ValueError(f"rope_parameters of {layers} is {own!r}; this project has only rope_type 'default'")
        flags[flag] = rope.read(own)["rope_theta"]
    return flags | ({"local_attention": 0} if every == 1 else {})


def _write(flags: Flags, values: Mapping[str, Any]) -> dict[str, Any]:
    every, window = flags["global_attn_every"], flags["local_attention"]
    if not window:  # A window of 0 tokens there is one that hides all other tokens.
        every, window = 1, _WINDOW
    full, sliding = _BASES
    return {
        "global_attn_every_n_layers": every,
        "local_attention": window,
        "classifier_activation": values["hidden_activation"],
        "classifier_pooling": flags["classifier_pooling"],
        **_FIXED,
        **{"tie_word_embeddings": True, "mlp_dropout": 0.0},
        "layer_types": [sliding if layer % every else full for layer in range(flags["num_hidden_layers"])],
        "rope_parameters": {
            layers: {"rope_type": "default", "rope_theta": flags[flag]} for layers, (flag, *_) in _BASES.items()
        },
        **{field: flags[flag] for flag, field, _ in _BASES.values()},
    }


_TYPE = ModelType(
    name="modernbert",
    fields={
        **sizes(50368, 768, 22, 12, 1152, 8192),
        "hidden_dropout_prob": ("embedding_dropout", 0.0),
        "attention_probs_dropout_prob": ("attention_dropout", 0.0),
        "layer_norm_epsilon": ("norm_eps", 1e-5),
        "gelu_form": ("hidden_activation", "gelu"),
        "local_attention": ("local_attention", _WINDOW),
        "global_attn_every": ("global_attn_every_n_layers", 3),
    },
    fixed=_FIXED,
    architectures={
        "ModernBertForMaskedLM": ("masked_lm",),
        "ModernBertModel": (),
        **{f"ModernBert{name}": ("masked_lm", "classifier") for name in bert.HEADS if "classifier" in bert.HEADS[name]},
    },
    scopes={
        "embeddings/word": "model.embeddings.tok_embeddings.weight",
        "embeddings/norm": "model.embeddings.norm",
        **dict.fromkeys(family.QUERY_KEY_VALUE, "model.layers.{layer}.attn.Wqkv"),
        "attention/output": "model.layers.{layer}.attn.Wo",
        "attention/norm": "model.layers.{layer}.attn_norm",
        "feed_forward/gate": "model.layers.{layer}.mlp.Wi",
        "feed_forward/up": "model.layers.{layer}.mlp.Wi",
        "feed_forward/down": "model.layers.{layer}.mlp.Wo",
        "feed_forward/norm": "model.layers.{layer}.mlp_norm",
        "final_norm": "model.final_norm",
        "masked_lm/transform": "head.dense",
        "masked_lm/norm": "head.norm",
        "masked_lm/bias": "decoder.bias",
        "classifier": "classifier",
    },
    prefix="model.",
    tied_copies={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    special_tokens={"pad": "padding", "cls": "beginning", "bos": "beginning", "sep": "separator", "eos": "separator"},
    read=_read,
    write=_write,
)
FAMILY = Family(
    name="modernbert",
    description="an encoder with rotary positions and local attention, which learns masked words",
    objective=family.MASKED,
    values={
        "activation": ("geglu",),
        "bias": ("none",),
        "next_sentence": (False,),
        "num_key_value_heads": (None,),
        **family.ROTARY,
        "rope_scaling": ("none",),
        "tie_output": (True,),
        **family.EVEN_HEADS,
    },
    types=(_TYPE,),
    defaults={
        "activation": "geglu",
        "gelu_form": "erf",
        **family.ROTARY_DEFAULTS,
        "local_attention": _WINDOW,
        "next_sentence": False,
        "rope_theta": 160_000.0,
    },
    norm_shift=False,
    norms_embedding=True,
    transforms_for_tasks=True,
)
