"""A published measurement: a workload, its cluster and software system, and the measured figures."""

from collections.abc import Mapping
from typing import NamedTuple

from tftrain.config.train import TrainConfig
from tftrain.plan import reported_flops
from tftrain.plan.workload import Workload

NOT_STATED = {"layers": "model", "hidden": "model", "micro_batch": "batch", "grad_accum_steps": "accumulation"}
LEVERS_NOT_STATED = {"precision": "precision", "jit_compile": "XLA"}  # in a table that states no model either


class Reference(NamedTuple):
    """The measured figures; None if not stated."""

    gb: float | None = None  # peak memory of the fullest measured device in GB of 1e9 bytes; the sources count GiB
    out_of_memory: bool = False  # whether the run did not fit
    samples_per_sec_per_gpu: float | None = None
    sec_per_iteration: float | None = None
    tflops_per_gpu: float | None = None

    @property
    def ran(self) -> bool:
        """Whether the run gave a figure."""
        figures = (self.gb, self.samples_per_sec_per_gpu, self.sec_per_iteration, self.tflops_per_gpu)
        return not self.out_of_memory and any(figure is not None for figure in figures)


class PublishedRow(NamedTuple):
    """One row."""

    name: str  # `table/NN`
    table: str
    config: TrainConfig  # the run, as flags of tftrain.run say it
    workload: Workload  # the same, as the software of the run has it
    cluster: str  # name in `tftrain.plan.cluster`
    system: str  # name in `tftrain.plan.system`
    reference: Reference  # the measured figures
    formula: str = "exact"  # formula of the published TFLOPs: exact, old or corrected, see `reported_flops`
    counted: float = 1.0  # share of the samples that the published speed counts
    checkpointing_unstated: bool = False  # whether the source leaves checkpointing open
    # Whether the source leaves model, batch and device open: only changes against the table's first row are comparable.
    relative: bool = False
    remark: str = ""  # difference between the plan and the stated row; "" for none
    cells: Mapping[str, str] = {}  # the line of the file, by column

    @property
    def note(self) -> str:
        """The source's note."""
        return self.cells.get("note", "")

    @property
    def levers(self) -> dict[str, str]:
        """Flags and values as the source states them; a decoder's file has none."""
        return dict(pair.split("=") for pair in self.cells.get("levers", "").split())

    @property
    def assumed(self) -> list[str]:
        """Sizes and levers that the source does not state and the planner assumes."""
        unknown = [what for name, what in NOT_STATED.items() if self.cells.get(name) == ""]
        if self.relative:
            unknown += [what for name, what in LEVERS_NOT_STATED.items() if name not in self.levers]
        if "accumulation" in unknown and (self.workload.micro_batches == 1 or "global batch" in self.note):
            unknown.remove("accumulation")  # There is none, or it follows from what the note states.
        return list(dict.fromkeys(unknown))

    @property
    def settings(self) -> dict[str, str]:
        """The settings in which rows of a table differ: sizes, division and levers."""
        work, model = self.workload, self.workload.model
        values = {"layers": model.layers, "hidden": model.width, "heads": model.attention_heads, "seq": work.seq}
        values |= {"dp": work.dp, "tp": work.tp, "pp": work.pp, "micro_batch": work.micro_batch}
        if model.causal:
            values |= {"global_batch": work.global_batch, "zero_stage": work.zero_stage}
            values |= {"precision": work.precision, "activation_checkpointing": work.checkpointing}
        else:
            values |= {"grad_accum_steps": round(work.micro_batches), **self.levers}
            del values["tp"]  # among the levers
        return {name: str(value) for name, value in values.items()}

    def against(self, base: "PublishedRow") -> str:
        """Returns the settings of this row that differ from those of the table's base row."""
        own, other = self.settings, base.settings
        if self.name == base.name:
            return " ".join(f"{name}={value}" for name, value in own.items())
        changed = [f"{name}={value}" for name, value in own.items() if other.get(name) != value]
        return " ".join(changed + [f"no {name}" for name in other if name not in own]) or "the same settings"

    @property
    def reference_seconds(self) -> float | None:
        """Seconds of an iteration by the published figures; None if none is published."""
        reference, work = self.reference, self.workload
        if reference.sec_per_iteration:
            return reference.sec_per_iteration
        if reference.samples_per_sec_per_gpu:
            return work.global_batch * self.counted / (reference.samples_per_sec_per_gpu * work.ranks)
        if reference.tflops_per_gpu:
            return reported_flops.reported(work, self.formula) / (reference.tflops_per_gpu * 1e12 * work.ranks)
        return None
