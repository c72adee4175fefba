"""Published measurements: the rows of the reference tables, or of any file in one of their four formats.

A row is a workload, the cluster and the software system it ran on, and the figures it got. What a format does not state
is filled in here, in one place, with the reason beside it.
"""

import csv
import io
import re
from collections.abc import Callable, Iterable
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from tftrain.fields import ConfigError, Problem
from tftrain.plan import flops
from tftrain.plan.workload import LEVERS, Workload

REFERENCE = ("encoder_a100.csv", "decoder_3d_a100.csv", "decoder_3d_a64fx.csv", "decoder_sweep_a100.csv")

ENCODER_VOCAB = 102_864  # the source: an embedding of 316M weights at width 3072
MASKED_SHARE = 0.15
GPT2_VOCAB = 50_257  # the sweep states none: see `_sweep`
CPU_VOCAB = 51_200  # reproduces the published TFLOPs
UNSTATED_MICRO_BATCH = {"large": 32, "unstated": 8}  # the costs of dropout and softmax both point at 32 for Large
UNSTATED_ACCUMULATION = 2  # prepretrain_5p75b/01 states 2 for the configuration of deeper/13
LONGEST_SECONDS = 20_000  # of an iteration on A64FX; what is longer is in milliseconds
TUNED_HOSTS = ("gpt_global_batch", "gpt_low_pp", "gpt_low_tp")  # after the source's fix of PCIe and NUMA settings


class Reference(NamedTuple):
    """What was measured; None where nothing is stated.

    Attributes:
        gb: peak memory of the fullest device looked at.
        out_of_memory: it did not fit.
        samples_per_sec_per_gpu, sec_per_iteration, tflops_per_gpu: as published.
    """

    gb: float | None = None
    out_of_memory: bool = False
    samples_per_sec_per_gpu: float | None = None
    sec_per_iteration: float | None = None
    tflops_per_gpu: float | None = None

    @property
    def ran(self) -> bool:
        """Whether there is a figure of a run."""
        figures = (self.gb, self.samples_per_sec_per_gpu, self.sec_per_iteration, self.tflops_per_gpu)
        return not self.out_of_memory and any(figure is not None for figure in figures)


class Row(NamedTuple):
    """One row.

    Attributes:
        name, table: `table/NN`, and its table.
        workload: what was run.
        nodes: hosts.
        cluster, system: names in `tftrain.plan.cluster` and `tftrain.plan.system`.
        reference: what it got.
        formula: of the published TFLOPs: exact, old or corrected, see `tftrain.plan.flops`.
        speed: the figure of `Reference` by which the table states speed.
        counted: share of the samples that the published speed counts.
        checkpointing_unstated: the source does not say whether activations were checkpointed.
        relative: model, batch and device are assumed, since the source does not say: only changes against the table's
            first row mean something.
    """

    name: str
    table: str
    workload: Workload
    nodes: int
    cluster: str
    system: str
    reference: Reference
    formula: str
    speed: str
    counted: float = 1.0
    checkpointing_unstated: bool = False
    relative: bool = False

    @property
    def reference_seconds(self) -> float | None:
        """Seconds of an iteration that the published figures amount to; None where there are none."""
        found, work = self.reference, self.workload
        if found.sec_per_iteration:
            return found.sec_per_iteration
        if found.samples_per_sec_per_gpu:
            return work.global_batch * self.counted / (found.samples_per_sec_per_gpu * work.ranks)
        if found.tflops_per_gpu:
            return flops.reported(work, self.formula) / (found.tflops_per_gpu * 1e12 * work.ranks)
        return None


def read_reference() -> list[Row]:
    """Returns every row of the reference tables that come with the planner."""
    folder = resources.files("tftrain.plan") / "reference"
    return [row for name in REFERENCE for row in read_text((folder / name).read_text(), name)]


def read_file(path: str) -> list[Row]:
    """Returns the rows of a file in one of the reference formats.

    Raises:
        ConfigError: it can't be read, its columns are those of no format, or a row is wrong.
    """
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([Problem("rows_file", path, f"expected a readable CSV file: {error}")]) from error
    return read_text(text, path)


def read_text(text: str, name: str) -> list[Row]:
    """Does what `read_file` does, for what the file `name` holds."""
    reader = csv.DictReader(io.StringIO(text))
    columns = set(reader.fieldnames or ())
    for needed, read in _FORMATS:
        if needed <= columns:
            return list(_read_rows(reader, read, name))
    formats = "; or ".join(", ".join(sorted(needed)) for needed, _ in _FORMATS)
    raise ConfigError([Problem("rows_file", name, f"expected columns of a reference table, among them {formats}")])


def _read_rows(reader: csv.DictReader, read: Callable[[dict[str, str]], Row], name: str) -> Iterable[Row]:
    for cells in reader:
        place = f"line {reader.line_num} of {name}"
        try:
            row = read(cells)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise ConfigError([Problem("rows_file", place, f"{type(error).__name__} {error}")]) from error
        ranks = int(cells.get("gpus") or row.workload.ranks)
        if row.workload.ranks != ranks:
            sizes = f"dp={row.workload.dp} * tp={row.workload.tp} * pp={row.workload.pp}"
            raise ConfigError([Problem("rows_file", place, f"expected {sizes} to be its {ranks} GPUs")])
        yield row


