"""What transformers calls the models, their sizes and their tensors: one table a model type."""

from tftrain.architecture.describe import describe
from tftrain.config.families import FAMILIES
from tftrain.config.train import ModelConfig
from tftrain.formats.links import Link, Names, same

# What transformers calls the forms of the GeLU.
GELU_FORMS = {"gelu": "erf", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu_fast": "tanh", "gelu_python": "erf"}


_SIZES = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    "max_position_embeddings",
)
_GPT_SIZES = ("vocab_size", "n_embd", "n_layer", "n_head", "n_inner", "n_positions")


def _sizes(*defaults: int | None, theirs: tuple[str, ...] = _SIZES):
    """Returns the fields of `_SIZES`, which most types call as we do, with a type's defaults."""
    return dict(zip(_SIZES, zip(theirs, defaults, strict=True), strict=True))


# For each model_type our fields, each with theirs and the value that it has where a config.json leaves it out: the
# defaults of BertConfig, MegatronBertConfig, GPT2Config, LlamaConfig, Qwen2Config, Qwen3Config and ModernBertConfig
# in transformers. None: the default of our own flag.
_BERT = {
    **_sizes(30522, 768, 12, 12, 3072, 512),
    "type_vocab_size": ("type_vocab_size", 2),
    "hidden_dropout_prob": ("hidden_dropout_prob", 0.1),
    "attention_probs_dropout_prob": ("attention_probs_dropout_prob", 0.1),
    "initializer_range": ("initializer_range", 0.02),
    "layer_norm_epsilon": ("layer_norm_eps", 1e-12),
    "gelu_form": ("hidden_act", "gelu"),
}
_LLAMA = {
    **_sizes(32000, 4096, 32, 32, 11008, 2048),
    "attention_head_size": ("head_dim", None),
    "num_key_value_heads": ("num_key_value_heads", None),
    "attention_probs_dropout_prob": ("attention_dropout", 0.0),
    "initializer_range": ("initializer_range", 0.02),
    "layer_norm_epsilon": ("rms_norm_eps", 1e-6),
    "tie_output": ("tie_word_embeddings", False),
}
_QWEN2 = {**_LLAMA, **_sizes(151936, 4096, 32, 32, 22016, 32768), "num_key_value_heads": ("num_key_value_heads", 32)}
FIELDS = {
    "bert": _BERT,
    "megatron-bert": {**_BERT, **_sizes(29056, 1024, 24, 16, 4096, 512)},
    "gpt2": {
        **_sizes(50257, 768, 12, 12, None, 1024, theirs=_GPT_SIZES),
        "hidden_dropout_prob": ("resid_pdrop", 0.1),
        "attention_probs_dropout_prob": ("attn_pdrop", 0.1),
        "initializer_range": ("initializer_range", 0.02),
        "layer_norm_epsilon": ("layer_norm_epsilon", 1e-5),
        "gelu_form": ("activation_function", "gelu_new"),
    },
    "llama": _LLAMA,
    "qwen2": _QWEN2,
    "qwen3": {**_QWEN2, "attention_head_size": ("head_dim", 128)},
    "modernbert": {
        **_sizes(50368, 768, 22, 12, 1152, 8192),
        "hidden_dropout_prob": ("embedding_dropout", 0.0),
        "attention_probs_dropout_prob": ("attention_dropout", 0.0),
        "initializer_range": ("initializer_range", 0.02),
        "layer_norm_epsilon": ("norm_eps", 1e-5),
        "gelu_form": ("hidden_activation", "gelu"),
        "local_attention": ("local_attention", 128),
        "global_attn_every": ("global_attn_every_n_layers", 3),
    },
}
# The flags that are the same in every model of a type.
FLAGS = {
    "bert": {"model_family": "bert", "norm_position": "post"},
    "megatron-bert": {"model_family": "bert", "norm_position": "pre"},
    "gpt2": {"model_family": "gpt", "norm_position": "pre"},
    "llama": {"model_family": "llama", **FAMILIES["llama"].defaults},
    "qwen2": {"model_family": "llama", **FAMILIES["llama"].defaults, "bias": "query_key_value"},
    "qwen3": {"model_family": "llama", **FAMILIES["llama"].defaults, "query_key_norm": True},
    "modernbert": {"model_family": "modernbert", **FAMILIES["modernbert"].defaults},
}
# The ends of the names of the classes for fine-tuned tasks.
ENDINGS = {
    "classification": "ForSequenceClassification",
    "multi_label": "ForSequenceClassification",
    "regression": "ForSequenceClassification",
    "token_classification": "ForTokenClassification",
    "question_answering": "ForQuestionAnswering",
    "embedding": "Model",
}
PROBLEM_TYPES = {
    "classification": "single_label_classification",
    "multi_label": "multi_label_classification",
    "regression": "regression",
}
# Settings that this project has with one value only, which is transformers' default as well.
FIXED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "chunk_size_feed_forward": 0,
}
_TIED = {"tie_word_embeddings": True}
_SILU = {"hidden_act": "silu", "pretraining_tp": 1, "use_sliding_window": False}
MODERN = {
    **_TIED,
    **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), False),
    "decoder_bias": True,
    "mlp_dropout": 0.0,
}
FIXED_OF_KIND = {
    **dict.fromkeys(("bert", "megatron-bert", "gpt2"), _TIED),
    **dict.fromkeys(("llama", "qwen2", "qwen3"), _SILU),
    "modernbert": MODERN,
}

