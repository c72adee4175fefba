"""The four formats of published rows. What a format does not state is filled in here, with the reason beside it."""

import dataclasses
import re
from collections.abc import Callable

from tftrain.config import TrainConfig
from tftrain.fields import sections
from tftrain.plan.published import Reference, Row
from tftrain.plan.workload import LEVERS, Workload
from tftrain.prepare_config import PrepareConfig

ENCODER_VOCAB = 102_864  # the source: an embedding of 316M weights at width 3072
MASKED_SHARE = 0.15
GPT2_VOCAB = 50_257  # the sweep states none: see `_sweep`
CPU_VOCAB = 51_200  # reproduces the published TFLOPs
UNSTATED_MICRO_BATCH = {"large": 32, "unstated": 8}  # the costs of dropout and softmax both point at 32 for Large
UNSTATED_ACCUMULATION = 2  # prepretrain_5p75b/01 states 2 for the configuration of deeper/13
LONGEST_SECONDS = 20_000  # of an iteration on A64FX; what is longer is in milliseconds
UNSTATED_SIZES = {"layers": 24, "hidden": 1024, "seq_len": 512}  # Large's
MEGATRON_FUSED = frozenset({"ln", "softmax", "gelu", "dropout_add", "optimizer"})
FLAGS = {
    field.name
    for section in (*sections(TrainConfig()), *sections(PrepareConfig()))
    for field in dataclasses.fields(section)
}
TUNED_HOSTS = ("gpt_global_batch", "gpt_low_pp", "gpt_low_tp")  # after the source's fix of PCIe and NUMA settings


def _figure(cell: str | None) -> float | None:
    return float(cell) if cell and cell != "OOM" else None


