"""The formats of published rows: decoders by topology, on CPU nodes and in a sweep; `encoder_format` has encoders.

Values that a format does not state are filled in here, with the reason beside them.
"""

from collections.abc import Callable
from typing import Any

from tftrain.architecture.describe import describe
from tftrain.bench.published import encoder_format
from tftrain.bench.published.csv_row import CsvRow
from tftrain.bench.published.row import PublishedRow, Reference
from tftrain.bench.published.software import Fsdp, Megatron
from tftrain.config.model import ModelConfig
from tftrain.host.units import ITEM_BYTES, MIB
from tftrain.plan.workload import Workload

GPT2_VOCAB = 50_257  # the sweep states none: see `_sweep`
CPU_VOCAB = 51_200  # reproduces the published TFLOPs
LONGEST_SECONDS = 20_000  # the longest iteration on A64FX; larger figures are milliseconds
MEGATRON_FUSED = frozenset({"ln", "softmax", "gelu", "dropout_add", "optimizer"})
TUNED_HOSTS = ("gpt_global_batch", "gpt_low_pp", "gpt_low_tp")  # after the source's fix of PCIe and NUMA settings
FOUNDRY_FUSED = frozenset({"ln", "flash", "gelu", "cross_entropy", "optimizer"})
# Cluster and system of a card: 1600 Gbit/s between nodes of A100, 3200 between those of H100.
FOUNDRY_CLUSTERS = {
    "a100_40gb": ("a100_40gb_1600gbit", "foundry"),
    "a100_80gb": ("a100_80gb_1600gbit", "foundry"),
    "h100_80gb": ("h100", "foundry_h100"),
}
PER_NODE = 8


def _decoder(cells: CsvRow, vocab: int, precision: str, checkpointing: str, zero_stage: int) -> Workload:
    hidden, seq = cells.whole("hidden"), cells.whole("seq_len")
    config = ModelConfig(
        model_family="gpt",
        num_hidden_layers=cells.whole("layers"),
        hidden_size=hidden,
        num_attention_heads=cells.whole("heads"),
        vocab_size=vocab,
        max_position_embeddings=seq,
    )
    return Megatron(
        model=describe(config),
        seq=seq,
        predictions=seq,
        precision=precision,
        micro_batch=cells.whole("micro_batch"),
        global_batch=cells.whole("global_batch"),
        dp=cells.whole("dp"),
        tp=cells.whole("tp"),
        pp=cells.whole("pp"),
        zero_stage=zero_stage,
        checkpointing=checkpointing,
        hidden_dropout=True,
        attention_dropout=True,
        wire="fp16",
    )


def _ranks(work: Workload) -> str:
    return f"dp={work.dp} * tp={work.tp} * pp={work.pp}"


def _filling(work: Workload, devices: int, factor: bool) -> tuple[Workload, str]:
    """Returns a workload with no more ranks than its nodes have devices, and a remark on the change.

    Some published rows (gpt_contenders/12, some of a64fx_30b_scaling) state more data parallel ranks than devices, but
    their TFLOPs are computed with the number of devices. Their plans use the number of devices. With `factor` the
    surplus must be a whole factor, else it is a ValueError.
    """
    if work.ranks == devices:
        return work, ""
    dp, left = divmod(devices, work.tp * work.pp)
    stated = _ranks(work)
    if not dp or work.ranks < devices or (factor and (left or work.dp % dp)):
        raise ValueError(f"{stated}: expected a product of {devices}, the devices of its nodes")
    return work._replace(dp=dp), f"{stated} are more than the {devices} devices of its nodes: planned with dp={dp}"


def _row(
    cells: CsvRow, workload: Workload, cluster: str, system: str, reference: Reference, **more: Any
) -> PublishedRow:
    """Returns a row with the name and the table that its cells state."""
    return PublishedRow(cells.text("row"), cells.text("table"), workload, cluster, system, reference, **more)


def _topology(cells: CsvRow) -> PublishedRow:
    """Megatron-DeepSpeed on A100, with full activation checkpointing in every row, as its TFLOPs formulas count."""
    precision, nodes = cells.choice("precision", tuple(ITEM_BYTES)), cells.whole("nodes")
    workload = _decoder(cells, cells.whole("vocab"), precision, "full", cells.whole("zero_stage", minimum=0, maximum=3))
    reference = Reference(
        cells.memory("max_gb"),
        cells.text("max_gb") == "OOM",
        sec_per_iteration=cells.figure("sec_per_iteration"),
        tflops_per_gpu=cells.figure("tflops_per_gpu"),
    )
    # The source sums gradients in fp32.
    workload, remark = _filling(workload._replace(fused=MEGATRON_FUSED, wire="fp32"), PER_NODE * nodes, factor=True)
    system = "megatron_deepspeed_tuned" if cells.text("table") in TUNED_HOSTS else "megatron_deepspeed"
    formula = {"old": "old", "new": "corrected"}[cells.choice("flops_formula", ("old", "new"))]
    return _row(cells, workload, "a100_80gb", system, reference, formula=formula, remark=remark)