_HEADS = {
    "ForPreTraining": ("masked_lm", "pooler", "next_sentence"),
    "ForMaskedLM": ("masked_lm",),
    "Model": ("pooler",),
    "ForSequenceClassification": ("pooler", "classifier"),
    "ForTokenClassification": ("classifier",),
    "ForQuestionAnswering": ("classifier",),
}
ARCHITECTURES = {
    "bert": {f"Bert{name}": heads for name, heads in _HEADS.items()},
    "megatron-bert": {f"MegatronBert{name}": heads for name, heads in _HEADS.items()},
    "gpt2": {"GPT2LMHeadModel": (), "GPT2Model": ()},
    "llama": {"LlamaForCausalLM": ()},
    "qwen2": {"Qwen2ForCausalLM": ()},
    "qwen3": {"Qwen3ForCausalLM": ()},
    "modernbert": {
        "ModernBertForMaskedLM": ("masked_lm",),
        "ModernBertModel": (),
        **{f"ModernBert{name}": ("masked_lm", "classifier") for name in _HEADS if "classifier" in _HEADS[name]},
    },
}
BERT_NAMES = Names(
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
)
# The names of the embedding's norm, which such a model does not have, stay without harm.
_MEGATRON_BERT_NAMES = BERT_NAMES._replace(
    scopes={
        **BERT_NAMES.scopes,
        "attention/norm": "bert.encoder.layer.{layer}.attention.ln",
        "feed_forward/norm": "bert.encoder.layer.{layer}.ln",
        "final_norm": "bert.encoder.ln",
    }
)
_GPT_NAMES = Names(
    scopes={
        "embeddings/word": "transformer.wte.weight",
        "embeddings/position": "transformer.wpe.weight",
        **dict.fromkeys(("attention/query", "attention/key", "attention/value"), "transformer.h.{layer}.attn.c_attn"),
        "attention/output": "transformer.h.{layer}.attn.c_proj",
        "attention/norm": "transformer.h.{layer}.ln_1",
        "feed_forward/up": "transformer.h.{layer}.mlp.c_fc",
        "feed_forward/down": "transformer.h.{layer}.mlp.c_proj",
        "feed_forward/norm": "transformer.h.{layer}.ln_2",
        "final_norm": "transformer.ln_f",
    },
    kernel=same,  # its layers are Conv1D, whose kernels are [inputs, outputs]
)
_LLAMA_NAMES = Names(
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
)
_MODERNBERT_NAMES = Names(
    scopes={
        "embeddings/word": "model.embeddings.tok_embeddings.weight",
        "embeddings/norm": "model.embeddings.norm",
        **dict.fromkeys(("attention/query", "attention/key", "attention/value"), "model.layers.{layer}.attn.Wqkv"),
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
)
BUFFERS = (".position_ids", ".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")  # the ends of their names
_NAMES = {
    "bert": BERT_NAMES,
    "megatron-bert": _MEGATRON_BERT_NAMES,
    "gpt2": _GPT_NAMES,
    "llama": _LLAMA_NAMES,
    "qwen2": _LLAMA_NAMES,
    "qwen3": _LLAMA_NAMES,
    "modernbert": _MODERNBERT_NAMES,
}
# What base models leave out at the beginning of names.
PREFIXES = {"bert": "bert.", "gpt": "transformer.", "llama": "model.", "modernbert": "model."}
WITHOUT_PREFIX = ("cls.", "lm_head.", "head.", "decoder.", "classifier.", "qa_outputs.")
# Copies of other tensors, by name, that must be equal to them.
TIED_COPIES = {
    "bert": {
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    "gpt": {"lm_head.weight": "transformer.wte.weight"},
    "llama": {"lm_head.weight": "model.embed_tokens.weight"},
    "modernbert": {"decoder.weight": "model.embeddings.tok_embeddings.weight"},
}


def kind(model: ModelConfig) -> str:
    """Returns transformers' model_type."""
    if model.model_family == "bert":
        return "megatron-bert" if model.is_pre_norm else "bert"
    if model.model_family == "llama":
        return "qwen3" if model.query_key_norm else "qwen2" if model.bias == "query_key_value" else "llama"
    return {"gpt": "gpt2", "modernbert": "modernbert"}[model.model_family]


def links_of(model: ModelConfig) -> list[Link]:
    """Returns the link of every tensor of a model with all its heads."""
    names = _NAMES[kind(model)]
    if model.task == "question_answering" and model.model_family == "bert":
        names = names._replace(scopes={**names.scopes, "classifier": "qa_outputs"})
    return names.links(describe(model).variables())
