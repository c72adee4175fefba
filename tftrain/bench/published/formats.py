"""The formats of published rows: decoders by topology, on CPU nodes and in a sweep; `encoder_format` has encoders.

Values that a format does not state are filled in here, with the reason beside them.
"""

from collections.abc import Callable
from typing import Any

from tftrain.bench.published import encoder_format
from tftrain.bench.published.csv_row import PER_NODE, SIZES, CsvRow
from tftrain.bench.published.row import PublishedRow, Reference
from tftrain.bench.published.software import Fsdp, Megatron
from tftrain.config.fields import changed
from tftrain.config.model import FUSED_OPS
from tftrain.config.parallel import ParallelConfig
from tftrain.config.train import TrainConfig
from tftrain.host.units import ITEM_BYTES, MIB
from tftrain.plan.workload import SPLITS, from_config

GPT2_VOCAB = 50_257  # the sweep states none: see `_sweep`
CPU_VOCAB = 51_200  # reproduces the published TFLOPs
LONGEST_SECONDS = 20_000  # the longest iteration on A64FX; larger figures are milliseconds
TUNED_HOSTS = ("gpt_global_batch", "gpt_low_pp", "gpt_low_tp")  # after the source's fix of PCIe and NUMA settings
FOUNDRY = {
    **{"attn_impl": "flash", "attn_softmax_impl": "reference", "dropout_add_impl": "reference"},
    **{"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
}
# Cluster and system of a card: 1600 Gbit/s between nodes of A100, 3200 between those of H100.
FOUNDRY_CLUSTERS = {
    "a100_40gb": ("a100_40gb_1600gbit", "foundry"),
    "a100_80gb": ("a100_80gb_1600gbit", "foundry"),
    "h100_80gb": ("h100", "foundry_h100"),
}
# Megatron-LM accumulates into the gradients' own buffer, as with one micro-batch.
DECODER = {
    **{"model_family": "gpt", "norm_position": "pre", "optimizer": "fused_adamw", "jit_compile": "false"},
    **{"hvd_fp16_compression": True, "grad_accum_steps": 1, **dict.fromkeys(FUSED_OPS.values(), "fused")},
}


def _decoder(cells: CsvRow, zero_stage: int = 0, **flags: Any) -> TrainConfig:
    """Returns the configuration of a row, with some more flags."""
    sizes = {flag: cells.whole(column) for column, flag in SIZES.items()}
    splits = {flag: number < zero_stage for number, flag in enumerate(SPLITS)}
    sizes["max_position_embeddings"] = sizes["max_seq_length"]
    return changed(TrainConfig(), DECODER | sizes | splits | flags)


def _ranks(parallel: ParallelConfig, dp: int) -> tuple[int, str]:
    """Returns the number of ranks, and its factors in words."""
    tp, pp = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    return dp * tp * pp, f"dp={dp} * tp={tp} * pp={pp}"


def _filling(parallel: ParallelConfig, dp: int, devices: int, factor: bool) -> tuple[int, str]:
    """Returns data parallel ranks for no more ranks than there are devices, and a remark on the change.

    Some published rows (gpt_contenders/12, some of a64fx_30b_scaling) state more data parallel ranks than devices, but
    their TFLOPs are computed with the number of devices. So their plans use the number of devices. Raises a ValueError
    if there are fewer ranks than devices or, with `factor`, if the surplus is not a whole factor.
    """
    ranks, stated = _ranks(parallel, dp)
    if ranks == devices:
        return dp, ""
    fewer, left = divmod(devices, ranks // dp)
    if not fewer or ranks < devices or (factor and (left or dp % fewer)):
        raise ValueError(f"{stated}: expected a product of {devices}, the devices of its nodes")
    return fewer, f"{stated} are more than the {devices} devices of its nodes: planned with dp={fewer}"


def _row(
    cells: CsvRow, config: TrainConfig, dp: int, names: tuple[str, str], reference: Reference, **more: Any
) -> PublishedRow:
    """Returns a row of Megatron-LM; its stages have equal numbers of layers, or equal parts of layers.

    `names` are the names of cluster and system.
    """
    work = Megatron(*from_config(config, dp))._replace(division=(), zero_stage=config.parallel.zero_stage)
    return PublishedRow(cells.text("row"), cells.text("table"), config, work, *names, reference, **more)


def _topology(cells: CsvRow) -> PublishedRow:
    """Megatron-DeepSpeed on A100, with full activation checkpointing in every row, as its TFLOPs formulas count."""
    precision, nodes = cells.choice("precision", tuple(ITEM_BYTES)), cells.whole("nodes")
    # The source sums gradients in fp32.
    flags = {"precision": precision, "activation_checkpointing": "full", "hvd_fp16_compression": False}
    stage = cells.whole("zero_stage", minimum=0, maximum=3)
    config = _decoder(cells, stage, vocab_size=cells.whole("vocab"), **flags)
    reference = Reference(
        cells.memory("max_gb"),
        cells.text("max_gb") == "OOM",
        sec_per_iteration=cells.figure("sec_per_iteration"),
        tflops_per_gpu=cells.figure("tflops_per_gpu"),
    )
    dp, remark = _filling(config.parallel, cells.whole("dp"), PER_NODE * nodes, factor=True)
    system = "megatron_deepspeed_tuned" if cells.text("table") in TUNED_HOSTS else "megatron_deepspeed"
    formula = {"old": "old", "new": "corrected"}[cells.choice("flops_formula", ("old", "new"))]
    return _row(cells, config, dp, ("a100_80gb", system), reference, formula=formula, remark=remark)


def _sweep(cells: CsvRow) -> PublishedRow:
    """Megatron on A100. The rows fit no checkpointing on one node, and selective on many: see docs/planner.md."""
    nodes, gpus = cells.whole("nodes"), cells.whole("gpus")
    checkpointing = "selective" if nodes > 1 else "none"
    # One rank's output layer takes more than twice the time of half of it on each of two ranks. Misaligned rows are as
    # slow, so one rank has GPT-2's vocabulary unpadded. Several ranks need it padded, as Megatron pads it.
    tp = cells.whole("tp")
    vocab = cells.whole("vocab", GPT2_VOCAB if tp == 1 else -(-GPT2_VOCAB // (128 * tp)) * 128 * tp)
    precision = cells.choice("precision", tuple(ITEM_BYTES))
    config = _decoder(cells, vocab_size=vocab, precision=precision, activation_checkpointing=checkpointing)
    ranks, stated = _ranks(config.parallel, cells.whole("dp"))
    if ranks != gpus or -(-gpus // PER_NODE) != nodes:
        raise ValueError(f"{stated}: expected a product of its {gpus} GPUs, up to {PER_NODE} on each of nodes={nodes}")
    reference, names = Reference(sec_per_iteration=cells.figure("sec_per_iteration")), ("a100_80gb_8_links", "megatron")
    return _row(cells, config, cells.whole("dp"), names, reference, checkpointing_unstated=True)


def _cpu_nodes(cells: CsvRow) -> PublishedRow:
    """Megatron on A64FX. One of its tables has milliseconds under seconds, as its notes say."""
    checkpointing = {"yes": "full", "no": "none"}[cells.choice("activation_checkpointing", ("yes", "no"))]
    seconds = cells.figure("sec_per_iteration")
    if seconds and seconds > LONGEST_SECONDS:
        seconds /= 1e3
    peak, oom = cells.memory("max_mib", MIB), cells.note() == "OOM"
    reference = Reference(
        None if oom else peak, oom, sec_per_iteration=seconds, tflops_per_gpu=cells.figure("tflops_per_gpu")
    )
    plain = dict.fromkeys(FUSED_OPS.values(), "reference")
    config = _decoder(cells, vocab_size=CPU_VOCAB, activation_checkpointing=checkpointing, **plain)
    dp, remark = _filling(config.parallel, cells.whole("dp"), cells.whole("nodes"), factor=False)
    return _row(cells, config, dp, ("a64fx", "megatron_cpu"), reference, formula="corrected", remark=remark)


def _selene(cells: CsvRow) -> PublishedRow:
    """Megatron-LM on a tuned machine (arXiv 2205.05198, tables 3 and 5)."""
    switch = {"true": True, "false": False}[cells.choice("sequence_parallel", ("true", "false"))]
    checkpointing = cells.choice("activation_checkpointing", ("none", "selective", "full"))
    precision = cells.choice("precision", tuple(ITEM_BYTES))
    chunks, nodes = cells.whole("virtual_pp"), cells.whole("nodes")
    order = {"pipeline_schedule": "interleaved" if chunks > 1 else "1f1b", "virtual_pipeline_size": chunks}
    flags = {"precision": precision, "activation_checkpointing": checkpointing, "sequence_parallel": switch}
    config = _decoder(cells, vocab_size=cells.whole("vocab"), **flags, **order)
    ranks, stated = _ranks(config.parallel, cells.whole("dp"))
    if ranks != PER_NODE * nodes:
        raise ValueError(f"{stated}: expected a product of {PER_NODE * nodes}, the devices of its nodes")
    reference = Reference(sec_per_iteration=cells.figure("sec_per_iteration"))
    return _row(cells, config, cells.whole("dp"), ("a100_80gb_8_links", "megatron_selene"), reference)


def _foundry(cells: CsvRow) -> PublishedRow:
    """llm-foundry on PyTorch: weights sharded by FSDP, flash attention, no dropout, gradients sent in 16 bits."""
    card = cells.choice("card", tuple(FOUNDRY_CLUSTERS))
    config = _decoder(
        cells,
        {"zero2": 2, "zero3": 3}[cells.choice("sharding", ("zero2", "zero3"))],
        vocab_size=cells.whole("vocab"),
        precision=cells.choice("precision", tuple(ITEM_BYTES)),
        activation_checkpointing=cells.choice("activation_checkpointing", ("none", "full")),
        **FOUNDRY,
    )
    gpus, steps = cells.whole("gpus"), cells.whole("grad_accum")
    ranks, stated = _ranks(config.parallel, cells.whole("dp"))
    if ranks != gpus or -(-gpus // PER_NODE) != cells.whole("nodes"):
        raise ValueError(f"{stated}: expected a product of its {gpus} GPUs, up to {PER_NODE} on each node")
    reference = Reference(sec_per_iteration=cells.figure("sec_per_iteration"))
    offloaded = cells.choice("activation_offload", ("false", "true")) == "true"
    remark = "inputs of blocks are in host memory: planned as in the device's" if offloaded else ""
    row = _row(cells, config, cells.whole("dp"), FOUNDRY_CLUSTERS[card], reference, remark=remark)
    work = Fsdp(*row.workload)._replace(fused=row.workload.fused | {"cross_entropy"}, wire=config.compute.precision)
    if work.micro_batches != steps:
        raise ValueError(f"grad_accum={steps}: expected global_batch / (dp * micro_batch) = {work.micro_batches}")
    return row._replace(workload=work)


FORMATS: tuple[tuple[set[str], Callable[[CsvRow], PublishedRow]], ...] = (
    ({"row", "table", "levers", "samples_per_sec_per_gpu"}, encoder_format.read),
    ({"row", "table", "zero_stage", "flops_formula", "dp", "tp", "pp"}, _topology),
    ({"row", "table", "max_mib", "activation_checkpointing", "dp", "tp", "pp"}, _cpu_nodes),
    ({"row", "table", "card", "sharding", "grad_accum", "dp", "tp", "pp"}, _foundry),
    ({"row", "table", "gpus", "vocab", "dp", "tp", "pp"}, _sweep),
    ({"row", "table", "virtual_pp", "sequence_parallel", "dp", "tp", "pp"}, _selene),
)
