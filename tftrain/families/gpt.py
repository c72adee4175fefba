"""GPT-2 (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019): a decoder."""

from tftrain.families.family import CAUSAL, CLASSIC, DECODER, QUERY_KEY_VALUE, Family, ModelType, sizes

_GPT2 = ModelType(
    name="gpt2",
    flags={"norm_position": "pre"},
    fields={
        **sizes(
            *(50257, 768, 12, 12, None, 1024),
            theirs=("vocab_size", "n_embd", "n_layer", "n_head", "n_inner", "n_positions"),
        ),
        "hidden_dropout_prob": ("resid_pdrop", 0.1),
        "attention_probs_dropout_prob": ("attn_pdrop", 0.1),
        "layer_norm_epsilon": ("layer_norm_epsilon", 1e-5),
        "gelu_form": ("activation_function", "gelu_new"),
    },
    architectures={"GPT2LMHeadModel": (), "GPT2Model": ()},
    scopes={
        "embeddings/word": "transformer.wte.weight",
        "embeddings/position": "transformer.wpe.weight",
        **dict.fromkeys(QUERY_KEY_VALUE, "transformer.h.{layer}.attn.c_attn"),
        "attention/output": "transformer.h.{layer}.attn.c_proj",
        "attention/norm": "transformer.h.{layer}.ln_1",
        "feed_forward/up": "transformer.h.{layer}.mlp.c_fc",
        "feed_forward/down": "transformer.h.{layer}.mlp.c_proj",
        "feed_forward/norm": "transformer.h.{layer}.ln_2",
        "final_norm": "transformer.ln_f",
    },
    transposes=False,  # its layers are Conv1D
    prefix="transformer.",
    tied_copies={"lm_head.weight": "transformer.wte.weight"},
    fixed={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    gelu_tanh="gelu_new",
    write=lambda flags, values: {"embd_pdrop": flags["hidden_dropout_prob"]},
)
FAMILY = Family(
    name="gpt",
    description="a decoder that learns the next token",
    objective=CAUSAL,
    values={**CLASSIC, **DECODER},
    types=(_GPT2,),
)
