"""Llama (Touvron et al., arXiv 2302.13971) and Qwen: decoders with RMSNorm, SwiGLU and rotary positions."""

import functools
from collections.abc import Mapping
from typing import Any

from tftrain.families import family, rope
from tftrain.families.family import Family, Flags, ModelType, sizes

_BIASES = ("attention_bias", "mlp_bias")


def _read(config: Mapping[str, Any], values: Flags, biases: tuple[str, ...] = _BIASES) -> dict[str, Any]:
    """Returns the flags of the heads, the biases and the positions; `biases` are fields that the type reads."""
    if (activation := config.get("hidden_act") or "silu") not in ("silu", "swish"):
        raise ValueError(f"hidden_act is {activation!r}; this project has only 'silu'")
    window, first = config.get("sliding_window", 4096), config.get("max_window_layers", 28)
    has_window = config.get("use_sliding_window") and window is not None and window < values["max_position_embeddings"]
    if has_window and first < values["num_hidden_layers"]:
        raise ValueError("use_sliding_window is True; this project has only False")
    heads, flags = values["num_attention_heads"], rope.read(config)
    shared = values.get("num_key_value_heads", heads)
    if heads % shared:
        raise ValueError(f"num_attention_heads={heads} is not a multiple of num_key_value_heads={shared}")
    has_bias = {bool(config.get(name)) for name in biases}
    if len(has_bias) > 1:
        raise ValueError("attention_bias and mlp_bias differ; this project has both or none")
    flags["num_key_value_heads"] = None if shared == heads else shared
    if values.get("attention_head_size", 0) * heads == values["hidden_size"]:
        flags["attention_head_size"] = None
    return flags | ({"bias": "all"} if True in has_bias else {})


def _write_qwen(flags: Flags, values: Mapping[str, Any]) -> dict[str, Any]:
    return {"hidden_act": "silu", "bos_token_id": None, "eos_token_id": None, **rope.write(flags)}


def _write(flags: Flags, values: Mapping[str, Any]) -> dict[str, Any]:
    return {**dict.fromkeys(_BIASES, flags["bias"] == "all"), **_write_qwen(flags, values)}


_LLAMA = ModelType(
    name="llama",
    fields={
        **sizes(32000, 4096, 32, 32, 11008, 2048),
        "attention_head_size": ("head_dim", None),
        "num_key_value_heads": ("num_key_value_heads", None),
        "attention_probs_dropout_prob": ("attention_dropout", 0.0),
        "layer_norm_epsilon": ("rms_norm_eps", 1e-6),
        "tie_output": ("tie_word_embeddings", False),
    },
    fixed={"partial_rotary_factor": 1.0},
    architectures={"LlamaForCausalLM": (), "LlamaModel": ()},
    scopes={
        "embeddings/word": "model.embed_tokens.weight",
        "attention/query": "model.layers.{layer}.self_attn.q_proj",
        "attention/key": "model.layers.{layer}.self_attn.k_proj",
        "attention/value": "model.layers.{layer}.self_attn.v_proj",
        "attention/query_norm": "model.layers.{layer}.self_attn.q_norm",
        "attention/key_norm": "model.layers.{layer}.self_attn.k_norm",
        "attention/output": "model.layers.{layer}.self_attn.o_proj",
        "attention/norm": "model.layers.{layer}.input_layernorm",
        "feed_forward/gate": "model.layers.{layer}.mlp.gate_proj",
        "feed_forward/up": "model.layers.{layer}.mlp.up_proj",
        "feed_forward/down": "model.layers.{layer}.mlp.down_proj",
        "feed_forward/norm": "model.layers.{layer}.post_attention_layernorm",
        "final_norm": "model.norm",
        "output": "lm_head.weight",
    },
    prefix="model.",
    tied_copies={"lm_head.weight": "model.embed_tokens.weight"},
    read=_read,
    write=_write,
)
_QWEN2 = _LLAMA._replace(
    name="qwen2",
    flags={"bias": "query_key_value"},
    fields={
        **_LLAMA.fields,
        **sizes(151936, 4096, 32, 32, 22016, 32768),
        "num_key_value_heads": ("num_key_value_heads", 32),
    },
    architectures={"Qwen2ForCausalLM": (), "Qwen2Model": ()},
    telling=[("attention/query", "bias")],
    lacking=[("attention/output", "bias")],
    read=functools.partial(_read, biases=()),
    write=_write_qwen,
)
_QWEN3 = _QWEN2._replace(
    name="qwen3",
    flags={"query_key_norm": True},
    fields={**_QWEN2.fields, "attention_head_size": ("head_dim", 128)},
    architectures={"Qwen3ForCausalLM": (), "Qwen3Model": ()},
    telling=[("attention/query_norm", "weight")],
    lacking=[],
    read=_read,
)
FAMILY = Family(
    name="llama",
    description="a decoder with RMSNorm, SwiGLU and rotary positions",
    objective=family.CAUSAL,
    norm="rms",
    scales_residual=False,
    values={"activation": ("swiglu",), "gelu_form": ("tanh",), **family.ROTARY, **family.ALL_GLOBAL, **family.DECODER},
    types=(_LLAMA, _QWEN2, _QWEN3),
    defaults={"activation": "swiglu", "tie_output": False, **family.ROTARY_DEFAULTS},
    norm_shift=False,
)
