"""What the fields of a table do not say of the config.json of Llamas and ModernBERTs in transformers."""

from collections.abc import Mapping
from typing import Any

from tftrain.config.model import ModelConfig
from tftrain.files.errors import FormatError
from tftrain.formats import hugging_face_rope

# The fields of a ModernBERT that this project has with one value only.
MODERNBERT = {
    **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), False),
    "decoder_bias": True,
}
_ATTENTION = ("full_attention", "sliding_attention")  # of a global and of a local layer


def read_llama(config: Mapping[str, Any], values: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Returns the flags of a Llama's heads, biases and positions."""
    if (activation := config.get("hidden_act") or "silu") not in ("silu", "swish"):
        raise FormatError(f"{path}: hidden_act is {activation!r}; this project has only 'silu'")
    window, first = config.get("sliding_window", 4096), config.get("max_window_layers", 28)
    has_window = config.get("use_sliding_window") and window is not None and window < values["max_position_embeddings"]
    if has_window and first < values["num_hidden_layers"]:
        raise FormatError(f"{path}: use_sliding_window is True; this project has only False")
    heads, values_of_rope = values["num_attention_heads"], hugging_face_rope.flags(config, path)
    shared = values.get("num_key_value_heads", heads)
    if heads % shared:
        raise FormatError(f"{path}: num_attention_heads={heads} is not a multiple of num_key_value_heads={shared}")
    read = ("attention_bias", "mlp_bias") if config.get("model_type") != "qwen2" else ()  # whose biases are fixed
    biases = {bool(config.get(name)) for name in read}
    if len(biases) > 1:
        raise FormatError(f"{path}: attention_bias and mlp_bias differ; this project has both or none")
    values_of_rope["num_key_value_heads"] = None if shared == heads else shared
    if values.get("attention_head_size", 0) * heads == values["hidden_size"]:
        values_of_rope["attention_head_size"] = None
    return {**values_of_rope, "bias": "all"} if True in biases else values_of_rope


def write_llama(model: ModelConfig, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a Llama's activation, biases and positions."""
    biases = dict.fromkeys(("attention_bias", "mlp_bias"), model.bias == "all")
    return {"hidden_act": "silu", **biases, **write_qwen(model, values)}


def write_qwen(model: ModelConfig, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a Qwen's activation and positions."""
    return {"hidden_act": "silu", "bos_token_id": None, "eos_token_id": None, **hugging_face_rope.fields(model)}


def read_modernbert(config: Mapping[str, Any], values: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Returns the flags of a ModernBERT's local and global layers."""
    activation, act = config.get("classifier_activation", "gelu"), config.get("hidden_activation", "gelu")
    if activation != act:
        raise FormatError(
            f"{path}: classifier_activation is {activation!r}; this project has only that of hidden_activation"
        )
    pooling = config.get("classifier_pooling", "cls")
    if pooling not in ("cls", "mean"):
        raise FormatError(f"{path}: classifier_pooling is {pooling!r}; expected 'cls' or 'mean'")
    types, every = config.get("layer_types"), values["global_attn_every"]
    if types is not None:
        is_global = [each == _ATTENTION[0] for each in types] if isinstance(types, list) else []
        first_global = next((index for index, each in enumerate(is_global) if index and each), len(is_global))
        every = every if "global_attn_every_n_layers" in config else max(1, first_global)
        if is_global != [layer % every == 0 for layer in range(values["num_hidden_layers"])]:
            raise FormatError(
                f"{path}: layer_types is {types!r}; expected full_attention every {every} layers, and sliding_attention"
            )
    return {
        "global_attn_every": every,
        **({"local_attention": 0} if every == 1 else {}),
        "classifier_pooling": pooling,
        **hugging_face_rope.local_and_global(config, path),
    }


def write_modernbert(model: ModelConfig, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a ModernBERT's classifier, and of its local and global layers."""
    bases = dict(zip(_ATTENTION, (model.rope_theta, model.local_rope_theta), strict=True))
    every, window = model.global_attn_every, model.local_attention
    if not window:  # A window of 0 tokens there is one that hides all other tokens.
        every, window = 1, model.family.defaults["local_attention"]
    return {
        "global_attn_every_n_layers": every,
        "local_attention": window,
        "classifier_activation": values["hidden_activation"],
        "classifier_pooling": model.classifier_pooling,
        **MODERNBERT,
        **{"tie_word_embeddings": True, "mlp_dropout": 0.0},
        "layer_types": [_ATTENTION[layer % every > 0] for layer in range(model.num_hidden_layers)],
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()},
        "global_rope_theta": model.rope_theta,
        "local_rope_theta": model.local_rope_theta,
    }
