"""The flags of the model: its family, its task, its sizes, and what its blocks are made of."""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from tftrain.config.fields import flag, implementations
from tftrain.families import DEFAULT, FAMILIES, Family, described
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
_SIZES += ("intermediate_size", "max_position_embeddings", "type_vocab_size")
# Beyond all use, and no part of the help: strangers describe models too, and a layer takes time before it is read.
_LARGEST = {"num_hidden_layers": 10_000, **dict.fromkeys(_SIZES, 1 << 40)}
_ROTARY = {"position_embedding": ("rotary",)}


@dataclass(frozen=True)
class ModelConfig:
    """The model's family and sizes, and what its blocks are made of."""

    ON_RESUME = "fixed"
    LARGEST = _LARGEST

    model_family: str = flag(DEFAULT.name, f"{described()}. docs/families.md has their flags.", choices=tuple(FAMILIES))
    task: str = flag("pretraining", choices=(*TASKS, CLASS))
    """What the output heads learn. pretraining: as model_family says; completion: a decoder continues prompts; the
    others fine-tune an encoder on labelled examples, see docs/finetuning.md; a class of your own, see
    docs/custom_tasks.md."""
    labels: tuple[str, ...] = flag(())
    """Name of a class; repeat the flag for each class, in the order of the outputs. By default the sorted labels of
    train_file."""
    vocab_size: int | None = flag(None, minimum=6)
    """Rows of the token embedding; by default the size of the data's vocabulary."""
    num_hidden_layers: int = flag(12, "Transformer blocks.", minimum=1)
    hidden_size: int = flag(768, "Width of the residual stream.", minimum=1)
    num_attention_heads: int = flag(12, "Attention heads in each block.", minimum=1)
    attention_head_size: int | None = flag(None, minimum=1)
    """Width of an attention head; by default hidden_size / num_attention_heads."""
    num_key_value_heads: int | None = flag(None, minimum=1)
    """Key and value heads, each shared by the same number of query heads (arXiv 2305.13245); by default
    num_attention_heads."""
    intermediate_size: int | None = flag(None, minimum=1)
    """Width of the feed-forward layer; by default 4 x hidden_size."""
    max_position_embeddings: int = flag(512, "Longest sequence that the position embedding holds.", minimum=1)
    position_embedding: str = flag("learned", choices=("learned", "rotary", "alibi"))
    """How the model knows positions. learned: a table; rotary: queries and keys are rotated (arXiv 2104.09864), the
    first half of a head paired with the second, as in GPT-NeoX and Llama; alibi: scores fall with the distance (arXiv
    2108.12409), for any number of heads."""
    rope_theta: float = flag(10_000.0, above=1, restrict=_ROTARY)
    """Base of the wavelengths of rotary positions."""
    rope_scaling: str = flag("none", restrict=_ROTARY)
    """Scaling of rotary positions for longer sequences. llama3:FACTOR,LOW,HIGH,LENGTH: as in Llama 3.1, such as
    llama3:8,1,4,8192."""
    local_attention: int = flag(0, minimum=0)
    """Window of a local layer: a token attends to half as many tokens on each side; 0: every layer is global. By
    default 128 for modernbert."""
    global_attn_every: int = flag(3, minimum=1, maximum=1000)
    """With local_attention: a layer is global if its number, counted from 0, is a multiple of this."""
    local_rope_theta: float = flag(10_000.0, "Base of the wavelengths of rotary positions in local layers.", above=1)
    next_sentence: bool = flag(True)
    """Learn from pairs whether the second text follows the first; false: masked words only."""
    type_vocab_size: int = flag(2, "Token types of bert.", minimum=1)
    norm_position: str = flag("auto", choices=("auto", "post", "pre"))
    """Norm after each residual add or before each sub-layer. auto: post for bert, pre for the others."""
    activation: str = flag("gelu", choices=("gelu", "geglu", "swiglu"))
    """Feed-forward activation; geglu and swiglu (arXiv 2002.05202) have a second, gating projection."""
    gelu_form: str = flag("tanh", choices=("tanh", "erf"))
    """The tanh approximation of GeLU, as in the original BERT, or the exact form with erf."""
    ln_impl: str = flag("auto", choices=IMPLEMENTATIONS, implementation="reference")
    """Norms by the fused op or by plain TensorFlow; auto: fused if the op is built and supports the model."""
    ln_dtype: str = flag("compute", choices=("compute", "fp32"), on_resume="logged")
    """Format of scale and shift of every norm; its statistics are always fp32."""
    attn_impl: str = flag("softmax", choices=("softmax", "flash", "cudnn"), implementation="softmax")
    """softmax: matrix products around the softmax that attn_softmax_impl names. flash: one fused op, which stores no
    tensor of sequence length x sequence length. cudnn: the same by cuDNN; on GPUs, under XLA, in fp16 and bf16, without
    dropout of probabilities."""
    attn_softmax_impl: str = flag("auto", choices=IMPLEMENTATIONS, implementation="reference")
    """Scale, padding mask, softmax and dropout of the attention by one fused op or by plain TensorFlow; auto: as for
    ln_impl. Not used with attn_impl=flash and cudnn."""
    gelu_impl: str = flag("auto", choices=IMPLEMENTATIONS, implementation="reference")
    """Bias and GeLU, GeGLU or SwiGLU by one fused op or by plain TensorFlow; auto: as for ln_impl."""
    dropout_add_impl: str = flag("auto", choices=IMPLEMENTATIONS, implementation="reference")
    """Bias, hidden dropout and residual add by one fused op or by plain TensorFlow; auto: as for ln_impl."""
    query_key_norm: bool = flag(False)
    """Norm of each head's queries and keys, before their rotation, as in Qwen3 (arXiv 2302.05442)."""
    classifier_pooling: str = flag("cls", choices=("cls", "mean"))
    """What the classifier of an example reads: its first token, or the mean of its tokens, as in the published
    ModernBERT."""
    bias: str = flag("all", choices=("all", "query_key_value", "none"))
    """Biases of the blocks: in all dense layers, in those of queries, keys and values as in Qwen2, or in none."""
    use_bias_in_keys: bool = flag(True)
    """Bias in the key projection; it costs a little and has no effect, because the softmax cancels it."""
    hidden_dropout_prob: float = flag(0.1, minimum=0, below=1, on_resume="named")
    """Dropout after the embeddings and after each sub-layer."""
    attention_probs_dropout_prob: float = flag(0.1, minimum=0, below=1, on_resume="named")
    """Dropout on the attention probabilities."""
    initializer_range: float = flag(0.02, above=0, on_resume="named")
    """Standard deviation of the truncated normal initial weights."""
    layer_norm_epsilon: float = flag(1e-12, "Added to the variance in every norm.", above=0)
    tie_output: bool = flag(True)
    """Use the token embedding as output layer too; false: the output layer has its own table."""

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
        return self.reads_examples and not self.is_causal

    @property
    def predicts_samples(self) -> bool:
        """Whether the head of a fine-tuned task reads an example as one vector; else each token, or there is none."""
        return self.task in ("classification", "multi_label", "regression")

    @property
    def compares_samples(self) -> bool:
        """Whether the loss compares the samples of a micro-batch, so that `micro_batch_size` is a part of the loss."""
        return self.task == "embedding"

    @property
    def outputs(self) -> int:
        """Numbers that the head of a fine-tuned model gives: for an example or, of some tasks, for each token."""
        fixed = {"regression": 1, "question_answering": 2, "embedding": 0}
        return fixed.get(self.task, len(self.labels))

    @property
    def objective(self) -> str:
        """What the family trains on: "masked" or "causal", as `--objective` of tftrain.prepare."""
        return self.family.objective

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


# Fused ops, and the flags that choose between each and plain TensorFlow. attn_impl is no such flag: its cores differ in
# what they keep.
FUSED_OPS = {
    name.removesuffix("_impl").removeprefix("attn_"): name
    for name in implementations(ModelConfig)
    if getattr(ModelConfig, name) == "auto"
}
