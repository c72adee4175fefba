"""The configuration of a run: frozen dataclasses, one field per flag, checked in one place.

`tftrain.flags` makes the command line from the fields, so a new lever is one field here. Nothing in this module imports
TensorFlow: a wrong flag is refused before TensorFlow starts.
"""

import dataclasses
import math
from dataclasses import dataclass

from tftrain.fields import ConfigError, Problem, field_problems, flag, sections
from tftrain.log import LEVELS
from tftrain.parallel_config import BatchConfig, ParallelConfig

IMPLEMENTATIONS = ("auto", "fused", "reference")
# The update rules of tftrain.optim.rules, and which of them have fused ops.
OPTIMIZERS = {"lamb": True, "adamw": True, "lion": False}


@dataclass(frozen=True)
class ModelConfig:
    """The encoder's sizes and what its blocks are made of."""

    vocab_size: int | None = flag(None, "Rows of the embedding; by default those of the data's vocabulary.", minimum=6)
    num_hidden_layers: int = flag(12, "Transformer blocks.", minimum=1)
    hidden_size: int = flag(768, "Width of the residual stream; a multiple of num_attention_heads.", minimum=1)
    num_attention_heads: int = flag(12, "Attention heads in each block.", minimum=1)
    intermediate_size: int | None = flag(
        None, "Width of the feed-forward layer; by default 4 x hidden_size.", minimum=1
    )
    max_position_embeddings: int = flag(512, "Longest sequence that the position embedding holds.", minimum=1)
    type_vocab_size: int = flag(2, "Token types (segments).", minimum=1)
    norm_position: str = flag(
        "post", "LayerNorm after each residual add, as BERT, or before each sub-layer.", choices=("post", "pre")
    )
    activation: str = flag(
        "gelu", "Feed-forward activation; geglu has a second, gating projection.", choices=("gelu", "geglu")
    )
    gelu_form: str = flag(
        "tanh", "GeLU by the tanh approximation of the original BERT, or exactly by erf.", choices=("tanh", "erf")
    )
    ln_impl: str = flag(
        "auto",
        "LayerNorm by the fused op or by plain TensorFlow; auto: fused where the op is built and takes the model.",
        choices=IMPLEMENTATIONS,
    )
    ln_dtype: str = flag(
        "compute",
        "Format of scale and shift of every LayerNorm; its statistics are always fp32.",
        choices=("compute", "fp32"),
    )
    attn_softmax_impl: str = flag(
        "auto",
        "Scale, padding mask, softmax and dropout of the attention by one fused op or by plain TensorFlow; auto: as "
        "for ln_impl.",
        choices=IMPLEMENTATIONS,
    )
    gelu_impl: str = flag(
        "auto",
        "Bias and GeLU, or GeGLU, by one fused op or by plain TensorFlow; auto: as for ln_impl.",
        choices=IMPLEMENTATIONS,
    )
    dropout_add_impl: str = flag(
        "auto",
        "Bias, hidden dropout and residual add by one fused op or by plain TensorFlow; auto: as for ln_impl.",
        choices=IMPLEMENTATIONS,
    )
    use_bias_in_keys: bool = flag(True, "A bias in the key projection (it cancels in the softmax, and costs a little).")
    hidden_dropout_prob: float = flag(0.1, "Dropout after the embeddings and after each sub-layer.", minimum=0, below=1)
    attention_probs_dropout_prob: float = flag(0.1, "Dropout on the attention probabilities.", minimum=0, below=1)
    initializer_range: float = flag(0.02, "Standard deviation of the truncated normal initial weights.", above=0)
    layer_norm_epsilon: float = flag(1e-12, "Added to the variance in every LayerNorm.", above=0)

    @property
    def feed_forward_size(self) -> int:
        """Width of the feed-forward layer: `intermediate_size`, or 4 x `hidden_size`."""
        return self.intermediate_size or 4 * self.hidden_size

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads


