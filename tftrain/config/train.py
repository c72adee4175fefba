"""The configuration of a run: frozen dataclasses, one field per flag, checked in one place.

`tftrain.config.flags` makes the command line from the fields, so a new lever is one field here. Nothing in this package
imports TensorFlow: a wrong flag is refused before TensorFlow starts.
"""

import dataclasses
from dataclasses import dataclass

from tftrain.config import combinations, mixture, param_groups, phases
from tftrain.config.fields import ConfigError, Problem, field_problems, flag, sections, with_absolute_paths
from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.config.model import ModelConfig
from tftrain.config.parallel import BatchConfig, ParallelConfig
from tftrain.config.run import CheckpointConfig, EvaluationConfig, LimitsConfig, LogConfig, RunConfig
from tftrain.files.addresses import Cache

# The update rules of tftrain.optim.rules, and which of them have fused ops.
OPTIMIZERS = {"lamb": True, "adamw": True, "lion": False, "muon": False, "stableadamw": False}
ORTHOGONAL_ITERATIONS = 5  # of Newton and Schulz in an update of muon
_FORCED = [f"{how}_{name}" for how in ("fused", "reference") for name, has_fused in OPTIMIZERS.items() if has_fused]
_MEMORY_OPTIMIZERS = ("none", "default", "heuristics", "recomputation", "scheduling", "swapping")


@dataclass(frozen=True)
class DataConfig:
    """Where the examples come from and how they become batches."""

    ON_RESUME = "named"

    data_dir: str | None = flag(None, path=True)
    """Folder that tftrain.prepare wrote, or its address such as s3://bucket/data; its manifest.json names shards and
    vocabulary."""
    mix: str | None = flag(None, in_file=True)
    """Mixture of prepared data, instead of data_dir, such as wiki=0.7:data/wiki,code=0.3:data/code: names, shares of
    the samples, and folders or addresses; or a file with one source on each line."""
    mix_temperature: float = flag(1.0, above=0)
    """Shares of a mixture are raised to the power of 1 / mix_temperature: above 1, they become more alike."""
    train_files: str | None = flag(None, path=True)
    """Glob of TFRecords in the original BERT pre-training format, instead of data_dir."""
    eval_files: str | None = flag(None, "Glob of held-out TFRecords, used with train_files.", path=True)
    synthetic_data: bool = flag(False, "Train on random token ids instead of records, for benchmarks.")
    max_seq_length: int | None = flag(None, minimum=8)
    """Tokens of an example; by default as in the data, or 128 with synthetic_data."""
    max_predictions_per_seq: int | None = flag(None, minimum=1)
    """Most masked tokens of an example; by default as in the data, or max_seq_length x masked_lm_prob."""
    masked_lm_prob: float = flag(0.15, "Share of the tokens that dynamic masking selects.", above=0, below=1)
    whole_word_masking: bool = flag(False, "Dynamic masking selects whole words instead of word pieces.")
    document_mask: bool = flag(False)
    """The documents in a row of a decoder do not attend to each other, and positions begin again with each."""
    seq_length_buckets: str = flag("none")
    """Ascending lengths below max_seq_length, such as 128,256: batches have examples of similar length and are cut to
    the smallest of these lengths that holds them."""
    phases: str | None = flag(None, in_file=True)
    """File of phases: on each line until_samples=N or until_tokens=N, the consumed samples or tokens at its end, then
    the flags of data and batch that differ, such as data_dir=data/128 global_batch_size=4096; the last phase has no
    end. Or the lines themselves, separated by semicolons. Evaluations are of the phase that runs."""
    data_readers: int = flag(2, minimum=1, maximum=256, on_resume="host")
    """Threads that read and decode records on each rank."""
    cache_dir: str | None = flag(None, path=True, on_resume="host")
    """Local folder for copies of what is at addresses; by default tftrain in $XDG_CACHE_HOME or ~/.cache."""
    cache_gb: float = flag(100.0, minimum=0, on_resume="host")
    """Most GB (1e9 bytes) of prepared data in cache_dir, at most 80% of the free disk; records beyond it are read from
    their address each time."""

    @property
    def cache(self) -> Cache:
        """Where copies of what is at addresses are."""
        return Cache(self.cache_dir, int(self.cache_gb * 1e9))

    @property
    def sources(self) -> list[str]:
        """The flags that are given of those that each name the data."""
        return [name for name in ("data_dir", "mix", "train_files", "synthetic_data") if getattr(self, name)]

    @property
    def folder(self) -> str | None:
        """A folder of prepared data, which has the vocabulary: data_dir, or the first one of a mixture."""
        if not self.mix or mixture.problems(self):
            return self.data_dir
        return mixture.read(self.mix)[0].folder


_FALLING = ("polynomial", "cosine", "wsd", "inverse_sqrt")