def _figure(cell: str | None) -> float | None:
    return float(cell) if cell and cell != "OOM" else None


def _encoder(cells: dict[str, str]) -> Row:
    """Encoders under data parallelism; every lever is one flag of tftrain."""
    levers = dict(pair.split("=") for pair in cells["levers"].split())
    unstated = cells["size"] == "unstated"
    layers, hidden, seq = (int(cells[name] or default) for name, default in _LARGE.items())
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
        sparse_rows=levers.get("sparse_as_dense") == "false",
    )
    # The source's figures of this table leave the factor of accumulation out: it says so of row 13, and the others,
    # taken as they stand, would run at half the rate of Large on the same device.
    counted = 1 / steps if cells["table"] == "deeper" else 1.0
    reference = Reference(
        gb=_figure(cells["max_gb"]), samples_per_sec_per_gpu=_figure(cells["samples_per_sec_per_gpu"])
    )
    cluster = "v100" if unstated else "a100_80gb"
    speed = "samples_per_sec_per_gpu"
    nodes = int(cells["nodes"])
    return Row(
        cells["row"],
        cells["table"],
        workload,
        nodes,
        cluster,
        "encoder",
        reference,
        "exact",
        speed,
        counted,
        False,
        unstated,
    )


def _stated_steps(cells: dict[str, str], samples: int) -> int:
    """Returns the micro-batches of an update of which a note states the global batch, as a number or in K."""
    stated = re.search(r"global batch (\d+)(K?)", cells["note"])
    if not stated:
        return UNSTATED_ACCUMULATION
    return max(1, round(int(stated[1]) * (1024 if stated[2] else 1) / samples))


_LARGE = {"layers": 24, "hidden": 1024, "seq_len": 512}


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
    return work.replaced(dp=most) if 0 < most < work.dp else work


def _topology(cells: dict[str, str]) -> Row:
    """Megatron-DeepSpeed on A100; it always ran with full activation checkpointing, as its TFLOPs formulas count."""
    workload = _decoder(cells, int(cells["vocab"]), cells["precision"], "full", int(cells["zero_stage"]))
    fused = {"ln", "softmax", "gelu", "dropout_add", "optimizer"}
    reference = Reference(
        _figure(cells["max_gb"]),
        cells["max_gb"] == "OOM",
        sec_per_iteration=_figure(cells["sec_per_iteration"]),
        tflops_per_gpu=_figure(cells["tflops_per_gpu"]),
    )
    formula = {"old": "old", "new": "corrected"}[cells["flops_formula"]]
    system = "megatron_deepspeed_tuned" if cells["table"] in TUNED_HOSTS else "megatron_deepspeed"
    nodes = int(cells["nodes"])
    workload = _within(workload.replaced(fused=frozenset(fused)), 8 * nodes)
    speed = "sec_per_iteration"
    return Row(cells["row"], cells["table"], workload, nodes, "a100_80gb", system, reference, formula, speed)


def _sweep(cells: dict[str, str]) -> Row:
    """Megatron on A100. The rows fit no checkpointing on one node, and selective on many: see docs/planner.md."""
    nodes = int(cells["nodes"])
    checkpointing = "selective" if nodes > 1 else "none"
    # One rank's output layer takes 2.3 times as long as two ranks' half of it does on each: so slow are rows that begin
    # at odd places, and GPT-2's vocabulary unpadded. Several ranks need it padded, as Megatron does.
    tp = int(cells["tp"])
    vocab = GPT2_VOCAB if tp == 1 else -(-GPT2_VOCAB // (128 * tp)) * 128 * tp
    workload = _decoder(cells, int(cells["vocab"] or vocab), cells["precision"], checkpointing, 0)
    fused = {"ln", "softmax", "gelu", "dropout_add", "optimizer"}
    reference = Reference(sec_per_iteration=_figure(cells["sec_per_iteration"]))
    workload = workload.replaced(fused=frozenset(fused))
    speed = "sec_per_iteration"
    return Row(
        cells["row"],
        cells["table"],
        workload,
        nodes,
        "a100_80gb_8_links",
        "megatron",
        reference,
        "exact",
        speed,
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


_FORMATS: tuple[tuple[set[str], Callable[[dict[str, str]], Row]], ...] = (
    ({"row", "table", "levers", "samples_per_sec_per_gpu"}, _encoder),
    ({"row", "table", "zero_stage", "flops_formula", "dp", "tp", "pp"}, _topology),
    ({"row", "table", "max_mib", "activation_checkpointing", "dp", "tp", "pp"}, _cpu_nodes),
    ({"row", "table", "gpus", "vocab", "dp", "tp", "pp"}, _sweep),
)
