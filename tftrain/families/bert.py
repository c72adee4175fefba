"""BERT (Devlin et al., arXiv 1810.04805): an encoder that learns masked words and the next sentence."""

from tftrain.families.family import CLASSIC, FIRST_TOKEN, MASKED, Family, ModelType, sizes

# How its text is normalized and divided into words, as manifests and tokenizers' files call it.
NORMALIZATION = "bert"
HEADS = {
    "ForPreTraining": ("masked_lm", "pooler", "next_sentence"),
    "ForMaskedLM": ("masked_lm",),
    "Model": ("pooler",),
    "ForSequenceClassification": ("pooler", "classifier"),
    "ForTokenClassification": ("classifier",),
    "ForQuestionAnswering": ("classifier",),
}
POST_NORM = ModelType(
    name="bert",
    flags={"norm_position": "post"},
    fields={
        **sizes(30522, 768, 12, 12, 3072, 512),
        "type_vocab_size": ("type_vocab_size", 2),
        "hidden_dropout_prob": ("hidden_dropout_prob", 0.1),
        "attention_probs_dropout_prob": ("attention_probs_dropout_prob", 0.1),
        "layer_norm_epsilon": ("layer_norm_eps", 1e-12),
        "gelu_form": ("hidden_act", "gelu"),
    },
    architectures={f"Bert{name}": heads for name, heads in HEADS.items()},
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
    write=lambda flags, values: {"pad_token_id": 0},
)
PRE_NORM = POST_NORM._replace(
    name="megatron-bert",
    flags={"norm_position": "pre"},
    fields={**POST_NORM.fields, **sizes(29056, 1024, 24, 16, 4096, 512)},
    architectures={f"MegatronBert{name}": heads for name, heads in HEADS.items()},
    # Such a model has no norm in its embedding, whose names are not used.
    scopes={
        **POST_NORM.scopes,
        "attention/norm": "bert.encoder.layer.{layer}.attention.ln",
        "feed_forward/norm": "bert.encoder.layer.{layer}.ln",
        "final_norm": "bert.encoder.ln",
    },
)
FAMILY = Family(
    name="bert",
    description="an encoder that learns masked words and the next sentence",
    objective=MASKED,
    pre_norm=False,
    token_types=True,
    scales_residual=False,
    values={"position_embedding": ("learned",), **CLASSIC, **FIRST_TOKEN},
    types=(POST_NORM, PRE_NORM),
)
