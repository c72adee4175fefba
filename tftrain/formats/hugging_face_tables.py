"""What transformers calls the models, their sizes and their tensors: one entry for each model_type.

A family that it has is one more entry of `KINDS`.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tftrain.architecture.describe import describe
from tftrain.architecture.parts import Variable
from tftrain.config.model import ModelConfig
from tftrain.files.errors import FormatError
from tftrain.formats import hugging_face_families as families
from tftrain.formats.links import Link, Names, same, transposed


class Kind(NamedTuple):
    """A model_type of transformers."""

    model_type: str  # its name there
    family: str  # its family here
    # Our fields, each with theirs and the value that it has where a config.json leaves it out: the default of the
    # type's config class in transformers, or None, which is the default of our own flag.
    fields: Mapping[str, tuple[str, Any]]
    architectures: Mapping[str, Sequence[str]]  # the classes, the largest first, each with the heads that it has
    scopes: Mapping[str, str]  # the names of the tensors, see `Names`
    prefix: str  # what base models leave out at the beginning of names
    tied_copies: Mapping[str, str]  # copies of other tensors, by name, that must be equal to them
    kernel: Callable[[str, Variable], Link] = transposed
    flags: Mapping[str, Any] = {}  # those that tell it from the other kinds of its family
    fixed: Mapping[str, Any] = {}  # fields that this project has with one value only, the library's default
    answers: str = "classifier"  # name of the head for question_answering
    gelu_tanh: str = "gelu_pytorch_tanh"  # name of the tanh approximation
    # Tokens whose ids are in a config.json, by name; those of a decoder are named by its tokenizer.
    special_tokens: Mapping[str, str] = {}
    # Maps a config.json, the values of `fields` in it and its path to more flags.
    read: Callable[[Mapping[str, Any], Mapping[str, Any], str], dict[str, Any]] = lambda config, values, path: {}
    # Maps a model and the values of `fields` to more fields.
    write: Callable[[ModelConfig, Mapping[str, Any]], dict[str, Any]] = lambda model, values: {}


_SIZES = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    "max_position_embeddings",
)
_GPT_SIZES = ("vocab_size", "n_embd", "n_layer", "n_head", "n_inner", "n_positions")


def _sizes(*defaults: int | None, theirs: tuple[str, ...] = _SIZES):
    """Returns the fields of `_SIZES`, which most types call as we do, with a type's defaults, and that of all types."""
    sizes = dict(zip(_SIZES, zip(theirs, defaults, strict=True), strict=True))
    return sizes | {"initializer_range": ("initializer_range", 0.02)}