@dataclass(frozen=True)
class DataConfig:
    """Where the examples come from and how they become batches."""

    data_dir: str | None = flag(None, "Folder made by tftrain.prepare: its manifest.json names shards and vocabulary.")
    train_files: str | None = flag(None, "Glob of TFRecords in the original BERT pre-training format, not data_dir.")
    eval_files: str | None = flag(None, "Glob of held-out TFRecords that go with train_files.")
    synthetic_data: bool = flag(False, "Random token ids instead of records, for benchmarks.")
    max_seq_length: int | None = flag(
        None, "Tokens of an example; by default the data's own, 128 if synthetic.", minimum=8
    )
    max_predictions_per_seq: int | None = flag(
        None,
        "Masked tokens of an example at most; by default the data's own, or max_seq_length x masked_lm_prob.",
        minimum=1,
    )
    masked_lm_prob: float = flag(0.15, "Share of the tokens that dynamic masking selects.", above=0, below=1)
    whole_word_masking: bool = flag(False, "Dynamic masking selects words, not pieces of words.")
    data_readers: int = flag(2, "Threads that read and decode records on each rank.", minimum=1)


@dataclass(frozen=True)
class OptimizerConfig:
    """The update rule and its schedule."""

    optimizer: str = flag(
        "lamb",
        "Update rule (LAMB: arXiv 1904.00962; AdamW: arXiv 1711.05101; Lion: arXiv 2302.06675), by fused ops where "
        "they are built, else by plain TensorFlow; fused_ and reference_ in front of the name force one.",
        choices=(
            *OPTIMIZERS,
            *(f"fused_{name}" for name, has_fused in OPTIMIZERS.items() if has_fused),
            *(f"reference_{name}" for name, has_fused in OPTIMIZERS.items() if has_fused),
        ),
    )
    learning_rate: float = flag(
        1e-3, "Peak learning rate of the global batch; never scaled by the rank count.", above=0
    )
    end_learning_rate: float = flag(0.0, "Learning rate at max_steps.", minimum=0)
    warmup_steps: int | None = flag(None, "Steps of linear warm-up from 0; by default a tenth of max_steps.", minimum=0)
    decay_power: float = flag(1.0, "Power of the polynomial decay after the warm-up.", above=0)
    weight_decay: float = flag(0.01, "Decoupled weight decay; biases and norm parameters have none.", minimum=0)
    adam_beta1: float = flag(0.9, "Decay of the first moment.", minimum=0, below=1)
    adam_beta2: float = flag(0.999, "Decay of the second moment.", minimum=0, below=1)
    adam_epsilon: float = flag(1e-6, "Added to the root of the second moment.", above=0)
    clip_global_norm: float = flag(1.0, "Largest global norm of the gradient; 0 does not clip.", minimum=0)


@dataclass(frozen=True)
class ComputeConfig:
    """Number formats, compilation and communication."""

    precision: str = flag(
        "fp32",
        "Forward and backward in this format over fp32 master weights; fp16 scales the loss.",
        choices=("fp32", "fp16", "bf16"),
    )
    jit_compile: str = flag(
        "auto", "Compile the step with XLA; auto: on GPU yes, on CPU no.", choices=("auto", "true", "false")
    )
    activation_checkpointing: str = flag(
        "none",
        "Compute activations again in backward instead of keeping them: the attention core's, or all of each block.",
        choices=("none", "selective", "full"),
    )
    memory_optimization: str = flag(
        "default",
        "Grappler's memory optimizer in graph mode: off, TensorFlow's default, or one of its heuristics.",
        choices=("none", "default", "heuristics", "recomputation", "scheduling", "swapping"),
    )
    suppress_grappler: bool = flag(False, "Graph mode without any of Grappler's graph rewriting.")
    enable_resource_variables: bool = flag(True, "Always true: tf.function of TensorFlow 2 has no other variables.")
    hvd_fp16_compression: bool = flag(False, "Gradients travel between ranks in fp16, under a dynamic loss scale.")
    sparse_as_dense: bool = flag(True, "Reduce the embedding's gradient as one dense tensor, not as gathered rows.")
    cpu_threads: int = flag(0, "TensorFlow's threads on each rank; 0: the host's cores shared by its ranks.", minimum=0)
    huge_pages: bool = flag(True, "On the CPU, tensors lie in pages of 2 MiB where kernel and C library offer them.")
    device_peak_tflops: float | None = flag(
        None, "The device's peak rate, for mfu, where it is not a known GPU.", above=0
    )


