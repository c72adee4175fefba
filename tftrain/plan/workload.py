"""What is to be run: a model, its batch, its levers and how ranks divide it; the same for every software system."""

import math
from typing import NamedTuple

from tftrain.config import TrainConfig
from tftrain.number_formats import ITEM_BYTES

SYNTHETIC_LENGTH = 128
BERT_VOCAB = 30522
LEVERS = {
    "ln": "ln_impl",
    "softmax": "attn_softmax_impl",
    "gelu": "gelu_impl",
    "dropout_add": "dropout_add_impl",
}


class Workload(NamedTuple):
    """A training job.

    Attributes:
        family: whose code, which says what is kept: megatron, encoder (a published trainer) or tftrain.
        causal: a decoder that predicts every token, or an encoder that predicts `predictions` masked ones.
        layers, hidden, heads, inner, vocab: sizes of the model; `inner` is the width of the feed-forward layer.
        seq: tokens of a sample.
        positions: rows of the position embedding.
        predictions: positions of a sample that get logits.
        gated: the feed-forward layer has a second projection (GeGLU).
        key_bias: the key projection has a bias.
        precision: fp32, fp16 or bf16 of weights and activations; behind 16 bits there are fp32 master weights.
        micro_batch, global_batch: samples of a forward pass on one model replica, and of an update.
        dp, tp, pp: data, tensor and pipeline parallel ranks.
        zero_stage: 0 to 3 (arXiv 1910.02054).
        split_strategy: even, naive or greedy:K, see `tftrain.parallel_config.ParallelConfig`.
        checkpointing: none, selective or full.
        fused: which ops are fused: of ln, softmax, gelu, dropout_add, optimizer.
        hidden_dropout, attention_dropout: whether there is any.
        accumulation: number format of the sums over micro-batches; "" where there are none.
        wire: number format of gradients between ranks.
        compiled: XLA compiles the step.
        checkpoint_copy: ranks keep a copy of the state for checkpoints, in the memory that counts.
        grappler: its memory optimization where it has an effect, see the flag memory_optimization; or none.
    """

    family: str
    causal: bool
    layers: int
    hidden: int
    heads: int
    inner: int
    vocab: int
    seq: int
    positions: int
    predictions: int
    micro_batch: int
    global_batch: int
    precision: str = "fp32"
    dp: int = 1
    tp: int = 1
    pp: int = 1
    zero_stage: int = 0
    split_strategy: str = "even"
    checkpointing: str = "none"
    fused: frozenset[str] = frozenset()
    gated: bool = False
    key_bias: bool = True
    hidden_dropout: bool = False
    attention_dropout: bool = False
    accumulation: str = ""
    wire: str = "fp32"
    compiled: bool = False
    checkpoint_copy: bool = False
    grappler: str = "default"

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.dp * self.tp * self.pp

    @property
    def micro_batches(self) -> float:
        """Forward passes of a model replica in one update."""
        return self.global_batch / (self.dp * self.micro_batch)

    @property
    def item(self) -> int:
        """Bytes of an activation's or a weight's number."""
        return ITEM_BYTES[self.precision]

    def replaced(self, **changes) -> "Workload":
        """Returns this workload with other values."""
        return self._replace(**changes)


def zero_stages(dp: int, pp: int) -> tuple[int, ...]:
    """Returns the ZeRO stages that do something for so many data parallel ranks and pipeline stages.

    Under a pipeline, gradients add up over its micro-batches and are whole until the last, and so are weights.
    """
    if dp == 1:
        return (0,)
    return (0, 1) if pp > 1 else (0, 1, 2, 3)


def from_config(
    config: TrainConfig, dp: int, pp: int = 1, zero_stage: int | None = None, causal: bool = False, gpu: bool = True
) -> Workload:
    """Returns what a run's configuration amounts to.

    Args:
        config: with resolved batch sizes; sizes that the data would give are BERT's vocabulary of 30522 and the
            defaults of synthetic data.
        dp, pp: data and pipeline parallel ranks.
        zero_stage: 0 to 3; None for what split_opt_state and split_grad_accum say.
        causal: a decoder that predicts every token.
        gpu: where jit_compile=auto compiles, and the host's memory does not count.
    """
    model, data, compute, parallel, batch = config.model, config.data, config.compute, config.parallel, config.batch
    seq = data.max_seq_length or SYNTHETIC_LENGTH
    predictions = data.max_predictions_per_seq or max(1, math.ceil(seq * data.masked_lm_prob))
    fused = {op for op, lever in LEVERS.items() if getattr(model, lever) != "reference"}  # auto: as if built
    optimizer = {"optimizer"} if config.optimizer.optimizer.startswith("fused") else set()
    if zero_stage is None:
        zero_stage = 2 if parallel.split_grad_accum else int(parallel.split_opt_state)
    # A decoder's system adds gradients up in the buffer that they have anyway; here the sums are tensors of their own.
    sums = batch.grad_accum_dtype if batch.grad_accum_steps > 1 and not causal else ""
    jit = compute.jit_compile == "true" or (compute.jit_compile == "auto" and gpu)
    return Workload(
        family="megatron" if causal else "tftrain",
        causal=causal,
        layers=model.num_hidden_layers,
        hidden=model.hidden_size,
        heads=model.num_attention_heads,
        inner=model.feed_forward_size,
        vocab=model.vocab_size or BERT_VOCAB,
        seq=seq,
        positions=model.max_position_embeddings,
        predictions=seq if causal else predictions,
        micro_batch=batch.micro_batch_size,
        global_batch=batch.global_batch_size,
        precision=compute.precision,
        dp=dp,
        tp=parallel.tensor_parallel_size,
        pp=pp,
        zero_stage=zero_stage if dp > 1 else 0,  # One rank has nobody to split with.
        split_strategy=parallel.state_split_strategy,
        checkpointing=compute.activation_checkpointing,
        fused=frozenset(fused | optimizer),
        gated=model.activation == "geglu",
        key_bias=model.use_bias_in_keys,
        hidden_dropout=model.hidden_dropout_prob > 0,
        attention_dropout=model.attention_probs_dropout_prob > 0,
        accumulation=sums,
        wire="fp16" if compute.hvd_fp16_compression else "fp32",
        compiled=jit and gpu,  # On a CPU, XLA runs what it fuses on one core, and gains nothing.
        checkpoint_copy=config.run.keeps_copy and not gpu,
        grappler="none" if jit or compute.suppress_grappler else compute.memory_optimization,
    )
