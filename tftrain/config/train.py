"""The configuration of a run: frozen dataclasses, one field per flag, checked in one place.

`tftrain.config.flags` makes the command line from the fields, so a new lever is one field here. Nothing in this room
imports TensorFlow: a wrong flag is refused before TensorFlow starts.
"""

import dataclasses
import math
from dataclasses import dataclass

from tftrain.config import fine_tuning, length_choice
from tftrain.config.families import listed
from tftrain.config.fields import ConfigError, Problem, field_problems, flag, sections, with_absolute_paths
from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.config.layer_split import split_layers
from tftrain.config.model import HEAD_SIZES, TASKS, ModelConfig
from tftrain.config.parallel import BatchConfig, ParallelConfig, schedule_problems
from tftrain.config.run import CheckpointConfig, EvaluationConfig, LimitsConfig, LogConfig, RunConfig

# The update rules of tftrain.optim.rules, and which of them have fused ops.
OPTIMIZERS = {"lamb": True, "adamw": True, "lion": False}


@dataclass(frozen=True)
class DataConfig:
    """Where the examples come from and how they become batches."""

    ON_RESUME = "named"

    data_dir: str | None = flag(
        None, "Folder that tftrain.prepare wrote; its manifest.json names shards and vocabulary.", path=True
    )
    train_files: str | None = flag(
        None, "Glob of TFRecords in the original BERT pre-training format, instead of data_dir.", path=True
    )
    eval_files: str | None = flag(None, "Glob of held-out TFRecords, used with train_files.", path=True)
    synthetic_data: bool = flag(False, "Train on random token ids instead of records, for benchmarks.")
    max_seq_length: int | None = flag(
        None, "Tokens of an example; by default as in the data, 128 if synthetic.", minimum=8
    )
    max_predictions_per_seq: int | None = flag(
        None,
        "Most masked tokens of an example; by default as in the data, or max_seq_length x masked_lm_prob.",
        minimum=1,
    )
    masked_lm_prob: float = flag(0.15, "Share of the tokens that dynamic masking selects.", above=0, below=1)
    whole_word_masking: bool = flag(False, "Dynamic masking selects whole words instead of word pieces.")
    seq_length_buckets: str = flag(
        "none",
        "Ascending lengths below max_seq_length, such as 128,256: batches have examples of similar length and are cut "
        "to the smallest of these lengths that holds them.",
    )
    data_readers: int = flag(
        2, "Threads that read and decode records on each rank.", minimum=1, maximum=256, on_resume="local"
    )


@dataclass(frozen=True)
class OptimizerConfig:
    """The update rule and its schedule."""

    ON_RESUME = "named"

    optimizer: str = flag(
        "lamb",
        "Update rule (LAMB: arXiv 1904.00962; AdamW: arXiv 1711.05101; Lion: arXiv 2302.06675), by fused ops where "
        "they are built, else by plain TensorFlow; the prefixes fused_ and reference_ force one.",
        choices=(
            *OPTIMIZERS,
            *(f"fused_{name}" for name, has_fused in OPTIMIZERS.items() if has_fused),
            *(f"reference_{name}" for name, has_fused in OPTIMIZERS.items() if has_fused),
        ),
        on_resume="fixed",
    )
    learning_rate: float = flag(
        1e-3, "Peak learning rate for the global batch; the number of ranks does not scale it.", above=0
    )
    end_learning_rate: float = flag(0.0, "Learning rate at max_steps.", minimum=0)
    warmup_steps: int | None = flag(
        None, "Steps of linear warm-up from 0; by default one tenth of max_steps.", minimum=0, on_resume="logged"
    )
    decay_power: float = flag(1.0, "Exponent of the polynomial decay after the warm-up.", above=0)
    weight_decay: float = flag(0.01, "Decoupled weight decay; biases and norm parameters have none.", minimum=0)
    adam_beta1: float = flag(0.9, "Decay of the first moment.", minimum=0, below=1)
    adam_beta2: float = flag(0.999, "Decay of the second moment.", minimum=0, below=1)
    adam_epsilon: float = flag(1e-6, "Added to the square root of the second moment.", above=0)
    clip_global_norm: float = flag(1.0, "Clip the gradient to this global norm; 0: no clipping.", minimum=0)


