"""A workload: a model, its batch, its levers and its division among ranks, as this trainer runs it."""

import dataclasses
from typing import Any, NamedTuple

from tftrain.architecture.architecture import Architecture
from tftrain.architecture.describe import describe, pretrained
from tftrain.architecture.flops import head_in_layers, kernels_of_block
from tftrain.config.layer_split import most_segments, split_layers
from tftrain.config.model import FUSED_OPS, ModelConfig
from tftrain.config.optimizer import UPDATE_RULES
from tftrain.config.parallel import ParallelConfig
from tftrain.config.train import TrainConfig
from tftrain.data.sizes import example_length, synthetic
from tftrain.host.units import ITEM_BYTES

# The flags of a layout, which a search chooses: of the ranks, of the ZeRO stages from 1, and of the passes. Those of
# ranks and passes are by what they are called in a workload.
RANKS = {
    "tp": "tensor_parallel_size", "sequence_parallel": "sequence_parallel", "pp": "pipeline_parallel_size",
    "schedule": "pipeline_schedule", "chunks": "virtual_pipeline_size",
}  # fmt: skip
SPLITS = ("split_opt_state", "split_grad_accum", "split_weights")
PASSES = {
    "micro_batch": "micro_batch_size", "micro_batches": "grad_accum_steps", "checkpointing": "activation_checkpointing",
    "core": "attn_impl",
}  # fmt: skip
LAYOUT = (*RANKS.values(), *SPLITS, *PASSES.values())