@dataclass(frozen=True)
class RunConfig:
    """How long a run goes on, what it reports and what it keeps."""

    mode: str = flag("train", "Train, or evaluate the newest (or the named) checkpoint.", choices=("train", "evaluate"))
    output_dir: str | None = flag(
        None, "Folder for checkpoints, metrics.jsonl, log.txt, config.json, TensorBoard events and plots."
    )
    max_steps: int = flag(1000, "Updates of the whole run.", minimum=1)
    log_every: int = flag(10, "Steps between log lines.", minimum=1)
    log_format: str = flag(
        "short",
        "One short line for each logged step, or the whole line in the manner of Megatron-LM, which is always written "
        "to OUTPUT_DIR/log.txt.",
        choices=("short", "megatron"),
    )
    log_level: str = flag("info", "The least important messages that are shown.", choices=LEVELS)
    eval_every: int = flag(
        0, "Steps between evaluations of the held-out split; 0: only at the end; -1: never.", minimum=-1
    )
    eval_batches: int = flag(0, "Global batches of one evaluation; 0: the whole held-out split.", minimum=0)
    checkpoint_every: int = flag(0, "Steps between checkpoints; 0: only at the end.", minimum=0)
    checkpoint_async: bool = flag(True, "Training goes on while a checkpoint is written; it waits for a copy only.")
    keep_last: int = flag(3, "Checkpoints kept; older ones are removed.", minimum=1)
    keep_every: int = flag(0, "Checkpoints whose step is a multiple of it are kept as well; 0: none.", minimum=0)
    max_failed_saves: int = flag(3, "Checkpoints in a row that may fail before the run stops.", minimum=1)
    resume: str = flag("auto", "Checkpoint to start from: the newest in output_dir, none, or a checkpoint's path.")
    resume_check: str = flag(
        "xxh3_128",
        "Digest that must be right of every file of the checkpoint: XXH3 finds damage; SHA-256, slower than many "
        "disks, also finds files that were made for another manifest's digests.",
        choices=("xxh3_128", "sha256"),
    )
    change_on_resume: str = flag(
        "", "Flags, with commas between, that may differ from the checkpoint's although they change the mathematics."
    )
    start_timeout_seconds: float = flag(
        3600, "Longest time to connect, to restore a checkpoint, and for a step that is compiled.", above=0
    )
    step_timeout_seconds: float = flag(
        1800, "Longest time for a step, for its batch, and for a batch of an evaluation.", above=0
    )
    save_timeout_seconds: float = flag(1800, "Longest time for a checkpoint.", above=0)
    exit_timeout_seconds: float = flag(120, "Longest time from the last word of a run to its end.", above=0)
    preempt_save_seconds: float = flag(
        60, "After SIGTERM, SIGINT or SIGUSR1, longest time to finish the step and save.", above=0
    )
    max_nan_steps: int = flag(20, "Steps in a row whose loss or gradient is not finite that end the run.", minimum=1)
    spike_zscore: float = flag(
        6.0, "Standard deviations above its recent mean at which loss or gradient norm is a spike; 0: none.", minimum=0
    )
    machine_file: str = flag(
        "build/machine.json",
        "Measurements of this machine, as python -m tftrain.plan --measure writes them; without them, a run on a CPU "
        "reports no planned step time.",
    )
    seed: int = flag(
        1, "Seed of the initial weights, the data order, masking and dropout.", minimum=0, maximum=2**31 - 1
    )

    @property
    def keeps_copy(self) -> bool:
        """Whether there is memory for a copy of the state: training goes on while some checkpoint is written."""
        return self.checkpoint_async and 0 < self.checkpoint_every < self.max_steps


