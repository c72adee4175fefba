"""The configuration of a run: frozen dataclasses, one field per flag, checked in one place.

`tftrain.cli.flags` makes the command line from the fields, so a new lever is one field here. Nothing in this package
imports TensorFlow: a wrong flag is refused before TensorFlow starts.
"""

import dataclasses
from dataclasses import dataclass

from tftrain.config import combinations, mixture, param_groups, phases
from tftrain.config.compute import ComputeConfig
from tftrain.config.data import DataConfig
from tftrain.config.fields import ConfigError, Problem, field_problems, sections, with_absolute_paths
from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.config.model import ModelConfig
from tftrain.config.optimizer import OptimizerConfig
from tftrain.config.parallel import BatchConfig, ParallelConfig
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
            return phases.problems(self, lambda phase: phase.problems(ranks))
        problems = [problem for section in sections(self) for problem in field_problems(section)]
        return problems + combinations.problems(self, ranks, {problem.flag for problem in problems})

    @property
    def phases(self) -> list["TrainConfig"]:
        """The configurations of the phases, in order, as of runs by hand; this one alone if it has none."""
        return [phase.config for phase in phases.read(self)]

    @property
    def has_tf32(self) -> bool:
        """Whether fp32 matrix products are in TF32 on a GPU that can."""
        return self.compute.precision == "fp32" and self.compute.tensor_float_32 and not self.compute.deterministic

    def compiles(self, gpu: bool) -> bool:
        """Returns whether XLA compiles the step, or pieces of it under tensor parallelism. auto: on a GPU."""
        if self.compute.jit_compile == "auto":
            return gpu and not self.has_deferred_collectives
        return self.compute.jit_compile == "true"

    def compiles_whole(self, gpu: bool) -> bool:
        """Returns whether XLA compiles all computation of a micro-batch, which then has no collectives."""
        return self.compiles(gpu) and self.parallel.tensor_parallel_size == 1

    def shards_weights(self, ranks: int) -> bool:
        """Returns whether each of `ranks` ranks holds a shard of the weights."""
        return self.parallel.split_weights and ranks > 1

    @property
    def has_deferred_collectives(self) -> bool:
        """Whether backward is in halves, and each has sums over tensor parallel ranks in it."""
        parallel = self.parallel
        stages = parallel.pipeline_parallel_size > 1
        return stages and parallel.pipeline_schedule == "zero_bubble" and parallel.tensor_parallel_size > 1

    def resolve(self, ranks: int) -> "TrainConfig":
        """Returns this configuration with the batch sizes and the warm-up filled in, and with absolute paths.

        With phases, it is that of the last one, see `phases.change_each`.

        Raises:
            ConfigError: with all problems.
        """
        problems = self.problems(ranks)
        if problems:
            raise ConfigError(problems)
        return phases.change_each(self, lambda phase: phase._filled(ranks))

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