class Workload(NamedTuple):
    """A training job; subclasses in `tftrain.bench.published` are jobs of other software and say what differs there."""

    model: Architecture  # what is trained
    seq: int  # tokens of a sequence
    predictions: int  # positions of a sequence that have logits
    micro_batch: int  # samples of a forward pass on one model replica
    global_batch: int  # samples of an update
    sequences: int = 1  # sequences of a sample, each of which the model reads by itself
    compares: bool = False  # whether the loss compares all samples of the global batch, by a vector of each sequence
    scorings: int = 1  # times that the loss has a score of each sample with the texts of all others
    precision: str = "fp32"  # fp32, fp16 or bf16 weights and activations; 16-bit weights have fp32 master weights
    dp: int = 1  # data parallel ranks
    tp: int = 1  # tensor parallel ranks
    pp: int = 1  # pipeline parallel ranks
    schedule: str = "1f1b"  # order of a pipeline's passes: the value of pipeline_schedule
    chunks: int = 1  # runs of layers on each stage: the value of virtual_pipeline_size
    sequence_parallel: bool = False  # whether tensor parallel ranks divide norms, dropout, residuals (arXiv 2205.05198)
    division: tuple[int, ...] = ()  # layers of each part of the pipeline; empty: equal parts
    zero_stage: int = 0  # 0 to 3 (arXiv 1910.02054)
    split_devices: int = 0  # devices of a host, if only its ranks partition a state, see `split_group`; 0: all ranks do
    prefetch: int = 1  # blocks whose weights ZeRO-3 gathers ahead
    split_strategy: str = "even"  # even, naive or greedy:K, see `tftrain.config.parallel.ParallelConfig`
    checkpointing: str = "none"  # none, selective or full
    core: str = "softmax"  # the attention core, as in attn_impl, but never auto; all others keep the tensors of flash
    fused: frozenset[str] = frozenset()  # fused ops: ln, softmax, gelu, dropout_add, optimizer, cross_entropy
    hidden_dropout: bool = False  # whether there is dropout
    attention_dropout: bool = False  # likewise
    accumulation: str = ""  # number format of gradients summed over micro-batches; "" without a buffer for them
    wire: str = "fp32"  # number format of gradients between ranks; own: bf16 if they are, else fp32
    compiled: bool = False  # whether XLA compiles the step
    segments: int = 1  # parts of the backward pass, see `backward_segments`; 0: as many as the trainer chooses
    moments: float = 2  # fp32 moments that the update rule has for each weight, on average
    orthogonal: bool = False  # whether the update rule makes the updates of the blocks' kernels orthogonal
    checkpoint_copies: int = 0  # copies of the state that a rank saves, in device memory
    grappler: str = "default"  # the value of the flag memory_optimization where it has an effect, else none
    gpu: bool = False  # whether the device is a GPU

    # In what other software differs.
    runs_here = True  # whether tftrain.run can start it, so that its layouts have commands
    copies_table = True  # whether the last pipeline stage has the weights, but no state, of a tied token embedding
    # Whether shards of the fp32 weights, which are the masters, and of the gradients are all that a rank keeps.
    sharded_masters = property(lambda work: work.zero_stage == 3)
    gathers_blocks = property(lambda work: work.zero_stage == 3)  # whether blocks gather weights one after the other
    # Whether a rank computes all gradients of a micro-batch; what the process once held stays with it.
    whole_gradients = property(lambda work: work.zero_stage < 3)
    # Whether the update has fp32 copies of 16-bit gradients; a rank without data parallel ones reads them.
    widens_gradients = property(lambda work: work.precision != "fp32" and work.dp > 1)
    # Whether gradients are reduced to the owners of their state alone, not summed for all ranks.
    sums_to_owners = property(lambda work: work.zero_stage > 0)
    # Whether the state of a whole tensor has one owner.
    owns_tensors = property(lambda work: work.zero_stage > 0 and (work.split_strategy != "even" or work.orthogonal))

    @property
    def ranks(self) -> int:
        """Number of all ranks."""
        return self.dp * self.tp * self.pp

    @property
    def owners(self) -> int:
        """Number of the data parallel ranks that partition a state; 1 if none do."""
        of_host = max(1, self.split_devices // self.tp) if self.split_devices else self.dp
        return min(self.dp, of_host) if self.zero_stage else 1

    def layers_of(self, stage: int) -> float:
        """Returns the layers of a pipeline stage."""
        return float(sum(self.division[stage :: self.pp])) if self.division else self.model.layers / self.pp

    @property
    def layers_of_parts(self) -> tuple[float, ...]:
        """Layers of each part of the pipeline: part number chunk * stages + stage."""
        return self.division or (self.model.layers / (self.pp * self.chunks),) * (self.pp * self.chunks)

    @property
    def backward_segments(self) -> int:
        """Parts of the backward pass, whose gradients travel while the next ones are computed."""
        if self.dp == 1 or self.tp * self.pp > 1:
            return 1
        return self.segments or most_segments(self.model.layers, self.model.parameters)

    @property
    def stream_ranks(self) -> int:
        """Number of tensor parallel ranks that divide the residual stream."""
        return self.tp if self.sequence_parallel else 1

    @property
    def micro_batches(self) -> float:
        """Micro-batches of a model replica in one update."""
        return self.global_batch / (self.dp * self.micro_batch)

    @property
    def has_two_passes(self) -> bool:
        """Whether a pass without gradients over all micro-batches precedes that with them, to compare samples."""
        return self.compares and self.micro_batches > 1

    @property
    def vector_bytes(self) -> float:
        """Bytes of the vectors of a rank's share of the global batch, in fp32, if samples are compared."""
        return 4.0 * self.global_batch / self.dp * self.sequences * self.model.config.vector_size * self.compares

    @property
    def rows(self) -> int:
        """Sequences of a forward pass on one model replica."""
        return self.micro_batch * self.sequences

    @property
    def tokens(self) -> int:
        """Tokens of an update, padding included."""
        return self.global_batch * self.sequences * self.seq

    @property
    def item(self) -> int:
        """Bytes of one activation or one weight."""
        return ITEM_BYTES[self.precision]

    @property
    def gradient_sums(self) -> float:
        """Sums of all gradients over data parallel ranks in an update."""
        return 0.0 if self.dp == 1 else self.micro_batches if self.zero_stage == 2 else 1.0

    @classmethod
    def adapted(cls, work: "Workload", zero_stage: int | None) -> "Workload":
        """Returns a workload of this trainer as one of this class; `zero_stage` is that of other software."""
        return work

    def stage_flags(self, current: ParallelConfig) -> dict[str, Any]:
        """Returns the flags of the ZeRO stage; a stage implies those below it, whose flags may be given beside it."""
        stage = self.zero_stage
        return {flag: stage == n or (stage > n and getattr(current, flag)) for n, flag in enumerate(SPLITS, start=1)}


def zero_stages(dp: int, pp: int) -> tuple[int, ...]:
    """Returns the ZeRO stages that have an effect with so many data parallel ranks and pipeline stages.

    A pipeline sums gradients over its micro-batches, so gradients and weights stay whole until the last micro-batch.
    """
    return (0,) if dp == 1 else (0, 1) if pp > 1 else (0, 1, 2, 3)


def update_rule(optimizer: str) -> str:
    """Returns the update rule of a value of --optimizer, such as lamb of fused_lamb."""
    return optimizer.removeprefix("fused_").removeprefix("reference_")


def reference_optimizer(rule: str) -> str:
    """Returns the value of --optimizer that runs an update rule in plain TensorFlow; another value as it is."""
    return f"reference_{rule}" if rule in UPDATE_RULES and UPDATE_RULES[rule].has_fused else rule


def reference_levers() -> dict[str, str]:
    """Returns the flags, with their values, that run every op and LAMB in plain TensorFlow."""
    return {**dict.fromkeys(FUSED_OPS.values(), "reference"), "optimizer": reference_optimizer("lamb")}


def fused_ops(model: ModelConfig, optimizer: str) -> frozenset[str]:
    """Returns the ops that no flag forces to plain TensorFlow; they run fused if the op library is built."""
    able = {op: lever for op, lever in FUSED_OPS.items() if lever not in model.without_fused_op}
    fused = {op for op, lever in able.items() if getattr(model, lever) != "reference"}
    rule = update_rule(optimizer)
    plain = optimizer in (f"reference_{rule}", reference_optimizer(rule))
    return frozenset(fused if plain else {*fused, "optimizer"})


def from_config(config: TrainConfig, dp: int, gpu: bool = True, per_node: int = 0) -> Workload:
    """Returns the workload of a run's configuration, whose batch sizes are resolved.

    Args:
        config: sizes that the data would give are the defaults of synthetic data.
        dp: data parallel ranks.
        gpu: whether the device is a GPU; then jit_compile=auto may compile, and host memory is not counted.
        per_node: devices of a host, if the ranks are on several hosts.
    """
    model, compute, parallel, batch, data = config.model, config.compute, config.parallel, config.batch, config.data
    if model.reads_examples:
        data = dataclasses.replace(data, max_seq_length=example_length(data, model))
    vocab, seq, masked = synthetic(data, model.vocab_size, model.objective)
    predictions = 0 if model.is_fine_tuned else masked  # The head of a task has no logits of words.
    jit = config.compiles(gpu)
    architecture = describe(dataclasses.replace(model, vocab_size=vocab))
    rule = update_rule(config.optimizer.optimizer)
    head = head_in_layers(pretrained(architecture.config), seq, predictions)
    work = Workload(
        model=architecture,
        seq=seq,
        predictions=predictions,
        micro_batch=batch.micro_batch_size,
        global_batch=batch.global_batch_size,
        sequences=2 + (config.fine_tuning.negatives or 0) if model.task == "embedding" else 1,  # a custom task: unknown
        compares=config.fine_tuning.compares_samples(model.task),
        scorings=config.fine_tuning.scorings(model.vector_size),
        precision=compute.precision,
        dp=dp,
        **{name: getattr(parallel, flag) for name, flag in RANKS.items()},
        division=_division(parallel, model.num_hidden_layers, head),
        zero_stage=parallel.zero_stage,
        split_devices=per_node if parallel.split_group == "host" else 0,
        prefetch=parallel.prefetch_blocks,
        split_strategy=parallel.state_split_strategy,
        checkpointing=compute.activation_checkpointing,
        core=config.attention(gpu).core,
        fused=fused_ops(model, config.optimizer.optimizer),
        hidden_dropout=model.hidden_dropout_prob > 0,
        attention_dropout=model.attention_probs_dropout_prob > 0,
        accumulation=batch.grad_accum_dtype if batch.grad_accum_steps > 1 else "",
        wire=compute.wire,
        segments=parallel.backward_segments or int(not jit),
        compiled=jit and gpu,  # On a CPU, XLA runs fused ops on one core and gains nothing.
        moments=_moments(rule, architecture) + (config.optimizer.ema_decay > 0),  # The average is one more.
        orthogonal=rule == "muon",
        checkpoint_copies=0 if gpu else config.checkpoint.copies(config.run.max_steps),
        grappler="none" if jit or compute.suppress_grappler else compute.memory_optimization,
        gpu=gpu,
    )
    return work if work.owners > 1 else work._replace(zero_stage=0)  # One rank partitions nothing.


def _moments(rule: str, model: Architecture) -> float:
    """Returns the moments that an update rule has for each weight, on average."""
    slots, of_kernels = (len(each) for each in (UPDATE_RULES[rule].slots, UPDATE_RULES[rule].slots_of_kernels))
    if not of_kernels:
        return slots
    kernels = model.layers * sum(rows * columns for rows, columns in kernels_of_block(model))
    return slots - (slots - of_kernels) * kernels / model.parameters


def _division(parallel: ParallelConfig, layers: int, head: float) -> tuple[int, ...]:
    """Returns the layers of each part of a pipeline; none if all have as many, so that a search may divide again.

    `head` is the work of the output heads, counted in layers.
    """
    stages, chunks = parallel.pipeline_parallel_size, parallel.virtual_pipeline_size
    if stages * chunks > layers:
        return ()
    layers_of_parts = split_layers(layers, stages, chunks, parallel.pipeline_split, head)
    return layers_of_parts if len(set(layers_of_parts)) > 1 else ()
