"""The flags of the model: its family, its task, its sizes, and what its blocks are made of."""

import math
from collections.abc import Collection
from dataclasses import dataclass, fields, replace

from tftrain.config.fields import flag, implementations
from tftrain.families import ALIKE, COUNTING, DEFAULT, FAMILIES, Family, described
from tftrain.host.user_code import CLASS, is_class_name

TASKS = (
    "pretraining",
    "classification",
    "multi_label",
    "regression",
    "token_classification",
    "question_answering",
    "embedding",
    "completion",
)
WITH_CLASSES = ("classification", "multi_label", "token_classification")
IMPLEMENTATIONS = ("auto", "fused", "reference")
# The head sizes that attn_impl takes: multiples of the first number up to the second. For cudnn, those that every GPU
# from compute capability 8.0 on takes.
HEAD_SIZES = {"flash": (8, 256), "cudnn": (8, 128)}
_SIZES = ("vocab_size", "hidden_size", "num_attention_heads", "attention_head_size", "num_key_value_heads")
_SIZES += ("intermediate_size", "max_position_embeddings", "type_vocab_size", "first_position", "embedding_dense")
# Beyond all use, and no part of the help: strangers describe models too, and a layer takes time before it is read.
_LARGEST = {"num_hidden_layers": 10_000, **dict.fromkeys(_SIZES, 1 << 40)}
_ROTARY = {"position_embedding": ("rotary",)}
_VECTORS = {"task": ("embedding",)}


