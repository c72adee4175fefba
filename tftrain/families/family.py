"""What a model family is, as data: the flags it takes, what a model is made of, and its names in transformers."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

Flags = Mapping[str, Any]
_NONE: Flags = MappingProxyType({})
MASKED, CAUSAL = "masked", "causal"


class ModelType(NamedTuple):
    """A model_type of transformers.

    Attributes:
        name: its name there.
        fields: our flags, each with the field of config.json and the value that the field has where it is left out: the
            default of the type's config class in transformers, or None, which is the default of our own flag.
        architectures: the classes, the largest first, each with the heads that it has.
        scopes: the names of the tensors, see `tftrain.formats.links.Names`.
        prefix: what base models leave out at the beginning of names.
        tied_copies: copies of other tensors, by name, that must be equal to them.
        transposes: whether kernels are [outputs, inputs]; else they are [inputs, outputs].
        flags: the flags that tell the type from the other types of its family.
        fixed: fields that this project has with one value only, the library's default.
        answers: name of the head for question_answering.
        gelu_tanh: name of the tanh approximation.
        special_tokens: tokens whose ids are in a config.json, by name; those of a decoder are named by its tokenizer.
        telling: scope and leaf of tensors of the first layer that other types of the family lack.
        lacking: scope and leaf of tensors of the first layer that the type lacks and others have.
        read: maps a config.json and the values of `fields` in it to more flags; raises a ValueError for a model that
            this project does not have.
        write: maps a model's flags and the values of `fields` to more fields.
    """

    name: str
    fields: Mapping[str, tuple[str, Any]]
    architectures: Mapping[str, Sequence[str]]
    scopes: Mapping[str, str]
    prefix: str
    tied_copies: Mapping[str, str]
    transposes: bool = True
    flags: Flags = _NONE
    fixed: Mapping[str, Any] = _NONE
    answers: str = "classifier"
    gelu_tanh: str = "gelu_pytorch_tanh"
    special_tokens: Mapping[str, str] = _NONE
    telling: Sequence[tuple[str, str]] = ()
    lacking: Sequence[tuple[str, str]] = ()
    read: Callable[[Mapping[str, Any], Flags], dict[str, Any]] = lambda config, values: {}
    write: Callable[[Flags, Mapping[str, Any]], dict[str, Any]] = lambda flags, values: {}


class Family(NamedTuple):
    """A model family.

    Attributes:
        name: as --model_family names it.
        description: for the help of --model_family.
        objective: what it is pre-trained on: masked words or, of a decoder, the causal next token.
        pre_norm: whether each sub-layer has its norm before it, where `--norm_position` does not say.
        norm: "layer" or "rms" (arXiv 1910.07467).
        token_types: whether the embedding has a table of token types.
        scales_residual: whether projections into the residual stream begin with smaller weights, as in GPT-2.
        values: by flag, the values that the family takes; of other flags it takes all.
        types: what transformers calls its models.
        defaults: by flag, the value where the command line gives none, if it is not the flag's default.
        norm_shift: whether a norm has a shift beside its scale.
        norms_embedding: whether a pre-norm model has a norm after the embedding instead of before the first attention.
        transforms_for_tasks: whether classifiers read what the masked words' layer and norm make of a token, instead of
            BERT's pooler or of the token itself.
    """

    name: str
    description: str
    objective: str
    pre_norm: bool
    norm: str
    token_types: bool
    scales_residual: bool
    values: Mapping[str, tuple]
    types: Sequence[ModelType]
    defaults: Flags = _NONE
    norm_shift: bool = True
    norms_embedding: bool = False
    transforms_for_tasks: bool = False

    @property
    def is_causal(self) -> bool:
        """Whether each token attends only to itself and to those before it, and the model predicts the next one."""
        return self.objective == CAUSAL


# Flags with the only values that several families take.
ALL_GLOBAL = {"local_attention": (0,), "global_attn_every": (3,), "local_rope_theta": (10_000.0,)}
FIRST_TOKEN = {"classifier_pooling": ("cls",)}
EVEN_HEADS = {"attention_head_size": (None,), "query_key_norm": (False,)}
DECODER = {"next_sentence": (True,), **FIRST_TOKEN}
# The options that BERT and GPT-2 came without.
CLASSIC = {
    "activation": ("gelu", "geglu"),
    "bias": ("all",),
    "num_key_value_heads": (None,),
    "tie_output": (True,),
    **ALL_GLOBAL,
    **EVEN_HEADS,
}
ROTARY = {"norm_position": ("auto", "pre"), "position_embedding": ("rotary",), "use_bias_in_keys": (True,)}
ROTARY_DEFAULTS = {
    **{"bias": "none", "layer_norm_epsilon": 1e-5, "position_embedding": "rotary"},
    **{"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0},
}

_SIZES = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    "max_position_embeddings",
)
QUERY_KEY_VALUE = ("attention/query", "attention/key", "attention/value")


def sizes(*defaults: int | None, theirs: Sequence[str] = _SIZES) -> dict[str, tuple[str, Any]]:
    """Returns the fields of the sizes, which most types call as we do, with a type's defaults; and of the weights."""
    fields = dict(zip(_SIZES, zip(theirs, defaults, strict=True), strict=True))
    return fields | {"initializer_range": ("initializer_range", 0.02)}
