"""A published row scaled to this machine: its flags of `tftrain.run`, what they cannot express, and whether it fits."""

from typing import NamedTuple

from tftrain.bench.config import BenchConfig
from tftrain.bench.published.scale import LocalMachine, Scale, scaled
from tftrain.bench.published.tables import Published
from tftrain.cli import flags
from tftrain.config.fields import ConfigError
from tftrain.config.model import FUSED_OPS
from tftrain.config.parallel import ParallelConfig
from tftrain.config.train import TrainConfig
from tftrain.plan import memory
from tftrain.plan.commands import layout_of
from tftrain.plan.workload import SPLITS, Workload, from_config, reference_optimizer

DROPOUT = 0.1
# The flags that say what model it is.
STRUCTURE = (
    *("model_family", "num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size"),
    *("max_position_embeddings", "norm_position", "activation", "use_bias_in_keys"),
)
DECODER_OPTIMIZER, ENCODER_OPTIMIZER = "fused_adamw", "lamb"


class Case(NamedTuple):
    """A row as it runs on this machine: its scaled workload, and what differs in a note.

    `flags` are those of tftrain.run, without those for its length and its output.
    """

    published: Published
    work: Workload
    flags: list[str]
    note: str

    @property
    def sizes(self) -> str:
        """The sizes of the run in words."""
        work, model = self.work, self.work.model
        sizes = f"{model.layers} x {model.width} with {model.attention_heads} heads, {model.vocab} words"
        batch = f"{work.micro_batch} x {work.seq} tokens x {round(work.micro_batches)}"
        return f"{sizes}; {batch}; {_ranks(work)}"


def prepare(published: Published, size: Scale, ranks: int, config: BenchConfig) -> Case:
    """Returns a row as it runs at a scale on at most `ranks` ranks, with the program's cpu_threads and extra_flags."""
    work = scaled(published.row.workload, size, ranks)
    return Case(published, work, [*_run_flags(work, published.levers), *config.run_flags()], _note(published, work))


def resolved(case: Case) -> TrainConfig:
    """Returns the resolved configuration of a case's flags on its ranks; ConfigError: the flags are wrong."""
    return flags.parse(TrainConfig, ["tftrain.run", *case.flags, "--output_dir=unused"]).resolve(case.work.ranks)


def refusal(case: Case, machine: LocalMachine) -> str | None:
    """Returns the reason why a case does not fit this machine by its plan; None if it fits.

    Wrong flags are no reason here: the run reports them.
    """
    try:
        config = resolved(case)
    except ConfigError:
        return None
    planned = from_config(config, case.work.dp, gpu=machine.gpu)
    needed = memory.estimate(planned, machine.constants).minimum / 1e9
    return f"does not fit here: {needed:.2f} of {machine.gb:.2f} GB a rank" if needed > machine.gb else None


def _run_flags(work: Workload, levers: dict[str, str]) -> list[str]:
    """Returns the flags of a scaled workload, with those `levers` of its row that a workload does not have.

    `tftrain.plan.workload.from_config` returns the same workload from these flags.
    """
    optimizer = levers.get("optimizer", DECODER_OPTIMIZER if work.model.causal else ENCODER_OPTIMIZER)
    values = {
        **{name: getattr(work.model.config, name) for name in STRUCTURE},
        "norm_position": "pre" if work.model.block.pre_norm else "post",
        "max_seq_length": work.seq,
        "hidden_dropout_prob": DROPOUT if work.hidden_dropout else 0,
        "attention_probs_dropout_prob": DROPOUT if work.attention_dropout else 0,
        **{lever: "fused" if op in work.fused else "reference" for op, lever in FUSED_OPS.items()},
        "optimizer": optimizer if optimizer.startswith("fused_") else reference_optimizer(optimizer),
        "grad_accum_dtype": work.accumulation or levers.get("grad_accum_dtype", "fp32"),
        **layout_of(work, ParallelConfig(**dict.fromkeys(SPLITS, True))),
        "state_split_strategy": work.split_strategy,
        "precision": work.precision,
        "jit_compile": work.compiled,
        "memory_optimization": work.grappler,
        "suppress_grappler": levers.get("suppress_grappler", "false"),
        "enable_resource_variables": "true",
        "hvd_fp16_compression": work.wire == "fp16",
        "sparse_as_dense": levers.get("sparse_as_dense", "true"),
    }
    return ["--synthetic_data", *(f"--{name}={str(value).lower()}" for name, value in values.items())]


def _note(published: Published, work: Workload) -> str:
    """Returns the differences between row and scaled workload, the assumptions, and the source's own note."""
    whole, levers, notes = published.row.workload, published.levers, []
    if not whole.model.causal:
        notes.append("resource variables are on in every row: TensorFlow 2 has no others")
        if "tokenizer_type" in levers:
            notes.append("tokenizer_type is a flag of tftrain.prepare: a run's token ids are random and need none")
        if work.compiled and (work.grappler != "none" or "suppress_grappler" in levers):
            notes.append("Grappler's settings reach graph mode only, and XLA compiles this row")
        if work.split_strategy != whole.split_strategy:
            notes.append(f"{work.split_strategy} of {work.dp} ranks for {whole.split_strategy} of {whole.dp}")
    elif whole.ranks != work.ranks:
        times = f"{whole.ranks / work.ranks:.4g} times as many ranks there"
        notes.append(f"{_ranks(work)} for {_ranks(whole)}: {times}")
    if whole.dp > 1 and work.dp == 1:
        notes.append("no data parallel ranks are left here, so nothing is split over them")
    if published.row.checkpointing_unstated:
        notes.append(f"checkpointing is not stated: {whole.checkpointing} assumed")
    if published.row.table == "gpt_launch_blocking":
        notes.append("CUDA_LAUNCH_BLOCKING is the environment's, not a flag: rows that differ in it alone are the same")
    notes += [f"{what} not stated: assumed" for what in published.assumed]
    return "; ".join([*notes, *([f"source: {published.note}"] if published.note else [])])


def _ranks(work: Workload) -> str:
    return f"dp {work.dp} x tp {work.tp} x pp {work.pp}"