@dataclass(frozen=True)
class ModelConfig:
    """The model's family and sizes, and what its blocks are made of."""

    ON_RESUME = "fixed"
    LARGEST = _LARGEST

    model_family: str = flag(DEFAULT.name, f"Family of the model. {described()}.", choices=tuple(FAMILIES), common=True)
    task: str = flag("pretraining", choices=(*TASKS, CLASS), common=True)
    """Task that the model learns. pretraining: what the family learns. completion: a decoder continues prompts.
    embedding: vectors of texts. The others fine-tune an encoder: python -m tftrain docs finetuning. MODULE:CLASS: your
    own task."""
    labels: tuple[str, ...] = flag(())
    """Name of a class; repeat the flag in the order of the outputs. By default the sorted labels of --train_file."""
    vocab_size: int | None = flag(None, "Rows of the token embedding; by default the vocabulary's size.", minimum=6)
    num_hidden_layers: int = flag(12, "Transformer blocks.", minimum=1, common=True)
    hidden_size: int = flag(768, "Width of the residual stream.", minimum=1, common=True)
    num_attention_heads: int = flag(12, "Attention heads in each block.", minimum=1, common=True)
    attention_head_size: int | None = flag(None, minimum=1)
    """Width of an attention head; by default --hidden_size / --num_attention_heads."""
    num_key_value_heads: int | None = flag(None, minimum=1)
    """Key and value heads, which query heads share equally (arXiv 2305.13245); by default --num_attention_heads."""
    intermediate_size: int | None = flag(None, "Width of feed-forward layers; by default 4 x --hidden_size.", minimum=1)
    max_position_embeddings: int = flag(512, "Longest sequence that the position embedding holds.", minimum=1)
    first_position: int | None = flag(None, minimum=1, restrict={"model_family": COUNTING})
    """Row of the position embedding for the first token. By default the padding's id + 1; 2 without a tokenizer."""
    position_embedding: str = flag("learned", choices=("learned", "rotary", "alibi"))
    """How the model knows positions. learned: a table. rotary: queries and keys are rotated (arXiv 2104.09864), as in
    GPT-NeoX and Llama. alibi: scores fall with the distance (arXiv 2108.12409), for any number of heads."""
    rope_theta: float = flag(10_000.0, "Base of the wavelengths of rotary positions.", above=1, restrict=_ROTARY)
    rope_scaling: str = flag("none", restrict=_ROTARY)
    """Scaling of rotary positions. none: no scaling. llama3:FACTOR,LOW,HIGH,LENGTH: as in Llama 3.1 (8,1,4,8192)."""
    local_attention: int = flag(0, minimum=0)
    """Window of a local layer, in tokens, half on each side; 0: no local layers. By default 128 for modernbert."""
    global_attn_every: int = flag(3, minimum=1, maximum=1000)
    """With --local_attention, a layer is global if its number, counted from 0, is a multiple of this."""
    local_rope_theta: float = flag(10_000.0, "Base of the wavelengths of rotary positions in local layers.", above=1)
    next_sentence: bool = flag(True, "Learn from pairs whether the second text follows the first.")
    type_vocab_size: int = flag(2, minimum=1)
    """Rows of the table of token types. All tokens have the first type in roberta, whose default is 1."""
    norm_position: str = flag("auto", choices=("auto", "post", "pre"))
    """Place of the norms. post: after each residual add, as in bert. pre: before each sub-layer. auto: the family's."""
    activation: str = flag("gelu", choices=("gelu", "geglu", "swiglu"))
    """Activation of the feed-forward layer. geglu and swiglu (arXiv 2002.05202) have a second, gating projection."""
    gelu_form: str = flag("tanh", choices=("tanh", "erf"))
    """Form of GeLU. tanh: the approximation, as in the original BERT. erf: the exact form."""
    ln_impl: str = flag("auto", choices=IMPLEMENTATIONS, implementation="reference")
    """Norms. fused: one fused op. reference: plain TensorFlow. auto: fused if the op is built and fits the model."""
    ln_dtype: str = flag("compute", choices=("compute", "fp32"), on_resume="logged")
    """Format of scale and shift of every norm. compute: as --precision. The statistics of a norm are always fp32."""
    attn_impl: str = flag("softmax", choices=("softmax", "flash", "cudnn", "auto"), implementation="softmax")
    """Attention core. softmax: matrix products around --attn_softmax_impl. flash: one fused op, which stores no matrix
    of probabilities. cudnn: the same by cuDNN, on GPUs with XLA, in fp16 and bf16, without attention dropout. auto: the
    fastest that flags and device allow."""
    attn_softmax_impl: str = flag("auto", choices=IMPLEMENTATIONS, implementation="reference")
    """Scale, mask, softmax and dropout of --attn_impl=softmax: a fused op or plain TensorFlow, as for --ln_impl."""
    gelu_impl: str = flag("auto", choices=IMPLEMENTATIONS, implementation="reference")
    """Bias and GeLU, GeGLU or SwiGLU: a fused op or plain TensorFlow, as for --ln_impl."""
    dropout_add_impl: str = flag("auto", choices=IMPLEMENTATIONS, implementation="reference")
    """Bias, hidden dropout and residual add: a fused op or plain TensorFlow, as for --ln_impl."""
    query_key_norm: bool = flag(False, "Norm of each head's queries and keys, as in Qwen3 (arXiv 2302.05442).")
    classifier_pooling: str = flag("cls", choices=("cls", "mean"))
    """Input of the classifier. cls: the first token. mean: the mean of all tokens, as in the published ModernBERT."""
    pooling: str = flag("auto", choices=("auto", "mean", "cls", "last", "max"), restrict=_VECTORS)
    """How --task=embedding makes one vector of a text's hidden states. mean, max: over all tokens. cls, last: the first
    or the last token. auto: last for a decoder, else mean."""
    embedding_dense: int = flag(0, "Numbers of a dense layer after --pooling; 0: none.", minimum=0, restrict=_VECTORS)
    embedding_activation: str = flag("tanh", choices=("tanh", "identity"), restrict=_VECTORS)
    """Activation of --embedding_dense."""
    normalize_embeddings: bool = flag(True, restrict=_VECTORS)
    """Give vectors the length 1, so that their products are cosines; else texts are compared by plain products."""
    text_prompt: str = flag("", "Text before each text of the first column.", restrict=_VECTORS)
    text_pair_prompt: str = flag("", "Text before each text of the other columns.", restrict=_VECTORS)
    pool_prompt: bool = flag(True, "Pool the tokens of a prompt too.", restrict=_VECTORS)
    bias: str = flag("all", choices=("all", "query_key_value", "none"))
    """Dense layers with a bias: all; queries, keys and values (query_key_value), as in Qwen2; or none."""
    use_bias_in_keys: bool = flag(True)
    """Have a bias in the key projection. It costs a little and has no effect, because the softmax cancels it."""
    hidden_dropout_prob: float = flag(0.1, minimum=0, below=1, on_resume="named")
    """Dropout after the embeddings and after each sub-layer."""
    attention_probs_dropout_prob: float = flag(0.1, minimum=0, below=1, on_resume="named")
    """Dropout on the attention probabilities, rounded to a multiple of 1/256."""
    initializer_range: float = flag(0.02, "Standard deviation of initial weights.", above=0, on_resume="named")
    layer_norm_epsilon: float = flag(1e-12, "Number that is added to the variance in every norm.", above=0)
    tie_output: bool = flag(True, "Use the token embedding as output layer too; false: it has its own table.")
    model_type: str | None = flag(None, choices=tuple(sum(ALIKE.values(), ())), restrict={"model_family": tuple(ALIKE)})
    """Type of transformers that tftrain.convert writes; by default roberta. It changes no result."""

    def with_family_defaults(self, named: Collection[str]) -> "ModelConfig":
        """Returns this configuration with the family's own defaults in the place of those of the flags."""
        return replace(self, **{name: value for name, value in self.family.defaults.items() if name not in named})

    @property
    def family(self) -> Family:
        """The family; the default one for a name that is refused."""
        return FAMILIES.get(self.model_family, DEFAULT)

    @property
    def is_causal(self) -> bool:
        """Whether each token attends only to itself and to those before it, and the model predicts the next one."""
        return self.family.is_causal

    @property
    def reads_examples(self) -> bool:
        """Whether the task learns from labelled examples, those of the flags of fine-tuning."""
        return self.task != "pretraining"

    @property
    def is_custom(self) -> bool:
        """Whether the task is a class of the user's."""
        return is_class_name(self.task)

    @property
    def is_fine_tuned(self) -> bool:
        """Whether the model has the head of a task in the place of those of its pre-training."""
        return self.reads_examples and (not self.is_causal or self.gives_vectors)

    @property
    def predicts_samples(self) -> bool:
        """Whether the head of a fine-tuned task reads an example as one vector; else each token, or there is none."""
        return self.task in ("classification", "multi_label", "regression")

    @property
    def gives_vectors(self) -> bool:
        """Whether the model gives a vector of each text."""
        return self.task == "embedding"

    @property
    def vector_size(self) -> int:
        """Numbers of a vector of a text."""
        return self.embedding_dense or self.hidden_size

    @property
    def text_pooling(self) -> str:
        """How a text's hidden states become one vector: `pooling`, or what auto stands for."""
        return ("last" if self.is_causal else "mean") if self.pooling == "auto" else self.pooling

    def prompt(self, column: int) -> str:
        """Returns the text before each text of a column, counted from 0."""
        return self.text_pair_prompt if column else self.text_prompt

    @property
    def outputs(self) -> int:
        """Numbers that the head of a fine-tuned model gives: for an example or, of some tasks, for each token."""
        return {"regression": 1, "question_answering": 2, "embedding": 0}.get(self.task, len(self.labels))

    @property
    def objective(self) -> str:
        """What the family trains on: "masked" or "causal", as `--objective` of tftrain.prepare."""
        return self.family.objective

    @property
    def first_row(self) -> int:
        """Row of the position embedding for the first token."""
        return self.family.first_position if self.first_position is None else self.first_position

    @property
    def longest_sequence(self) -> float:
        """Most tokens of a sequence; infinite without a table of positions."""
        return self.max_position_embeddings if self.position_embedding == "learned" else math.inf

    @property
    def feed_forward_size(self) -> int:
        """Width of the feed-forward layer: `intermediate_size`, or 4 x `hidden_size`."""
        return self.intermediate_size or 4 * self.hidden_size

    @property
    def head_size(self) -> int:
        """Width of one attention head: `attention_head_size`, or `hidden_size` / `num_attention_heads`."""
        return self.attention_head_size or self.hidden_size // self.num_attention_heads

    @property
    def key_value_heads(self) -> int:
        """Heads of keys and values: `num_key_value_heads`, or `num_attention_heads`."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def without_fused_op(self) -> dict[str, str]:
        """The flags of ops that can only be in plain TensorFlow, each with the part of the model that is the reason."""
        return {} if self.bias == "all" else {"dropout_add_impl": "a residual add without bias"}


# The flags of vectors, for --task=embedding alone.
VECTOR_FLAGS = tuple(each.name for each in fields(ModelConfig) if each.metadata["restrict"] == _VECTORS)
# Fused ops, and the flags that choose between each and plain TensorFlow. attn_impl is no such flag: its cores differ in
# what they keep.
FUSED_OPS = {
    name.removesuffix("_impl").removeprefix("attn_"): name
    for name in implementations(ModelConfig)
    if getattr(ModelConfig, name) == "auto"
}
