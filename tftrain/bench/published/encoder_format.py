"""The encoder's published rows: sizes in columns, levers as flags of tftrain; what is not stated is filled in here."""

import re
from typing import Any

from tftrain.bench.published.csv_row import PER_NODE, SIZES, CsvRow
from tftrain.bench.published.row import PublishedRow, Reference
from tftrain.bench.published.software import EncoderJob
from tftrain.config.fields import changed, field_problems, sections
from tftrain.config.train import TrainConfig
from tftrain.plan.workload import from_config, reference_levers, reference_optimizer

VOCAB = 102_864  # the source: an embedding of 316M weights at width 3072
MASKED_SHARE = 0.15
SPEED = "samples_per_sec_per_gpu"
UNSTATED_SIZES = {"layers": 24, "hidden": 1024, "heads": 16, "seq_len": 512}  # Large's
UNSTATED_MICRO_BATCH = {"large": 32, "unstated": 8}  # the costs of dropout and of softmax both imply 32 for Large
UNSTATED_ACCUMULATION = 2  # prepretrain_5p75b/01 states 2 for the configuration of deeper/13
# Values of levers that a row does not state. XLA is then off, except in local_fused, which states neither precision nor
# XLA: it is planned like nearly all other rows of the source, in fp16 and compiled.
DEFAULTS = {**reference_levers(), "precision": "fp16", "use_bias_in_keys": False, "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0, "memory_optimization": "none", "vocab_size": VOCAB,
            "norm_position": "post"}  # fmt: skip
READ = {
    "activation", "activation_checkpointing", "attention_probs_dropout_prob", "attn_softmax_impl", "dropout_add_impl",
    "gelu_impl", "grad_accum_dtype", "hidden_dropout_prob", "hvd_fp16_compression", "jit_compile", "ln_impl",
    "memory_optimization", "optimizer", "precision", "sparse_as_dense", "split_grad_accum", "split_opt_state",
    "state_split_strategy", "suppress_grappler", "tensor_parallel_size", "use_bias_in_keys",
}  # fmt: skip
# Levers of published rows that change nothing in a plan: see docs/planner.md.
WITHOUT_EFFECT = {"enable_resource_variables", "sparse_as_dense", "suppress_grappler", "tokenizer_type"}


def read(cells: CsvRow) -> PublishedRow:
    """Returns an encoder's row; all ran with data parallel ranks, some with tensor parallel ranks too.

    Raises a ValueError if a cell or a lever is wrong, or the levers do not divide the GPUs.
    """
    size, nodes, gpus = cells.text("size"), cells.whole("nodes"), cells.whole("gpus")
    if gpus > PER_NODE * nodes:
        raise ValueError(f"gpus={gpus}: expected at most the {PER_NODE * nodes} of nodes={nodes}")
    unstated = size == "unstated"
    sizes = {SIZES[name]: cells.whole(name, size if unstated else None) for name, size in UNSTATED_SIZES.items()}
    _, hidden, heads, seq = sizes.values()
    levers = _levers(cells.text("levers"))
    compiled = {"jit_compile": "true" if unstated else "false"}
    config = changed(TrainConfig(), DEFAULTS | compiled | levers | sizes)
    problems = [problem for section in sections(config) for problem in field_problems(section)]
    problems += config.parallel.problems(gpus, {"heads": heads, "hidden": 4 * hidden})
    if problems:
        raise ValueError(f"levers: {'; '.join(map(str, problems))}")
    dp = config.parallel.data_parallel_size(gpus)
    micro_batch = cells.whole("micro_batch", UNSTATED_MICRO_BATCH.get(size, 8))
    accumulates = "grad_accum_dtype" in levers
    steps = cells.whole("grad_accum_steps", _stated_steps(cells.note(), micro_batch * dp) if accumulates else 1)
    batch = {"micro_batch_size": micro_batch, "grad_accum_steps": steps, "global_batch_size": micro_batch * steps * dp}
    config = changed(config, batch)
    workload = EncoderJob(*from_config(config, dp))._replace(
        segments=1,  # These runs summed gradients after backward.
        predictions=round(MASKED_SHARE * seq),
        grappler=config.compute.memory_optimization,  # had an effect in rows compiled by XLA too
    )
    if accumulates:  # the buffer exists for a single micro-batch too
        workload = workload._replace(accumulation=config.batch.grad_accum_dtype)
    # The source's figures of this table omit the factor of accumulation. It says so of row 13; taken literally, the
    # others would run at half the rate of Large on the same device.
    counted = 1 / steps if cells.text("table") == "deeper" else 1.0
    return PublishedRow(
        name=cells.text("row"),
        table=cells.text("table"),
        config=config,
        workload=workload,
        cluster="v100" if unstated else "a100_80gb",
        system="encoder",
        reference=Reference(cells.memory("max_gb"), cells.text("max_gb") == "OOM", cells.figure(SPEED)),
        counted=counted,
        relative=unstated,
    )


def _levers(text: str) -> dict[str, Any]:
    """Returns the values of levers; a later value overrides an earlier one."""
    levers = {}
    for pair in text.split():
        name, equals, value = pair.partition("=")
        if not equals or name not in READ | WITHOUT_EFFECT:
            known = ", ".join(sorted(READ | WITHOUT_EFFECT))
            raise ValueError(f"levers: {pair}: expected flag=value, with one of the flags {known}")
        if name in READ:
            levers[name] = _typed(name, value)
    if "optimizer" in levers and not levers["optimizer"].startswith("fused_"):
        levers["optimizer"] = reference_optimizer(levers["optimizer"])  # the source names fused optimizers
    return levers


def _typed(name: str, value: str) -> Any:
    """Returns a flag's value with the type of its default."""
    default = next(getattr(section, name) for section in sections(TrainConfig()) if hasattr(section, name))
    if isinstance(default, bool):
        if value not in ("true", "false"):
            raise ValueError(f"levers: {name}={value}: expected true or false")
        return value == "true"
    try:
        return type(default)(value)
    except ValueError:
        raise ValueError(f"levers: {name}={value}: expected a number") from None


def _stated_steps(note: str, samples: int) -> int:
    """Returns the micro-batches of an update from the global batch in a note, a plain number or one with K."""
    stated = re.search(r"global batch (\d+)(K?)", note)
    if not stated:
        return UNSTATED_ACCUMULATION
    return max(1, round(int(stated[1]) * (1024 if stated[2] else 1) / samples))
