"""What a model family is, as data: the flags it takes, what a model is made of, and its names in transformers."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

Flags = Mapping[str, Any]
_NONE: Flags = MappingProxyType({})
MASKED, CAUSAL = "masked", "causal"


class ModelType(NamedTuple):
    """A model_type of transformers."""

    name: str
    # Our flags, each with the field of config.json, and the field's value if it is left out: what the type's config
    # class in transformers has, or None, which stands for our own flag's default.
    fields: Mapping[str, tuple[str, Any]]
    architectures: Mapping[str, Sequence[str]]  # the classes, the largest first, each with the heads that it has
    scopes: Mapping[str, str]  # the names of the tensors, see `tftrain.formats.links.Names`
    prefix: str  # what base models leave out at the beginning of names
    tied_copies: Mapping[str, str]  # copies of other tensors, by name, that must be equal to them
    transposes: bool = True  # whether kernels are [outputs, inputs]; else they are [inputs, outputs]
    flags: Flags = _NONE  # those that tell the type from the other types of its family
    fixed: Mapping[str, Any] = _NONE  # fields that this project has with one value only, the library's default
    answers: str = "classifier"  # name of the head for question_answering
    sample_classifier: str = "classifier"  # name of the last layer of a classifier of whole examples
    gelu_tanh: str = "gelu_pytorch_tanh"  # name of the tanh approximation
    # Roles of tokens whose ids are in a config.json, by name; those of a decoder are named by its tokenizer.
    special_tokens: Mapping[str, str] = _NONE
    # Scope and leaf of tensors of the first layer that tell it from other types: those it has, and those it lacks.
    telling: Sequence[tuple[str, str]] = ()
    lacking: Sequence[tuple[str, str]] = ()
    # Maps a config.json and the values of `fields` to more flags; a ValueError for a model that this project lacks.
    read: Callable[[Mapping[str, Any], Flags], dict[str, Any]] = lambda config, values: {}
    # Maps a model's flags and the values of `fields` to more fields.
    write: Callable[[Flags, Mapping[str, Any]], dict[str, Any]] = lambda flags, values: {}


class Family(NamedTuple):
    """A model family."""

    name: str  # as --model_family names it
    description: str  # for the help of --model_family
    objective: str  # what it is pre-trained on: masked words or, of a decoder, the causal next token
    values: Mapping[str, tuple]  # by flag, the values that the family takes; of other flags it takes all
    types: Sequence[ModelType]  # what transformers calls its models
    defaults: Flags = _NONE  # by flag, the value where the command line gives none, if it is not the flag's default
    pre_norm: bool = True  # whether each sub-layer has its norm before it, where `--norm_position` does not say
    norm: str = "layer"  # or "rms" (arXiv 1910.07467)
    norm_shift: bool = True  # whether a norm has a shift beside its scale
    token_types: bool = False  # whether the embedding has a table of token types
    first_token_type: bool = False  # whether it has one of which each token has the first row
    first_position: int = 0  # row of the table of positions for the first token, if `first_position` is not given
    scales_residual: bool = True  # whether projections into the residual stream begin with smaller weights, as in GPT-2
    norms_embedding: bool = False  # whether a pre-norm model has a norm after the embedding, not before attention 0
    # Whether classifiers read what the masked words' layer and norm make of a token, instead of BERT's pooler or of the
    # token itself.
    transforms_for_tasks: bool = False
    # The activation of a dense layer that a classifier of examples has, in the place of a pooler of BERT.
    classifier_activation: str = ""
    head_gelu: str = ""  # form of the GeLU of the masked words' layer, if it is not that of the blocks

    @property
    def is_causal(self) -> bool:
        """Whether each token attends only to itself and to those before it, and the model predicts the next one."""
        return self.objective == CAUSAL


# Flags with the only values that several families take.
ALL_GLOBAL = {"local_attention": (0,), "global_attn_every": (3,), "local_rope_theta": (10_000.0,)}
FIRST_TOKEN = {"classifier_pooling": ("cls",)}
POST_NORM = {"norm_position": ("auto", "post"), "position_embedding": ("learned",)}
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
