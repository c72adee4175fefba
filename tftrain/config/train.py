"""The configuration of a run: frozen dataclasses, one field per flag, checked in one place.

`tftrain.cli.flags` makes the command line from the fields, so a new lever is one field here. Nothing in this package
imports TensorFlow: a wrong flag is refused before TensorFlow starts.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from tftrain.config import attention_core, combinations, mixture, param_groups, phases
from tftrain.config.compute import ComputeConfig
from tftrain.config.data import DataConfig
from tftrain.config.fields import ConfigError, Problem, field_problems, sections
from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.config.model import ModelConfig
from tftrain.config.optimizer import OptimizerConfig
from tftrain.config.parallel import BatchConfig, ParallelConfig
from tftrain.config.paths import with_absolute_paths
from tftrain.config.phases import Timeline
from tftrain.config.run import CheckpointConfig, EvaluationConfig, LimitsConfig, LogConfig, RunConfig


@dataclass(frozen=True)
class TrainConfig:
    """The whole configuration of `tftrain.run`."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    fine_tuning: FineTuningConfig = FineTuningConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    batch: BatchConfig = BatchConfig()
    parallel: ParallelConfig = ParallelConfig()
    compute: ComputeConfig = ComputeConfig()
    log: LogConfig = LogConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    limits: LimitsConfig = LimitsConfig()
    run: RunConfig = RunConfig()

    def problems(self, ranks: int) -> list[Problem]:
        """Returns every reason to refuse this configuration on this number of ranks."""
        if self.data.phases and not self.model.reads_examples:
            return self.problems_of_phases(lambda phase: phase.problems(ranks))
        of_fields = [problem for section in sections(self) for problem in field_problems(section)]
        data, model, batch, parallel, compute = self.data, self.model, self.batch, self.parallel, self.compute
        run, checkpoint, compares = self.run, self.checkpoint, self.fine_tuning.compares_samples(model.task)
        problems = [
            *of_fields,
            *combinations.check_model(model, data, compute, parallel),
            *combinations.check_examples(self.fine_tuning, model, data, run.mode),
            *combinations.check_data(data, model, batch),
            *combinations.check_schedule(self.optimizer, run.max_steps),
            *combinations.check_ranks(parallel, model, data, compute, ranks),
            *(combinations.check_sums(compute, parallel, compares) if run.mode == "train" else ()),
            *combinations.check_buckets(data, model, batch, parallel),
            *combinations.check_spikes(self.limits, checkpoint, data, run.max_steps),
            *combinations.check_reports(self.log),
            *combinations.check_evaluation(self.evaluation, self.optimizer, run, self.fine_tuning),
            *combinations.check_output(run, self.fine_tuning),
        ]
        least = 2 if compares and run.mode == "train" else 1
        return problems + combinations.check_batch(batch, parallel, ranks, {each.flag for each in problems}, least)

    @property
    def phases(self) -> list["TrainConfig"]:
        """The configurations of the phases, in order, as of runs by hand; for the ConfigError, see `phases.read`."""
        own = phases.read(self.data, self.batch)
        return [dataclasses.replace(self, data=phase.data, batch=phase.batch) for phase in own]

    @property
    def longest_phase(self) -> "TrainConfig":
        """The configuration of the phase with the longest sequences, the last one of several."""
        return max(reversed(self.phases), key=lambda phase: phase.data.max_seq_length or 0)

    @property
    def timeline(self) -> Timeline:
        """The phases of a resolved configuration with the sizes that the data gives."""
        return phases.timeline(self.data, self.batch)

    def change_phases(self, change: Callable[["TrainConfig"], "TrainConfig"]) -> "TrainConfig":
        """Returns this configuration with each of its phases changed.

        It is that of the last phase. Its `phases` have all flags of each, so they mean the same after a change of the
        file.
        """
        if not self.data.phases:
            return change(self)
        own = phases.read(self.data, self.batch)
        changed = [change(dataclasses.replace(self, data=phase.data, batch=phase.batch)) for phase in own]
        pairs = zip(own, changed, strict=True)
        value = phases.resolved([phase._replace(data=each.data, batch=each.batch) for phase, each in pairs])
        return dataclasses.replace(changed[-1], data=dataclasses.replace(changed[-1].data, phases=value))

    def problems_of_phases(self, check: Callable[["TrainConfig"], list[Problem]]) -> list[Problem]:
        """Returns what a check says of each phase, see `phases.numbered`."""
        try:
            return phases.numbered(self.data.phases, [check(phase) for phase in self.phases])
        except ConfigError as error:
            return error.problems

    @property
    def has_tf32(self) -> bool:
        """Whether fp32 matrix products are in TF32 on a GPU that can."""
        return self.compute.precision == "fp32" and self.compute.tensor_float_32 and not self.compute.deterministic

    def compiles(self, gpu: bool) -> bool:
        """Returns whether XLA compiles the step, or pieces of it under tensor parallelism. auto: on a GPU."""
        return self.compute.compiles(gpu, self.parallel.has_deferred_collectives)

    def compiles_whole(self, gpu: bool) -> bool:
        """Returns whether XLA compiles all computation of a micro-batch, which then has no collectives."""
        return self.compiles(gpu) and self.parallel.tensor_parallel_size == 1

    def attention(self, gpu: bool) -> attention_core.AttentionChoice:
        """Returns the attention core of the longest phase, and the lengths of the rows of all phases."""
        each = [attention_core.chosen(p.model, p.data, p.compute, p.parallel, gpu) for p in self.phases]
        longest = max(each, key=lambda choice: max(choice.lengths, default=0))
        return longest._replace(lengths=tuple(sorted({length for choice in each for length in choice.lengths})))

    def shards_weights(self, ranks: int) -> bool:
        """Returns whether each of `ranks` ranks holds a shard of the weights."""
        return self.parallel.split_weights and ranks > 1

    def resolve(self, ranks: int) -> "TrainConfig":
        """Returns this configuration with the batch sizes and the warm-up filled in, and with absolute paths.

        With phases, it is the configuration of the last phase, see `change_phases`. Raises a ConfigError with all
        problems.
        """
        problems = self.problems(ranks)
        if problems:
            raise ConfigError(problems)
        return self.change_phases(lambda phase: phase._filled(ranks))

    def _filled(self, ranks: int) -> "TrainConfig":
        warmup = self.optimizer.warmup_steps
        warmup = self.run.max_steps // 10 if warmup is None else warmup
        decay = self.optimizer.decay_steps
        if decay is None and self.optimizer.schedule == "wsd":
            decay = max(1, min(self.run.max_steps // 10, self.run.max_steps - warmup))
        return dataclasses.replace(
            self,
            data=dataclasses.replace(with_absolute_paths(self.data), mix=mixture.with_absolute_paths(self.data.mix)),
            fine_tuning=with_absolute_paths(self.fine_tuning),
            batch=self.batch.resolve(self.parallel.data_parallel_size(ranks)),
            optimizer=dataclasses.replace(
                self.optimizer,
                warmup_steps=warmup,
                decay_steps=decay,
                param_groups=param_groups.resolved(self.optimizer.param_groups),
            ),
        )