@dataclass(frozen=True)
class OptimizerConfig:
    """The update rule and its schedule."""

    ON_RESUME = "named"

    optimizer: str = flag("lamb", choices=(*OPTIMIZERS, *_FORCED), on_resume="fixed")
    """Update rule (LAMB: arXiv 1904.00962; AdamW: arXiv 1711.05101; Lion: arXiv 2302.06675; Muon: arXiv 2502.16982;
    StableAdamW: arXiv 2304.13013), by fused ops where they are built, else by plain TensorFlow; the prefixes fused_ and
    reference_ force one."""
    learning_rate: float = flag(1e-3, above=0)
    """Peak learning rate for the global batch; the number of ranks does not scale it."""
    schedule: str = flag("polynomial", choices=(*_FALLING, "constant"))
    """How the learning rate falls after the warm-up. polynomial and cosine: until max_steps; constant: it stays; wsd:
    as a polynomial in the last decay_steps; inverse_sqrt: as 1 / sqrt(step)."""
    end_learning_rate: float = flag(0.0, minimum=0, restrict={"schedule": _FALLING})
    """Learning rate at max_steps; with inverse_sqrt, what it falls towards."""
    warmup_steps: int | None = flag(None, minimum=0, on_resume="logged")
    """Steps of linear warm-up from 0; by default one tenth of max_steps."""
    decay_power: float = flag(1.0, above=0, restrict={"schedule": ("polynomial", "wsd")})
    """Exponent of the decay of polynomial and wsd."""
    decay_steps: int | None = flag(None, minimum=1, on_resume="logged", restrict={"schedule": ("wsd",)})
    """Length of the decay of wsd; by default one tenth of max_steps, or what the warm-up leaves."""
    weight_decay: float = flag(0.01, "Decoupled weight decay; biases and norm parameters have none.", minimum=0)
    adam_beta1: float = flag(0.9, "Decay of the first moment.", minimum=0, below=1)
    adam_beta2: float = flag(0.999, "Decay of the second moment.", minimum=0, below=1)
    adam_epsilon: float = flag(1e-6, "Added to the square root of the second moment.", above=0)
    muon_momentum: float = flag(0.95, minimum=0, below=1, restrict={"optimizer": ("muon",)})
    """Momentum of optimizer=muon for the kernels of the blocks; the other weights have AdamW's betas."""
    clip_global_norm: float = flag(1.0, "Clip the gradient to this global norm; 0: no clipping.", minimum=0)
    ema_decay: float = flag(0.0, minimum=0, below=1, on_resume="logged")
    """Decay of an exponential moving average of the weights, such as 0.999, which weights=averaged evaluates; 0: no
    average. After t updates it is at most (1 + t) / (10 + t)."""
    param_groups: str | None = flag(None, in_file=True)
    """File of parameter groups: on each line a pattern of weights' names, then rate=X, which multiplies the learning
    rate, weight_decay=Y, or both, such as layer_0*/attention/* rate=0.5 weight_decay=0; or the lines themselves,
    separated by semicolons. A checkpoint holds the groups, not the file's name."""


@dataclass(frozen=True)
class ComputeConfig:
    """Number formats, compilation and communication."""

    precision: str = flag("fp32", choices=("fp32", "fp16", "bf16"), on_resume="logged")
    """Format of forward and backward, over fp32 master weights; fp16 scales the loss."""
    jit_compile: str = flag("auto", choices=("auto", "true", "false"), on_resume="free")
    """Compile the step with XLA; with tensor parallelism, the operations between sums over ranks. auto: on a GPU."""
    deterministic: bool = flag(False, on_resume="free")
    """Repeat a run bit for bit on GPUs too, on equal devices and in the same layout; slower."""
    tensor_float_32: bool = flag(True, on_resume="logged")
    """With precision=fp32 on GPUs from A100 on, round the operands of matrix products to TF32 (10 bits of mantissa), as
    TensorFlow does by default. false, or deterministic, keeps fp32: several times as slow."""
    activation_checkpointing: str = flag("none", choices=("none", "selective", "full"), on_resume="free")
    """Recompute activations in backward instead of storing them. selective: those of the attention core; full: all of a
    block except its input."""
    memory_optimization: str = flag("default", choices=_MEMORY_OPTIMIZERS, on_resume="free")
    """Grappler's memory optimizer in graph mode. none: off; default: TensorFlow's; or one heuristic."""
    suppress_grappler: bool = flag(False, "Switch all of Grappler's graph optimizers off.", on_resume="free")
    enable_resource_variables: bool = flag(True, on_resume="free")
    """Must be true: tf.function of TensorFlow 2 supports only resource variables."""
    hvd_fp16_compression: bool = flag(False, on_resume="logged")
    """Send gradients between ranks in fp16, with a dynamic loss scale. NCCL adds them in fp16, other transports in
    fp32."""
    sums_without_nccl: bool = flag(False, on_resume="local")
    """Let several ranks on GPUs train with a Horovod that has no NCCL: gradients are added in host memory, which is
    many times as slow."""
    sparse_as_dense: bool = flag(True, on_resume="free")
    """Sum the token embedding's gradient over ranks as one dense tensor instead of gathering its rows."""
    cpu_threads: int = flag(0, minimum=0, maximum=1024, on_resume="host")
    """TensorFlow threads on each rank; 0: the host's cores divided by its ranks."""
    huge_pages: bool = flag(True, on_resume="host")
    """On a CPU, allocate tensors in 2 MiB pages if kernel and C library support them."""
    device_peak_tflops: float | None = flag(None, above=0, on_resume="local")
    """Peak rate of the device, used for mfu; known GPUs need none."""


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