@dataclass(frozen=True)
class TrainConfig:
    """Everything that `tftrain.run` needs to know."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    batch: BatchConfig = BatchConfig()
    parallel: ParallelConfig = ParallelConfig()
    compute: ComputeConfig = ComputeConfig()
    run: RunConfig = RunConfig()

    def problems(self, ranks: int) -> list[Problem]:
        """Returns every reason to refuse this configuration on so many ranks."""
        found = [problem for section in sections(self) for problem in field_problems(section)]
        model, data, optimizer, run = self.model, self.data, self.optimizer, self.run
        if model.num_attention_heads > 0 and model.hidden_size % model.num_attention_heads:
            expected = f"expected a multiple of num_attention_heads={model.num_attention_heads}"
            found.append(Problem("hidden_size", model.hidden_size, expected))
        sources = [name for name in ("data_dir", "train_files", "synthetic_data") if getattr(data, name)]
        if len(sources) != 1:
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
        if (data.max_seq_length or 0) > model.max_position_embeddings:
            expected = f"expected at most max_position_embeddings={model.max_position_embeddings}"
            found.append(Problem("max_seq_length", data.max_seq_length, expected))
        if optimizer.end_learning_rate > optimizer.learning_rate:
            expected = f"expected at most learning_rate={optimizer.learning_rate}"
            found.append(Problem("end_learning_rate", optimizer.end_learning_rate, expected))
        if (optimizer.warmup_steps or 0) > run.max_steps:
            found.append(Problem("warmup_steps", optimizer.warmup_steps, f"expected at most max_steps={run.max_steps}"))
        widths = {"num_attention_heads": model.num_attention_heads, "intermediate_size": model.feed_forward_size}
        found += self.parallel.problems(ranks, widths)
        if (model.vocab_size or math.inf) < self.parallel.tensor_parallel_size:
            expected = (
                f"expected at least one word for each of tensor_parallel_size={self.parallel.tensor_parallel_size}"
            )
            found.append(Problem("vocab_size", model.vocab_size, expected))
        if self.parallel.tensor_parallel_size > 1 and self.compute.jit_compile == "true":
            expected = "expected auto or false with tensor_parallel_size > 1: XLA can't compile Horovod's collectives"
            found.append(Problem("jit_compile", "true", expected))
        if not self.compute.enable_resource_variables:
            expected = "expected true: tf.function of TensorFlow 2 has resource variables only"
            found.append(Problem("enable_resource_variables", False, expected))
        if not run.output_dir:
            found.append(Problem("output_dir", run.output_dir, "expected a folder for what the run writes"))
        batch_flags = {field.name for field in dataclasses.fields(self.batch)}
        batch_flags |= {"tensor_parallel_size", "pipeline_parallel_size"}
        if not any(problem.flag in batch_flags for problem in found):
            try:
                self.batch.resolve(self.parallel.data_parallel_size(ranks))
            except ConfigError as error:
                found += error.problems
        return found

    def compiles(self, gpu: bool) -> bool:
        """Whether XLA compiles the step: as `jit_compile` says; auto: on a GPU, where no collective stands in the way.

        Args:
            gpu: whether the run's device is a GPU.
        """
        if self.compute.jit_compile == "auto":
            return gpu and self.parallel.tensor_parallel_size == 1
        return self.compute.jit_compile == "true"

    def resolve(self, ranks: int) -> "TrainConfig":
        """Fills in what follows from the rest: the batch sizes and the warm-up.

        Args:
            ranks: all of them.

        Returns:
            This configuration with no batch size and no warm-up left open.

        Raises:
            ConfigError: it has problems; all of them.
        """
        found = self.problems(ranks)
        if found:
            raise ConfigError(found)
        warmup = self.optimizer.warmup_steps
        warmup = self.run.max_steps // 10 if warmup is None else warmup
        return dataclasses.replace(
            self,
            batch=self.batch.resolve(self.parallel.data_parallel_size(ranks)),
            optimizer=dataclasses.replace(self.optimizer, warmup_steps=warmup),
        )