@dataclass(frozen=True)
class ComputeConfig:
    """Number formats, compilation and communication."""

    precision: str = flag(
        "fp32",
        "Format of forward and backward, over fp32 master weights; fp16 scales the loss.",
        choices=("fp32", "fp16", "bf16"),
        on_resume="logged",
    )
    jit_compile: str = flag(
        "auto",
        "Compile the step with XLA; with tensor parallelism, what is between the sums over ranks. auto: on a GPU.",
        choices=("auto", "true", "false"),
        on_resume="free",
    )
    deterministic: bool = flag(
        False, "Repeat a run bit for bit on GPUs too, on equal devices and as many ranks; slower.", on_resume="free"
    )
    activation_checkpointing: str = flag(
        "none",
        "Recompute activations in backward instead of keeping them. selective: the attention core's; full: all.",
        choices=("none", "selective", "full"),
        on_resume="free",
    )
    memory_optimization: str = flag(
        "default",
        "Grappler's memory optimizer in graph mode. none: off; default: TensorFlow's; or one heuristic.",
        choices=("none", "default", "heuristics", "recomputation", "scheduling", "swapping"),
        on_resume="free",
    )
    suppress_grappler: bool = flag(False, "Switch all of Grappler's graph optimizers off.", on_resume="free")
    enable_resource_variables: bool = flag(
        True, "Must be true: tf.function of TensorFlow 2 supports only resource variables.", on_resume="free"
    )
    hvd_fp16_compression: bool = flag(
        False, "Send gradients between ranks in fp16, with a dynamic loss scale.", on_resume="logged"
    )
    sparse_as_dense: bool = flag(
        True, "Reduce the embedding's gradient as one dense tensor instead of gathering its rows.", on_resume="free"
    )
    cpu_threads: int = flag(
        0,
        "TensorFlow threads on each rank; 0: the host's cores divided by its ranks.",
        minimum=0,
        maximum=1024,
        on_resume="local",
    )
    huge_pages: bool = flag(
        True, "On a CPU, allocate tensors in 2 MiB pages if kernel and C library support them.", on_resume="local"
    )
    device_peak_tflops: float | None = flag(
        None, "Peak rate of the device, used for mfu; known GPUs need none.", above=0, on_resume="local"
    )


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
        found = [problem for section in sections(self) for problem in field_problems(section)]
        model, data, optimizer, run = self.model, self.data, self.optimizer, self.run
        if model.num_attention_heads > 0 and model.hidden_size % model.num_attention_heads:
            expected = f"expected a multiple of num_attention_heads={model.num_attention_heads}"
            found.append(Problem("hidden_size", model.hidden_size, expected))
        if model.position_embedding not in model.family.positions and not model.is_decoder:
            expected = f"expected {' or '.join(model.family.positions)}, or --model_family={listed('causal')}"
            found.append(Problem("position_embedding", model.position_embedding, expected))
        if model.position_embedding == "rotary" and model.head_size % 2:
            expected = f"expected learned or alibi with heads of {model.head_size} elements: rotary turns pairs of them"
            found.append(Problem("position_embedding", model.position_embedding, expected))
        size = model.head_size if model.num_attention_heads > 0 else 0
        multiple, largest = HEAD_SIZES.get(model.attn_impl, (1, size))
        if size % multiple or size > largest:
            takes = f"{model.attn_impl} takes multiples of {multiple} up to {largest}"
            found.append(
                Problem("attn_impl", model.attn_impl, f"expected softmax with heads of {size} elements: {takes}")
            )
        if model.attn_impl == "cudnn":
            found += self._cudnn_problems()
        sources = [name for name in ("data_dir", "train_files", "synthetic_data") if getattr(data, name)]
        if model.task in TASKS:
            found += fine_tuning.problems(self.fine_tuning, model.task, model.model_family)
        if model.is_fine_tuned:
            expected = "remove this flag: fine-tuning reads train_file and eval_file"
            found += [Problem(name, getattr(data, name), expected) for name in sources]
        elif len(sources) != 1:
            given = "none" if not sources else ", ".join(sources)
            found.append(
                Problem(
                    "data_dir",
                    data.data_dir,
                    f"expected exactly one of data_dir, train_files and synthetic_data, given: {given}",
                )
            )
        if data.eval_files and not data.train_files:
            found.append(Problem("eval_files", data.eval_files, "expected together with train_files"))
        if model.position_embedding == "learned" and (data.max_seq_length or 0) > model.max_position_embeddings:
            expected = f"expected at most max_position_embeddings={model.max_position_embeddings}"
            found.append(Problem("max_seq_length", data.max_seq_length, expected))
        if optimizer.end_learning_rate > max(optimizer.learning_rate, 0):
            expected = f"expected at most learning_rate={optimizer.learning_rate}"
            found.append(Problem("end_learning_rate", optimizer.end_learning_rate, expected))
        if (optimizer.warmup_steps or 0) > max(run.max_steps, 0):
            found.append(Problem("warmup_steps", optimizer.warmup_steps, f"expected at most max_steps={run.max_steps}"))
        widths = {"num_attention_heads": model.num_attention_heads, "intermediate_size": model.feed_forward_size}
        found += self.parallel.problems(ranks, widths)
        parallel = self.parallel
        try:
            sizes = model.num_hidden_layers, parallel.pipeline_parallel_size, parallel.virtual_pipeline_size
            split_layers(*(max(1, size) for size in sizes), parallel.pipeline_split)
        except ConfigError as error:
            found += error.problems
        if parallel.pipeline_schedule == "zero_bubble" and self.compute.activation_checkpointing == "full":
            expected = (
                "expected none or selective with pipeline_schedule=zero_bubble, which computes backward in halves"
            )
            found.append(Problem("activation_checkpointing", "full", expected))
        if (model.vocab_size or math.inf) < self.parallel.tensor_parallel_size:
            expected = (
                f"expected at least one word for each of tensor_parallel_size={self.parallel.tensor_parallel_size}"
            )
            found.append(Problem("vocab_size", model.vocab_size, expected))
        if self._has_deferred_collectives and self.compute.jit_compile == "true":
            expected = (
                "expected auto or false with tensor_parallel_size > 1 and pipeline_schedule=zero_bubble: the halves of "
                "backward share tensors that pieces compiled by XLA would hide"
            )
            found.append(Problem("jit_compile", "true", expected))
        length, size = data.max_seq_length or 0, parallel.tensor_parallel_size
        if parallel.sequence_parallel and size < 2:
            found.append(Problem("sequence_parallel", True, "expected together with tensor_parallel_size > 1"))
        elif parallel.sequence_parallel and length % size:
            expected = f"expected a multiple of tensor_parallel_size={size} with sequence_parallel"
            found.append(Problem("max_seq_length", length, expected))
        found += self._bucket_problems()
        if not self.compute.enable_resource_variables:
            expected = "expected true: tf.function of TensorFlow 2 supports only resource variables"
            found.append(Problem("enable_resource_variables", False, expected))
        if not run.output_dir:
            found.append(Problem("output_dir", run.output_dir, "expected a folder for what the run writes"))
        batch_flags = {field.name for field in dataclasses.fields(self.batch)}
        batch_flags |= {"tensor_parallel_size", "pipeline_parallel_size", "pipeline_schedule", "virtual_pipeline_size"}
        if not any(problem.flag in batch_flags for problem in found):
            try:
                found += self._schedule_problems(self.parallel.data_parallel_size(ranks))
            except ConfigError as error:
                found += error.problems
        return found

    def _bucket_problems(self) -> list[Problem]:
        """Returns why batches can't be cut to seq_length_buckets, as far as that does not depend on the data."""
        given, model, parallel = self.data.seq_length_buckets, self.model, self.parallel
        if given == length_choice.NONE:
            return []
        reasons = {
            f"--model_family={model.model_family} has sequences of full length": model.is_decoder,
            "fine-tuning makes batches of one length": model.is_fine_tuned,
            "--synthetic_data has rows of full length": self.data.synthetic_data,
            "--batch_rampup changes the size of the batches that are arranged by length": self.batch.batch_rampup
            != "none",
        }
        for reason, holds in reasons.items():
            if holds:
                return [Problem("seq_length_buckets", given, f"expected none: {reason}")]
        divisor = max(1, parallel.tensor_parallel_size) if parallel.sequence_parallel else 1
        return length_choice.problems(given, self.data.max_seq_length, divisor)

    def _schedule_problems(self, data_parallel_size: int) -> list[Problem]:
        """Returns why the pipeline schedule can't run the global batch, or a smaller one of the batch ramp.

        Raises:
            ConfigError: the batch sizes contradict each other.
        """
        batch, parallel = self.batch.resolve(data_parallel_size), self.parallel
        for stage in batch.ramp.stages():
            count = stage.batch_size // (batch.micro_batch_size * data_parallel_size)
            sizes = parallel.pipeline_parallel_size, count, parallel.virtual_pipeline_size
            if found := schedule_problems(parallel.pipeline_schedule, *sizes):
                return found
        return []

    def _cudnn_problems(self) -> list[Problem]:
        """Returns a reason why cuDNN can't compute the attention, as far as it depends on neither data nor device."""
        model, compute = self.model, self.compute
        reasons = {
            "precision=fp32: cuDNN takes fp16 and bf16": compute.precision == "fp32",
            "attention_probs_dropout_prob above 0: cuDNN would draw other masks after a resume": (
                model.attention_probs_dropout_prob > 0
            ),
            "position_embedding=alibi: cuDNN would need a bias for each pair of tokens": (
                model.position_embedding == "alibi"
            ),
            "deterministic: cuDNN adds gradients in any order": compute.deterministic,
            "a step that XLA does not compile": not self.compiles(gpu=True),
        }
        reason = next((reason for reason, holds in reasons.items() if holds), None)
        return [Problem("attn_impl", "cudnn", f"expected flash or softmax with {reason}")] if reason else []

    def compiles(self, gpu: bool) -> bool:
        """Returns whether XLA compiles the step, or pieces of it under tensor parallelism. auto: on a GPU.

        Args:
            gpu: whether the run's device is a GPU.
        """
        if self.compute.jit_compile == "auto":
            return gpu and not self._has_deferred_collectives
        return self.compute.jit_compile == "true"

    def compiles_whole(self, gpu: bool) -> bool:
        """Returns whether XLA compiles all computation of a micro-batch, which then has no collectives."""
        return self.compiles(gpu) and self.parallel.tensor_parallel_size == 1

    @property
    def _has_deferred_collectives(self) -> bool:
        """Whether backward is in halves, and each has sums over tensor parallel ranks in it."""
        parallel = self.parallel
        stages = parallel.pipeline_parallel_size > 1
        return stages and parallel.pipeline_schedule == "zero_bubble" and parallel.tensor_parallel_size > 1

    def resolve(self, ranks: int) -> "TrainConfig":
        """Returns this configuration with the batch sizes and the warm-up filled in, and with absolute paths.

        Args:
            ranks: the number of all ranks.

        Raises:
            ConfigError: with all problems.
        """
        found = self.problems(ranks)
        if found:
            raise ConfigError(found)
        warmup = self.optimizer.warmup_steps
        warmup = self.run.max_steps // 10 if warmup is None else warmup
        return dataclasses.replace(
            self,
            data=with_absolute_paths(self.data),
            fine_tuning=with_absolute_paths(self.fine_tuning),
            batch=self.batch.resolve(self.parallel.data_parallel_size(ranks)),
            optimizer=dataclasses.replace(self.optimizer, warmup_steps=warmup),
        )