_QUERY_KEY_VALUE = ("attention/query", "attention/key", "attention/value")
_HEADS = {
    "ForPreTraining": ("masked_lm", "pooler", "next_sentence"),
    "ForMaskedLM": ("masked_lm",),
    "Model": ("pooler",),
    "ForSequenceClassification": ("pooler", "classifier"),
    "ForTokenClassification": ("classifier",),
    "ForQuestionAnswering": ("classifier",),
}
_BERT = Kind(
    model_type="bert",
    family="bert",
    flags={"norm_position": "post"},
    fields={
        **_sizes(30522, 768, 12, 12, 3072, 512),
        "type_vocab_size": ("type_vocab_size", 2),
        "hidden_dropout_prob": ("hidden_dropout_prob", 0.1),
        "attention_probs_dropout_prob": ("attention_probs_dropout_prob", 0.1),
        "layer_norm_epsilon": ("layer_norm_eps", 1e-12),
        "gelu_form": ("hidden_act", "gelu"),
    },
    architectures={f"Bert{name}": heads for name, heads in _HEADS.items()},
    scopes={
        "embeddings/word": "bert.embeddings.word_embeddings.weight",
        "embeddings/position": "bert.embeddings.position_embeddings.weight",
        "embeddings/token_type": "bert.embeddings.token_type_embeddings.weight",
        "embeddings/norm": "bert.embeddings.LayerNorm",
        "attention/query": "bert.encoder.layer.{layer}.attention.self.query",
        "attention/key": "bert.encoder.layer.{layer}.attention.self.key",
        "attention/value": "bert.encoder.layer.{layer}.attention.self.value",
        "attention/output": "bert.encoder.layer.{layer}.attention.output.dense",
        "attention/norm": "bert.encoder.layer.{layer}.attention.output.LayerNorm",
        "feed_forward/up": "bert.encoder.layer.{layer}.intermediate.dense",
        "feed_forward/down": "bert.encoder.layer.{layer}.output.dense",
        "feed_forward/norm": "bert.encoder.layer.{layer}.output.LayerNorm",
        "masked_lm/transform": "cls.predictions.transform.dense",
        "masked_lm/norm": "cls.predictions.transform.LayerNorm",
        "masked_lm/bias": "cls.predictions.bias",
        "pooler": "bert.pooler.dense",
        "next_sentence": "cls.seq_relationship",
        "classifier": "classifier",
    },
    prefix="bert.",
    tied_copies={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    fixed={"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False},
    answers="qa_outputs",
    write=lambda model, values: {"pad_token_id": 0},
)
_MEGATRON_BERT = _BERT._replace(
    model_type="megatron-bert",
    flags={"norm_position": "pre"},
    fields={**_BERT.fields, **_sizes(29056, 1024, 24, 16, 4096, 512)},
    architectures={f"MegatronBert{name}": heads for name, heads in _HEADS.items()},
    # The names of the embedding's norm, which such a model does not have, stay without harm.
    scopes={
        **_BERT.scopes,
        "attention/norm": "bert.encoder.layer.{layer}.attention.ln",
        "feed_forward/norm": "bert.encoder.layer.{layer}.ln",
        "final_norm": "bert.encoder.ln",
    },
)
_GPT2 = Kind(
    model_type="gpt2",
    family="gpt",
    flags={"norm_position": "pre"},
    fields={
        **_sizes(50257, 768, 12, 12, None, 1024, theirs=_GPT_SIZES),
        "hidden_dropout_prob": ("resid_pdrop", 0.1),
        "attention_probs_dropout_prob": ("attn_pdrop", 0.1),
        "layer_norm_epsilon": ("layer_norm_epsilon", 1e-5),
        "gelu_form": ("activation_function", "gelu_new"),
    },
    architectures={"GPT2LMHeadModel": (), "GPT2Model": ()},
    scopes={
        "embeddings/word": "transformer.wte.weight",
        "embeddings/position": "transformer.wpe.weight",
        **dict.fromkeys(_QUERY_KEY_VALUE, "transformer.h.{layer}.attn.c_attn"),
        "attention/output": "transformer.h.{layer}.attn.c_proj",
        "attention/norm": "transformer.h.{layer}.ln_1",
        "feed_forward/up": "transformer.h.{layer}.mlp.c_fc",
        "feed_forward/down": "transformer.h.{layer}.mlp.c_proj",
        "feed_forward/norm": "transformer.h.{layer}.ln_2",
        "final_norm": "transformer.ln_f",
    },
    kernel=same,  # its layers are Conv1D, whose kernels are [inputs, outputs]
    prefix="transformer.",
    tied_copies={"lm_head.weight": "transformer.wte.weight"},
    fixed={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    gelu_tanh="gelu_new",
    write=lambda model, values: {"embd_pdrop": model.hidden_dropout_prob},
)
_LLAMA = Kind(
    model_type="llama",
    family="llama",
    fields={
        **_sizes(32000, 4096, 32, 32, 11008, 2048),
        "attention_head_size": ("head_dim", None),
        "num_key_value_heads": ("num_key_value_heads", None),
        "attention_probs_dropout_prob": ("attention_dropout", 0.0),
        "layer_norm_epsilon": ("rms_norm_eps", 1e-6),
        "tie_output": ("tie_word_embeddings", False),
    },
    fixed={"partial_rotary_factor": 1.0},
    architectures={"LlamaForCausalLM": ()},
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
    read=families.read_llama,
    write=families.write_llama,
)
_QWEN2 = _LLAMA._replace(
    model_type="qwen2",
    flags={"bias": "query_key_value"},
    fields={
        **_LLAMA.fields,
        **_sizes(151936, 4096, 32, 32, 22016, 32768),
        "num_key_value_heads": ("num_key_value_heads", 32),
    },
    architectures={"Qwen2ForCausalLM": ()},
    write=families.write_qwen,
)
_QWEN3 = _QWEN2._replace(
    model_type="qwen3",
    flags={"query_key_norm": True},
    fields={**_QWEN2.fields, "attention_head_size": ("head_dim", 128)},
    architectures={"Qwen3ForCausalLM": ()},
)
_MODERNBERT = Kind(
    model_type="modernbert",
    family="modernbert",
    fields={
        **_sizes(50368, 768, 22, 12, 1152, 8192),
        "hidden_dropout_prob": ("embedding_dropout", 0.0),
        "attention_probs_dropout_prob": ("attention_dropout", 0.0),
        "layer_norm_epsilon": ("norm_eps", 1e-5),
        "gelu_form": ("hidden_activation", "gelu"),
        "local_attention": ("local_attention", 128),
        "global_attn_every": ("global_attn_every_n_layers", 3),
    },
    fixed=families.MODERNBERT,
    architectures={
        "ModernBertForMaskedLM": ("masked_lm",),
        "ModernBertModel": (),
        **{f"ModernBert{name}": ("masked_lm", "classifier") for name in _HEADS if "classifier" in _HEADS[name]},
    },
    scopes={
        "embeddings/word": "model.embeddings.tok_embeddings.weight",
        "embeddings/norm": "model.embeddings.norm",
        **dict.fromkeys(_QUERY_KEY_VALUE, "model.layers.{layer}.attn.Wqkv"),
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
    special_tokens={"pad": "[PAD]", "cls": "[CLS]", "bos": "[CLS]", "sep": "[SEP]", "eos": "[SEP]"},
    read=families.read_modernbert,
    write=families.write_modernbert,
)
KINDS = {each.model_type: each for each in (_BERT, _MEGATRON_BERT, _GPT2, _LLAMA, _QWEN2, _QWEN3, _MODERNBERT)}


def kind_of(model: ModelConfig) -> Kind:
    """Returns the kind of a model: the last of its family with flags that are the model's.

    Raises:
        FormatError: there is none.
    """
    own = dataclasses.replace(model, norm_position="pre" if model.is_pre_norm else "post")
    of_family = [each for each in KINDS.values() if each.family == model.model_family]
    fitting = [each for each in of_family if all(getattr(own, name) == value for name, value in each.flags.items())]
    if not fitting:
        raise FormatError(f"--model_family={model.model_family}: transformers has no such model")
    return fitting[-1]


def links_of(model: ModelConfig) -> list[Link]:
    """Returns the link of every tensor of a model with all its heads."""
    kind = kind_of(model)
    classifier = {"classifier": kind.answers} if model.task == "question_answering" else {}
    return Names({**kind.scopes, **classifier}, kernel=kind.kernel).links(describe(model).variables())
