"""The configuration of a run: frozen dataclasses, one field per flag, checked in one place.

`tftrain.flags` makes the command line from the fields, so a new lever is one field here. Nothing in this module imports
TensorFlow: a wrong flag is refused before TensorFlow starts.
"""

import dataclasses
import re
from dataclasses import dataclass

from tftrain import ramp
from tftrain.fields import ConfigError, Problem, field_problems, flag, sections

IMPLEMENTATIONS = ("reference", "fused")


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
    ln_impl: str = flag("reference", "LayerNorm by the fused op or by plain TensorFlow.", choices=IMPLEMENTATIONS)
    ln_dtype: str = flag(
        "compute",
        "Format of scale and shift of every LayerNorm; its statistics are fp32 in any case.",
        choices=("compute", "fp32"),
    )
    attn_softmax_impl: str = flag(
        "reference",
        "Scale, padding mask, softmax and dropout of the attention by one fused op or by plain TensorFlow.",
        choices=IMPLEMENTATIONS,
    )
    gelu_impl: str = flag(
        "reference", "Bias and GeLU, or GeGLU, by one fused op or by plain TensorFlow.", choices=IMPLEMENTATIONS
    )
    dropout_add_impl: str = flag(
        "reference",
        "Bias, hidden dropout and residual add by one fused op or by plain TensorFlow.",
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
        "Update rule (LAMB: arXiv 1904.00962; AdamW: arXiv 1711.05101), by plain TensorFlow or by fused ops.",
        choices=("lamb", "adamw", "fused_lamb", "fused_adamw"),
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
class BatchConfig:
    """global_batch_size = micro_batch_size * grad_accum_steps * data_parallel_size: state two, the third follows."""

    micro_batch_size: int | None = flag(
        None, "Samples of one forward pass on one rank; 8 if no batch size is given.", minimum=1
    )
    grad_accum_steps: int | None = flag(
        None, "Micro-batches accumulated into one update; 1 if it does not follow.", minimum=1
    )
    global_batch_size: int | None = flag(None, "Samples of one update over all ranks.", minimum=1)
    grad_accum_dtype: str = flag(
        "fp32",
        "Gradients of the micro-batches are added up in this format; fp16 scales the loss.",
        choices=("fp32", "fp16", "bf16"),
    )
    batch_rampup: str = flag(
        "none",
        "start:increment:samples: the global batch grows from start by increment at evenly spaced points of the first "
        "samples; the learning rate's schedule then counts samples. The other sizes are the full batch's.",
    )

    @property
    def ramp(self) -> ramp.Ramp:
        """The batch sizes of the run's updates; only when resolved."""
        return ramp.read(self.batch_rampup, self.global_batch_size)

    def resolve(self, data_parallel_size: int) -> "BatchConfig":
        """Fills in what is not stated.

        Args:
            data_parallel_size: ranks that share a global batch.

        Returns:
            A BatchConfig with all three sizes; grad_accum_steps is that of the full batch.

        Raises:
            ConfigError: the sizes contradict each other or do not divide, or a batch ramp can't lead to them.
        """
        try:
            sized, found = self._with_sizes(data_parallel_size), []
        except ConfigError as error:
            sized, found = dataclasses.replace(self, micro_batch_size=None), list(error.problems)
        found += ramp.problems(self.batch_rampup, sized.global_batch_size, sized.micro_batch_size, data_parallel_size)
        if found:
            raise ConfigError(found)
        return sized

    def _with_sizes(self, data_parallel_size):
        micro, accum, total = self.micro_batch_size, self.grad_accum_steps, self.global_batch_size
        ranks = data_parallel_size
        if total is None:
            micro, accum = micro or 8, accum or 1
            total = micro * accum * ranks
            return dataclasses.replace(self, micro_batch_size=micro, grad_accum_steps=accum, global_batch_size=total)
        if micro is None:
            accum = accum or 1
            micro = total // (accum * ranks)
        elif accum is None:
            accum = total // (micro * ranks)
        if micro * accum * ranks != total:
            stated = (self.micro_batch_size, self.grad_accum_steps)
            shown = [
                f"{name}={'any' if value is None else value}"
                for name, value in zip(("micro_batch_size", "grad_accum_steps"), stated, strict=True)
            ]
            expected = f"expected a product of {', '.join(shown)} and data_parallel_size={ranks}"
            raise ConfigError([Problem("global_batch_size", total, expected)])
        return dataclasses.replace(self, micro_batch_size=micro, grad_accum_steps=accum)


@dataclass(frozen=True)
class ParallelConfig:
    """How layers, optimizer state and gradients are divided among the ranks."""

    tensor_parallel_size: int = flag(
        1, "Ranks that split every layer between them; the others share the global batch.", minimum=1
    )
    split_opt_state: bool = flag(
        False, "Master weights and moments are divided among the data parallel ranks (ZeRO-1, arXiv 1910.02054)."
    )
    split_grad_accum: bool = flag(
        False, "So are the gradients that accumulate over micro-batches (ZeRO-2); implies split_opt_state."
    )
    state_split_strategy: str = flag(
        "even",
        "Who owns what: even, equal bytes of flat buckets; or whole tensors: naive, layer i on rank i modulo ranks; "
        "greedy:K, the largest first on the emptiest of K ranks.",
    )

    @property
    def splits_state(self) -> bool:
        """Whether master weights and moments are divided."""
        return self.split_opt_state or self.split_grad_accum

    def problems(self, ranks: int, model: ModelConfig) -> list[Problem]:
        """Returns every reason why so many ranks can't divide such a model so."""
        found, size = [], self.tensor_parallel_size
        if size > 0 and ranks % size:
            found.append(Problem("tensor_parallel_size", size, f"expected a divisor of the {ranks} ranks"))
        for name, width in (
            ("num_attention_heads", model.num_attention_heads),
            ("intermediate_size", model.feed_forward_size),
        ):
            if size > 0 and width % size:
                found.append(Problem("tensor_parallel_size", size, f"expected a divisor of {name}={width}"))
        if not re.fullmatch(r"even|naive|greedy:[1-9]\d*", self.state_split_strategy):
            expected = "expected even, naive, or greedy:K with K ranks, such as greedy:4"
            found.append(Problem("state_split_strategy", self.state_split_strategy, expected))
        elif self.state_split_strategy.startswith("greedy") and size > 0:
            owners, data_ranks = int(self.state_split_strategy.partition(":")[2]), max(ranks // size, 1)
            if self.splits_state and owners > data_ranks:
                expected = f"expected at most the {data_ranks} data parallel ranks"
                found.append(Problem("state_split_strategy", self.state_split_strategy, expected))
        return found


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
        None, "Folder for checkpoints, metrics.jsonl, config.json, TensorBoard events and plots."
    )
    max_steps: int = flag(1000, "Updates of the whole run.", minimum=1)
    log_every: int = flag(10, "Steps between log lines.", minimum=1)
    eval_every: int = flag(0, "Steps between evaluations of the held-out split; 0: only at the end.", minimum=0)
    eval_batches: int = flag(0, "Global batches of one evaluation; 0: the whole held-out split.", minimum=0)
    checkpoint_every: int = flag(0, "Steps between checkpoints; 0: only at the end.", minimum=0)
    keep_last: int = flag(3, "Checkpoints kept; older ones are removed.", minimum=1)
    resume: str = flag("auto", "Checkpoint to start from: the newest in output_dir, none, or a checkpoint's path.")
    seed: int = flag(
        1, "Seed of the initial weights, the data order, masking and dropout.", minimum=0, maximum=2**31 - 1
    )


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
        if model.hidden_size % model.num_attention_heads:
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
        found += self.parallel.problems(ranks, model)
        if self.parallel.tensor_parallel_size > 1 and self.compute.jit_compile == "true":
            expected = "expected auto or false with tensor_parallel_size > 1: XLA can't compile Horovod's collectives"
            found.append(Problem("jit_compile", "true", expected))
        if not self.compute.enable_resource_variables:
            expected = "expected true: tf.function of TensorFlow 2 has resource variables only"
            found.append(Problem("enable_resource_variables", False, expected))
        if not run.output_dir:
            found.append(Problem("output_dir", run.output_dir, "expected a folder for what the run writes"))
        batch_flags = {field.name for field in dataclasses.fields(self.batch)}
        if not any(problem.flag in batch_flags | {"tensor_parallel_size"} for problem in found):
            try:
                self.batch.resolve(ranks // self.parallel.tensor_parallel_size)
            except ConfigError as error:
                found += error.problems
        return found

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
            batch=self.batch.resolve(ranks // self.parallel.tensor_parallel_size),
            optimizer=dataclasses.replace(self.optimizer, warmup_steps=warmup),
        )


@dataclass(frozen=True)
class PrepareConfig:
    """What `tftrain.prepare` reads, how it cuts and masks, and where it writes."""

    input_files: str | None = flag(None, "Glob of UTF-8 text files, plain or .gz.")
    builtin_corpus: bool = flag(False, "Use the English documentation inside the installed Python packages.")
    builtin_corpus_mb: float = flag(0.0, "Megabytes of the built-in corpus; 0: all of it.", minimum=0)
    document_separator: str = flag(
        "blank_line",
        "Blank lines part documents, whose lines are paragraphs; or a file is a document, and blank "
        "lines part its paragraphs.",
        choices=("blank_line", "file"),
    )
    output_dir: str | None = flag(None, "Folder for shards, vocabulary and manifest.json.")
    overwrite: bool = flag(False, "Replace an earlier preparation in output_dir.")
    tokenizer_type: str = flag("wordpiece", "Tokenizer of the text.", choices=("wordpiece", "sentencepiece"))
    vocab_file: str | None = flag(None, "Use this vocabulary (vocab.txt, or a sentencepiece .model) and learn none.")
    vocab_size: int | None = flag(
        None, "Tokens of the learned vocabulary; by default 30522.", minimum=64, maximum=1 << 20
    )
    lower_case: bool = flag(True, "Lower-case the text and strip its accents.")
    max_seq_length: int = flag(128, "Tokens of an example, [CLS] and both [SEP] included.", minimum=8, maximum=1 << 16)
    short_seq_prob: float = flag(0.1, "Share of the examples that get a random, shorter length.", minimum=0, maximum=1)
    masking: str = flag(
        "dynamic",
        "Mask while training, or write masked records in the standard BERT format.",
        choices=("dynamic", "static"),
    )
    masked_lm_prob: float = flag(0.15, "Share of the tokens that static masking selects.", above=0, below=1)
    max_predictions_per_seq: int | None = flag(
        None, "Masked tokens of a static example at most; by default max_seq_length x masked_lm_prob.", minimum=1
    )
    whole_word_masking: bool = flag(False, "Static masking selects words, not pieces of words.")
    dupe_factor: int | None = flag(
        None,
        "Times that the text is used, each with new pairs and, if static, masks; by default 10 if static, else 1.",
        minimum=1,
    )
    eval_fraction: float = flag(0.02, "Share of the documents that is held out for evaluation.", minimum=0, below=1)
    shard_mb: float = flag(16.0, "Megabytes of text that make one shard, about.", above=0)
    num_workers: int | None = flag(None, "Processes; by default one a core. The output is the same for any.", minimum=1)
    seed: int = flag(
        1, "Seed of the split, the mixture of documents, the pairs and static masks.", minimum=0, maximum=2**31 - 1
    )

    def problems(self) -> list[Problem]:
        """Returns every reason to refuse this configuration."""
        found = field_problems(self)
        if bool(self.input_files) == self.builtin_corpus:
            found.append(Problem("input_files", self.input_files, "expected either input_files or builtin_corpus"))
        if not self.output_dir:
            found.append(Problem("output_dir", self.output_dir, "expected a folder for what is prepared"))
        if self.vocab_file and self.vocab_size:
            found.append(Problem("vocab_size", self.vocab_size, "expected nothing, as vocab_file is given"))
        if self.masking == "dynamic":
            for name in ("masked_lm_prob", "max_predictions_per_seq", "whole_word_masking"):
                if getattr(self, name) != getattr(PrepareConfig, name):
                    expected = "expected only with masking=static; dynamic masks follow the flag of training"
                    found.append(Problem(name, getattr(self, name), expected))
        elif (self.max_predictions_per_seq or 1) > self.max_seq_length - 3:
            found.append(
                Problem(
                    "max_predictions_per_seq",
                    self.max_predictions_per_seq,
                    f"expected at most {self.max_seq_length - 3}, max_seq_length without [CLS] and both [SEP]",
                )
            )
        return found
