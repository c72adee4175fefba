"""The flags of `tftrain.run` for a published row, and a note on what the flags cannot express."""

from tftrain.architecture.describe import configuration
from tftrain.bench.published.rows import Published
from tftrain.config.model import FUSED_OPS
from tftrain.plan.workload import Workload, reference_optimizer

DROPOUT = 0.1
# The flags that say what model it is.
STRUCTURE = (
    *("model_family", "num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size"),
    *("max_position_embeddings", "norm_position", "activation", "use_bias_in_keys"),
)
DECODER_OPTIMIZER, ENCODER_OPTIMIZER = "fused_adamw", "lamb"


def run_flags(work: Workload, published: Published) -> list[str]:
    """Returns the flags of a run.

    Args:
        work: its scaled workload; `tftrain.plan.workload.from_config` returns the same workload from these flags.
        published: the row, for levers that a workload does not have.
    """
    levers, model, decoder = published.levers, configuration(work.model), work.model.causal
    optimizer = levers.get("optimizer", DECODER_OPTIMIZER if decoder else ENCODER_OPTIMIZER)
    values = {
        **{name: getattr(model, name) for name in STRUCTURE},
        "max_seq_length": work.seq,
        "hidden_dropout_prob": DROPOUT if work.hidden_dropout else 0,
        "attention_probs_dropout_prob": DROPOUT if work.attention_dropout else 0,
        **{lever: "fused" if op in work.fused else "reference" for op, lever in FUSED_OPS.items()},
        "optimizer": optimizer if optimizer.startswith("fused_") else reference_optimizer(optimizer),
        "micro_batch_size": work.micro_batch,
        "grad_accum_steps": round(work.micro_batches),
        "grad_accum_dtype": work.accumulation or levers.get("grad_accum_dtype", "fp32"),
        "tensor_parallel_size": work.tp,
        "sequence_parallel": work.sequence_parallel,
        "pipeline_parallel_size": work.pp,
        "pipeline_schedule": work.schedule,
        "virtual_pipeline_size": work.chunks,
        "split_opt_state": work.zero_stage >= 1,
        "split_grad_accum": work.zero_stage >= 2,
        "state_split_strategy": work.split_strategy,
        "precision": work.precision,
        "jit_compile": work.compiled,
        "activation_checkpointing": work.checkpointing,
        "memory_optimization": work.grappler,
        "suppress_grappler": levers.get("suppress_grappler", "false"),
        "enable_resource_variables": "true",
        "hvd_fp16_compression": work.wire == "fp16",
        "sparse_as_dense": levers.get("sparse_as_dense", "true"),
    }
    return ["--synthetic_data", *(f"--{name}={str(value).lower()}" for name, value in values.items())]


def note(published: Published, work: Workload) -> str:
    """Returns the differences between row and run, the assumptions, and the source's own note.

    Args:
        published: the row.
        work: its scaled workload.
    """
    whole = published.row.workload
    found = [] if whole.model.causal else _encoder(published, work)
    if whole.model.causal and whole.ranks != work.ranks:
        own, other = (f"dp {each.dp} x tp {each.tp} x pp {each.pp}" for each in (work, whole))
        found.append(f"{own} for {other}: {whole.ranks / work.ranks:.4g} times as many ranks there")
    if whole.dp > 1 and work.dp == 1:
        found.append("no data parallel ranks are left here, so nothing is split over them")
    if published.row.checkpointing_unstated:
        found.append(f"checkpointing is not stated: {whole.checkpointing} assumed")
    if published.row.table == "gpt_launch_blocking":
        found.append("CUDA_LAUNCH_BLOCKING is the environment's, not a flag: rows that differ in it alone are the same")
    found += [f"{what} not stated: assumed" for what in published.assumed]
    return "; ".join([*found, *([f"source: {published.note}"] if published.note else [])])


def _encoder(published: Published, work: Workload) -> list[str]:
    levers, whole = published.levers, published.row.workload
    found = ["resource variables are on in every row: TensorFlow 2 has no others"]
    if "tokenizer_type" in levers:
        found.append("tokenizer_type is a flag of tftrain.prepare: a run's token ids are random and need none")
    if work.compiled and (work.grappler != "none" or "suppress_grappler" in levers):
        found.append("Grappler's settings reach graph mode only, and XLA compiles this row")
    if work.split_strategy != whole.split_strategy:
        found.append(f"{work.split_strategy} of {work.dp} ranks for {whole.split_strategy} of {whole.dp}")
    return found