def _encoder(cells: dict[str, str]) -> Row:
    """Encoders under data parallelism; every lever is one flag of tftrain."""
    levers = dict(pair.split("=") for pair in cells["levers"].split())
    if unknown := sorted(set(levers) - FLAGS):
        raise ValueError(f"levers {', '.join(unknown)}: expected flags of tftrain.run or tftrain.prepare")
    unstated = cells["size"] == "unstated"
    layers, hidden, seq = (int(cells[name] or default) for name, default in UNSTATED_SIZES.items())
    gpus, tp = int(cells["gpus"]), int(levers.get("tensor_parallel_size", 1))
    micro_batch = int(cells["micro_batch"] or UNSTATED_MICRO_BATCH.get(cells["size"], 8))
    accumulates = "grad_accum_dtype" in levers
    steps = int(cells["grad_accum_steps"] or (_stated_steps(cells, micro_batch * gpus // tp) if accumulates else 1))
    fused = {op for op, lever in LEVERS.items() if levers.get(lever) == "fused"}
    optimizer = {"optimizer"} if levers.get("optimizer") == "fused_lamb" else set()
    zero = 2 if levers.get("split_grad_accum") == "true" else int(levers.get("split_opt_state") == "true")
    workload = Workload(
        family="encoder",
        causal=False,
        layers=layers,
        hidden=hidden,
        heads=int(cells["heads"] or hidden // 64),
        inner=4 * hidden,
        vocab=ENCODER_VOCAB,
        seq=seq,
        positions=512,
        predictions=round(MASKED_SHARE * seq),
        key_bias=levers.get("use_bias_in_keys") == "true",
        micro_batch=micro_batch,
        global_batch=micro_batch * steps * gpus // tp,
        precision=levers.get("precision", "fp16"),
        dp=gpus // tp,
        tp=tp,
        zero_stage=zero,
        split_strategy=levers.get("state_split_strategy", "even"),
        fused=frozenset(fused | optimizer),
        hidden_dropout=float(levers.get("hidden_dropout_prob", 0)) > 0,
        attention_dropout=float(levers.get("attention_probs_dropout_prob", 0)) > 0,
        accumulation=levers.get("grad_accum_dtype", ""),
        wire="fp16" if levers.get("hvd_fp16_compression") == "true" else "fp32",
        compiled=levers.get("jit_compile") == "true" or unstated,
        grappler=levers.get("memory_optimization", "none"),
    )
    # The source's figures of this table leave the factor of accumulation out: it says so of row 13, and the others,
    # taken as they stand, would run at half the rate of Large on the same device.
    counted = 1 / steps if cells["table"] == "deeper" else 1.0
    speed = "samples_per_sec_per_gpu"
    return Row(
        name=cells["row"],
        table=cells["table"],
        workload=workload,
        nodes=int(cells["nodes"]),
        cluster="v100" if unstated else "a100_80gb",
        system="encoder",
        reference=Reference(gb=_figure(cells["max_gb"]), samples_per_sec_per_gpu=_figure(cells[speed])),
        formula="exact",
        speed=speed,
        counted=counted,
        relative=unstated,
    )


def _stated_steps(cells: dict[str, str], samples: int) -> int:
    """Returns the micro-batches of an update of which a note states the global batch, as a number or in K."""
    stated = re.search(r"global batch (\d+)(K?)", cells["note"])
    if not stated:
        return UNSTATED_ACCUMULATION
    return max(1, round(int(stated[1]) * (1024 if stated[2] else 1) / samples))


def _decoder(cells: dict[str, str], vocab: int, precision: str, checkpointing: str, zero_stage: int) -> Workload:
    hidden, seq = int(cells["hidden"]), int(cells["seq_len"])
    return Workload(
        family="megatron",
        causal=True,
        layers=int(cells["layers"]),
        hidden=hidden,
        heads=int(cells["heads"]),
        inner=4 * hidden,
        vocab=vocab,
        seq=seq,
        positions=seq,
        predictions=seq,
        precision=precision,
        micro_batch=int(cells["micro_batch"]),
        global_batch=int(cells["global_batch"]),
        dp=int(cells["dp"]),
        tp=int(cells["tp"]),
        pp=int(cells["pp"]),
        zero_stage=zero_stage,
        checkpointing=checkpointing,
        hidden_dropout=True,
        attention_dropout=True,
        wire="fp16",
    )


def _within(work: Workload, gpus: int) -> Workload:
    """Lowers dp where a row states more data parallel ranks than its nodes hold.

    That is so in gpt_contenders/12 and in rows of a64fx_30b_scaling, whose published TFLOPs are those of the nodes.
    """
    most = gpus // (work.tp * work.pp)
    if not most:
        raise ValueError(f"tp={work.tp} * pp={work.pp}: expected at most the {gpus} devices of its nodes")
    return work.replaced(dp=min(most, work.dp))


def _topology(cells: dict[str, str]) -> Row:
    """Megatron-DeepSpeed on A100; it always ran with full activation checkpointing, as its TFLOPs formulas count."""
    workload = _decoder(cells, int(cells["vocab"]), cells["precision"], "full", int(cells["zero_stage"]))
    reference = Reference(
        _figure(cells["max_gb"]),
        cells["max_gb"] == "OOM",
        sec_per_iteration=_figure(cells["sec_per_iteration"]),
        tflops_per_gpu=_figure(cells["tflops_per_gpu"]),
    )
    formula = {"old": "old", "new": "corrected"}[cells["flops_formula"]]
    system = "megatron_deepspeed_tuned" if cells["table"] in TUNED_HOSTS else "megatron_deepspeed"
    nodes = int(cells["nodes"])
    # The source keeps gradients in fp32: so they are summed.
    workload = _within(workload.replaced(fused=MEGATRON_FUSED, wire="fp32"), 8 * nodes)
    speed = "sec_per_iteration"
    return Row(cells["row"], cells["table"], workload, nodes, "a100_80gb", system, reference, formula, speed)


def _sweep(cells: dict[str, str]) -> Row:
    """Megatron on A100. The rows fit no checkpointing on one node, and selective on many: see docs/planner.md."""
    nodes = int(cells["nodes"])
    checkpointing = "selective" if nodes > 1 else "none"
    # One rank's output layer takes more than twice as long as half of it does on each of two: so slow are rows that
    # begin at odd places, and GPT-2's vocabulary unpadded. Several ranks need it padded, as Megatron does.
    tp = int(cells["tp"])
    vocab = GPT2_VOCAB if tp == 1 else -(-GPT2_VOCAB // (128 * tp)) * 128 * tp
    workload = _decoder(cells, int(cells["vocab"] or vocab), cells["precision"], checkpointing, 0)
    reference = Reference(sec_per_iteration=_figure(cells["sec_per_iteration"]))
    return Row(
        name=cells["row"],
        table=cells["table"],
        workload=workload.replaced(fused=MEGATRON_FUSED),
        nodes=nodes,
        cluster="a100_80gb_8_links",
        system="megatron",
        reference=reference,
        formula="exact",
        speed="sec_per_iteration",
        checkpointing_unstated=True,
    )


def _cpu_nodes(cells: dict[str, str]) -> Row:
    """Megatron on A64FX. One of its tables has milliseconds under seconds, as its notes say."""
    checkpointing = "full" if cells["activation_checkpointing"] == "yes" else "none"
    seconds = _figure(cells["sec_per_iteration"])
    if seconds and seconds > LONGEST_SECONDS:
        seconds /= 1e3
    mib = _figure(cells["max_mib"])
    oom = cells["note"] == "OOM"
    reference = Reference(
        mib / 1024 if mib and not oom else None,
        oom,
        sec_per_iteration=seconds,
        tflops_per_gpu=_figure(cells["tflops_per_gpu"]),
    )
    workload = _decoder(cells, CPU_VOCAB, "fp32", checkpointing, 0).replaced(fused=frozenset({"optimizer"}))
    nodes, speed = int(cells["nodes"]), "sec_per_iteration"
    workload = _within(workload, nodes)
    return Row(cells["row"], cells["table"], workload, nodes, "a64fx", "megatron_cpu", reference, "corrected", speed)


FORMATS: tuple[tuple[set[str], Callable[[dict[str, str]], Row]], ...] = (
    ({"row", "table", "levers", "samples_per_sec_per_gpu"}, _encoder),
    ({"row", "table", "zero_stage", "flops_formula", "dp", "tp", "pp"}, _topology),
    ({"row", "table", "max_mib", "activation_checkpointing", "dp", "tp", "pp"}, _cpu_nodes),
    ({"row", "table", "gpus", "vocab", "dp", "tp", "pp"}, _sweep),
)
