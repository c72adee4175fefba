"""DistilBERT (Sanh et al., arXiv 1910.01108): BERT without token types and pooler, usually of half its layers."""

from tftrain.families import bert
from tftrain.families.family import CLASSIC, FIRST_TOKEN, MASKED, POST_NORM, Family, ModelType, sizes

_BLOCK = "distilbert.transformer.layer.{layer}."
_TYPE = ModelType(
    name="distilbert",
    flags={"norm_position": "post"},
    fields={
        **sizes(
            *(30522, 768, 6, 12, 3072, 512),
            theirs=("vocab_size", "dim", "n_layers", "n_heads", "hidden_dim", "max_position_embeddings"),
        ),
        "hidden_dropout_prob": ("dropout", 0.1),
        "attention_probs_dropout_prob": ("attention_dropout", 0.1),
        "gelu_form": ("activation", "gelu"),
    },
    architectures={
        "DistilBertForMaskedLM": ("masked_lm",),
        "DistilBertModel": (),
        **{f"DistilBert{name}": ("classifier",) for name in bert.HEADS if "classifier" in bert.HEADS[name]},
    },
    scopes={
        "embeddings/word": "distilbert.embeddings.word_embeddings.weight",
        "embeddings/position": "distilbert.embeddings.position_embeddings.weight",
        "embeddings/norm": "distilbert.embeddings.LayerNorm",
        "attention/query": _BLOCK + "attention.q_lin",
        "attention/key": _BLOCK + "attention.k_lin",
        "attention/value": _BLOCK + "attention.v_lin",
        "attention/output": _BLOCK + "attention.out_lin",
        "attention/norm": _BLOCK + "sa_layer_norm",
        "feed_forward/up": _BLOCK + "ffn.lin1",
        "feed_forward/down": _BLOCK + "ffn.lin2",
        "feed_forward/norm": _BLOCK + "output_layer_norm",
        "masked_lm/transform": "vocab_transform",
        "masked_lm/norm": "vocab_layer_norm",
        "masked_lm/bias": "vocab_projector.bias",
        "classifier/dense": "pre_classifier",
        "classifier": "classifier",
    },
    prefix="distilbert.",
    tied_copies={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
    answers="qa_outputs",
    write=lambda flags, values: {"pad_token_id": 0},
)
FAMILY = Family(
    name="distilbert",
    description="an encoder like bert without token types and pooler, which learns masked words",
    objective=MASKED,
    pre_norm=False,
    scales_residual=False,
    classifier_activation="relu",
    values={
        "layer_norm_epsilon": (1e-12,),
        "next_sentence": (False,),
        **POST_NORM,
        **CLASSIC,
        **FIRST_TOKEN,
    },
    types=(_TYPE,),
    defaults={"gelu_form": "erf", "next_sentence": False, "num_hidden_layers": 6},
)