def _sweep(cells: CsvRow) -> PublishedRow:
    """Megatron on A100. The rows fit no checkpointing on one node, and selective on many: see docs/planner.md."""
    nodes, gpus = cells.whole("nodes"), cells.whole("gpus")
    checkpointing = "selective" if nodes > 1 else "none"
    # One rank's output layer takes more than twice the time of half of it on each of two ranks. Misaligned rows are as
    # slow, so one rank has GPT-2's vocabulary unpadded. Several ranks need it padded, as Megatron pads it.
    tp = cells.whole("tp")
    vocab = cells.whole("vocab", GPT2_VOCAB if tp == 1 else -(-GPT2_VOCAB // (128 * tp)) * 128 * tp)
    workload = _decoder(cells, vocab, cells.choice("precision", tuple(ITEM_BYTES)), checkpointing, 0)
    if workload.ranks != gpus or -(-gpus // PER_NODE) != nodes:
        stated = _ranks(workload)
        raise ValueError(f"{stated}: expected a product of its {gpus} GPUs, up to {PER_NODE} on each of nodes={nodes}")
    workload = workload._replace(fused=MEGATRON_FUSED)
    reference = Reference(sec_per_iteration=cells.figure("sec_per_iteration"))
    return _row(cells, workload, "a100_80gb_8_links", "megatron", reference, checkpointing_unstated=True)


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
    workload = _decoder(cells, CPU_VOCAB, "fp32", checkpointing, 0)._replace(fused=frozenset({"optimizer"}))
    workload, remark = _filling(workload, cells.whole("nodes"), factor=False)
    return _row(cells, workload, "a64fx", "megatron_cpu", reference, formula="corrected", remark=remark)


def _selene(cells: CsvRow) -> PublishedRow:
    """Megatron-LM on a tuned machine (arXiv 2205.05198, tables 3 and 5)."""
    switch = {"true": True, "false": False}[cells.choice("sequence_parallel", ("true", "false"))]
    checkpointing = cells.choice("activation_checkpointing", ("none", "selective", "full"))
    precision = cells.choice("precision", tuple(ITEM_BYTES))
    chunks, nodes = cells.whole("virtual_pp"), cells.whole("nodes")
    workload = _decoder(cells, cells.whole("vocab"), precision, checkpointing, 0)._replace(
        fused=MEGATRON_FUSED, sequence_parallel=switch, schedule="interleaved" if chunks > 1 else "1f1b", chunks=chunks
    )
    if workload.ranks != PER_NODE * nodes:
        raise ValueError(f"{_ranks(workload)}: expected a product of {PER_NODE * nodes}, the devices of its nodes")
    reference = Reference(sec_per_iteration=cells.figure("sec_per_iteration"))
    return _row(cells, workload, "a100_80gb_8_links", "megatron_selene", reference)


def _foundry(cells: CsvRow) -> PublishedRow:
    """llm-foundry on PyTorch: weights sharded by FSDP, flash attention, no dropout, gradients sent in 16 bits."""
    card = cells.choice("card", tuple(FOUNDRY_CLUSTERS))
    workload = _decoder(
        cells,
        cells.whole("vocab"),
        cells.choice("precision", tuple(ITEM_BYTES)),
        cells.choice("activation_checkpointing", ("none", "full")),
        {"zero2": 2, "zero3": 3}[cells.choice("sharding", ("zero2", "zero3"))],
    )
    workload = Fsdp(*workload)._replace(
        fused=FOUNDRY_FUSED, hidden_dropout=False, attention_dropout=False, wire=workload.precision
    )
    gpus, steps = cells.whole("gpus"), cells.whole("grad_accum")
    if workload.ranks != gpus or -(-gpus // PER_NODE) != cells.whole("nodes"):
        raise ValueError(f"{_ranks(workload)}: expected a product of its {gpus} GPUs, up to {PER_NODE} on each node")
    if workload.micro_batches != steps:
        raise ValueError(f"grad_accum={steps}: expected global_batch / (dp * micro_batch) = {workload.micro_batches}")
    reference = Reference(sec_per_iteration=cells.figure("sec_per_iteration"))
    offloaded = cells.choice("activation_offload", ("false", "true")) == "true"
    remark = "inputs of blocks are in host memory: planned as in the device's" if offloaded else ""
    return _row(cells, workload, *FOUNDRY_CLUSTERS[card], reference, remark=remark)


FORMATS: tuple[tuple[set[str], Callable[[CsvRow], PublishedRow]], ...] = (
    ({"row", "table", "levers", "samples_per_sec_per_gpu"}, encoder_format.read),
    ({"row", "table", "zero_stage", "flops_formula", "dp", "tp", "pp"}, _topology),
    ({"row", "table", "max_mib", "activation_checkpointing", "dp", "tp", "pp"}, _cpu_nodes),
    ({"row", "table", "card", "sharding", "grad_accum", "dp", "tp", "pp"}, _foundry),
    ({"row", "table", "gpus", "vocab", "dp", "tp", "pp"}, _sweep),
    ({"row", "table", "virtual_pp", "sequence_parallel", "dp", "tp", "pp"}, _selene),
)
