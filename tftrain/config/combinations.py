"""Which flags of a run contradict each other: every rule over more than one flag, by the sections that it reads."""

import dataclasses
import math
from collections.abc import Iterator, Set

from tftrain.config import attention_core, cudnn, fine_tuning, length_choice, mixture, param_groups
from tftrain.config.compute import ComputeConfig
from tftrain.config.data import DataConfig
from tftrain.config.fields import ConfigError, Problem, first_reason, not_installed, refused, superfluous
from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.config.layer_split import split_layers
from tftrain.config.model import HEAD_SIZES, TASKS, WITH_CLASSES, ModelConfig
from tftrain.config.optimizer import OptimizerConfig
from tftrain.config.parallel import BatchConfig, ParallelConfig, schedule_problems
from tftrain.config.run import TRACKERS, CheckpointConfig, EvaluationConfig, LimitsConfig, LogConfig, RunConfig
from tftrain.families import listed, taking
from tftrain.families.rope import parse
from tftrain.files.addresses import is_address
from tftrain.host.user_code import CLASS, is_class_name


def check_model(
    model: ModelConfig, data: DataConfig, compute: ComputeConfig, parallel: ParallelConfig
) -> Iterator[Problem]:
    """Yields what contradicts in the model, and in what computes it."""
    heads, positions = model.num_attention_heads, model.position_embedding
    if heads > 0 and model.attention_head_size is None and model.hidden_size % heads:
        yield refused(model, "hidden_size", f"expected a multiple of --num_attention_heads={heads}")
    yield from _of_family(model)
    if positions == "rotary" and model.head_size % 2:
        if model.attention_head_size:
            yield Problem("attention_head_size", model.head_size, "expected an even number: rotary rotates pairs")
        else:
            expected = f"expected learned or alibi with heads of {model.head_size} elements: rotary rotates pairs"
            yield refused(model, "position_embedding", expected)
    if heads > 0 and heads % max(1, model.key_value_heads):
        yield refused(model, "num_key_value_heads", f"expected a divisor of --num_attention_heads={heads}")
    try:
        parse(model.rope_scaling)
    except ValueError as error:
        yield refused(model, "rope_scaling", str(error))
    size = model.head_size if heads > 0 else 0
    if not attention_core.takes_heads(model.attn_impl, size):
        multiple, largest = HEAD_SIZES[model.attn_impl]
        takes = f"{model.attn_impl} takes multiples of {multiple} up to {largest}"
        yield refused(model, "attn_impl", f"expected softmax with heads of {size} elements: {takes}")
    against = cudnn.reason_against(model, data, compute, parallel)
    yield from cudnn.problems(model, against and f" with {against}")
    if not compute.enable_resource_variables:
        expected = "expected true: tf.function of TensorFlow 2 supports only resource variables"
        yield refused(compute, "enable_resource_variables", expected)
    rate = model.attention_probs_dropout_prob
    if rate and not 0 < round(rate * 256) < 256:
        expected = "expected 0, or a number from 0.002 to 0.998: it is rounded to a multiple of 1/256"
        yield refused(model, "attention_probs_dropout_prob", expected)


def _of_family(model: ModelConfig) -> Iterator[Problem]:
    """Yields the flags whose value the family does not have."""
    choices = {field.name: field.metadata["choices"] for field in dataclasses.fields(model)}
    for name, values in model.family.values.items():
        value = getattr(model, name)
        if value not in values and value in (choices[name] or (value,)):
            takes = " or ".join(str(each).lower() for each in values if each is not None)
            expected = f"expected {takes}" if takes else "remove this flag"
            yield Problem(name, value, f"{expected}, or use --model_family={taking(name, value, model.objective)}")
    for name, part in model.without_fused_op.items():
        if getattr(model, name) == "fused":
            yield Problem(name, "fused", f"expected auto or reference: {part} has no fused op")


def check_examples(settings: FineTuningConfig, model: ModelConfig, data: DataConfig, mode: str) -> Iterator[Problem]:
    """Yields what contradicts in the task and its labelled examples."""
    if model.task in TASKS or model.is_custom:
        yield from fine_tuning.problems(settings, model.task, model.model_family, mode, data.mix)
    if model.labels and model.task in TASKS and model.task not in WITH_CLASSES:
        yield Problem("labels", model.labels[0], f"remove this flag, or use --task={', '.join(WITH_CLASSES)}")
    elif twice := next((label for label in model.labels if model.labels.count(label) > 1), None):
        yield Problem("labels", twice, "expected each class once")
    try:
        settings.widths(model.vector_size)
    except ValueError:
        expected = f"expected ascending numbers from 1 to {model.vector_size}, the length of the vectors, such as 32,64"
        yield refused(settings, "matryoshka_dims", expected)
    if model.reads_examples:
        expected = "remove this flag: fine-tuning reads --train_file and --eval_file"
        yield from superfluous(data, ("data_dir", "train_files", "synthetic_data", "phases"), expected)


def check_data(data: DataConfig, model: ModelConfig, batch: BatchConfig) -> Iterator[Problem]:
    """Yields what contradicts in the data of a pre-training, or in a mixture."""
    if not model.reads_examples and len(data.sources) != 1:
        named = ", ".join(f"--{name}" for name in data.sources) or "none"
        expected = f"expected exactly one of --data_dir, --mix, --train_files and --synthetic_data, given: {named}"
        yield refused(data, "data_dir", expected)
    if not data.mix:
        yield from superfluous(data, ("mix_temperature", "mix_by"), "remove this flag, or add --mix")
    yield from mixture.problems(data.mix, data.mix_temperature, data.mix_by, model.reads_examples, batch.batch_rampup)
    if data.document_mask and not (model.is_causal and (data.data_dir or data.mix) and not model.reads_examples):
        families = listed("causal")
        expected = f"remove this flag, or use --model_family={families} and --data_dir, which names the end token"
        yield Problem("document_mask", True, expected)
    if data.eval_files and not data.train_files:
        yield refused(data, "eval_files", "remove this flag, or add --train_files")
    if model.position_embedding == "learned" and (data.max_seq_length or 0) > model.max_position_embeddings:
        expected = f"expected at most --max_position_embeddings={model.max_position_embeddings}"
        yield refused(data, "max_seq_length", expected)


def check_schedule(optimizer: OptimizerConfig, max_steps: int) -> Iterator[Problem]:
    """Yields what contradicts in the update rule and its schedule."""
    yield from param_groups.problems(optimizer.param_groups)
    if optimizer.end_learning_rate > max(optimizer.learning_rate, 0):
        yield refused(optimizer, "end_learning_rate", f"expected at most --learning_rate={optimizer.learning_rate}")
    warmup = max_steps // 10 if optimizer.warmup_steps is None else optimizer.warmup_steps
    if warmup > max(max_steps, 0):
        yield refused(optimizer, "warmup_steps", f"expected at most --max_steps={max_steps}")
    stable = max(0, max_steps - warmup)
    if optimizer.schedule == "wsd" and (optimizer.decay_steps or 0) > stable:
        yield refused(optimizer, "decay_steps", f"expected at most {stable}, the steps after the warm-up")


def check_ranks(
    parallel: ParallelConfig, model: ModelConfig, data: DataConfig, compute: ComputeConfig, ranks: int
) -> Iterator[Problem]:
    """Yields why the ranks can't partition the work."""
    size, length = parallel.tensor_parallel_size, data.max_seq_length or 0
    widths = {"num_attention_heads": model.num_attention_heads, "intermediate_size": model.feed_forward_size}
    if model.num_key_value_heads:
        widths["num_key_value_heads"] = model.num_key_value_heads
    yield from parallel.problems(ranks, widths)
    try:
        sizes = model.num_hidden_layers, parallel.pipeline_parallel_size, parallel.virtual_pipeline_size
        split_layers(*(max(1, each) for each in sizes), parallel.pipeline_split)
    except ConfigError as error:
        yield from error.problems
    segments, divided = parallel.backward_segments or 1, parallel.pipeline_parallel_size > 1 or size > 1
    reasons = {
        "remove this flag: it is for runs without tensor parallel ranks and pipeline stages": divided,
        "remove this flag: with --split_weights, backward runs block by block": parallel.split_weights,
        f"expected at most --num_hidden_layers={model.num_hidden_layers}": segments > model.num_hidden_layers,
    }
    if segments > 1 and (expected := first_reason(reasons)):
        yield Problem("backward_segments", segments, expected)
    if parallel.pipeline_schedule == "zero_bubble" and compute.activation_checkpointing == "full":
        expected = "expected none or selective with --pipeline_schedule=zero_bubble, which computes backward in halves"
        yield Problem("activation_checkpointing", "full", expected)
    if (model.vocab_size or math.inf) < size:
        expected = f"expected at least --tensor_parallel_size={size} words"
        yield Problem("vocab_size", model.vocab_size, expected)
    if parallel.has_deferred_collectives and compute.jit_compile == "true":
        expected = (
            "expected auto or false with --tensor_parallel_size > 1 and --pipeline_schedule=zero_bubble: the halves of "
            "backward share tensors, which XLA keeps inside one compiled function"
        )
        yield Problem("jit_compile", "true", expected)
    if parallel.sequence_parallel and size < 2:
        yield Problem("sequence_parallel", True, "remove this flag, or add --tensor_parallel_size > 1")
    elif parallel.sequence_parallel and length % size:
        expected = f"expected a multiple of --tensor_parallel_size={size} with --sequence_parallel"
        yield Problem("max_seq_length", length, expected)


def check_sums(compute: ComputeConfig, parallel: ParallelConfig, compares_samples: bool) -> Iterator[Problem]:
    """Yields why the program that XLA compiles can't contain the sums of gradients."""
    if compute.gradient_transport != "xla":
        return
    reasons = {
        "--jit_compile=false: XLA compiles nothing": compute.jit_compile == "false",
        "--tensor_parallel_size > 1: each layer has sums of its own": parallel.tensor_parallel_size > 1,
        "--pipeline_parallel_size > 1: a stage is several programs": parallel.pipeline_parallel_size > 1,
        "--backward_segments > 1: they are several programs": (parallel.backward_segments or 1) > 1,
        "partitioned state (--split_opt_state, --split_grad_accum, --split_weights), whose sums go to their owners": (
            parallel.splits_state
        ),
        "--hvd_fp16_compression: only Horovod sends fp16": compute.hvd_fp16_compression,
        "--sparse_as_dense=false: only Horovod gathers rows": not compute.sparse_as_dense,
        "a loss that compares samples: ranks gather outputs between forward and backward": compares_samples,
    }
    if reason := first_reason(reasons):
        yield refused(compute, "gradient_transport", f"expected horovod with {reason}")


def check_host(model: ModelConfig, compute: ComputeConfig, mode: str, host: str = "this host") -> Iterator[Problem]:
    """Yields why a host without a GPU, of this name, can't run it."""
    yield from cudnn.problems(model, f": {host} has no GPU")
    if mode == "train" and compute.gradient_transport == "xla":
        expected = f"expected horovod: {host} has no GPU, and on CPUs XLA sums nothing over ranks"
        yield refused(compute, "gradient_transport", expected)


def check_buckets(data: DataConfig, model: ModelConfig, batch: BatchConfig, parallel: ParallelConfig) -> list[Problem]:
    """Returns why batches can't be cut to seq_length_buckets, as far as that does not depend on the data."""
    lengths = data.seq_length_buckets
    if lengths == length_choice.NONE:
        return []
    reasons = {
        f"--model_family={model.model_family} has sequences of full length": model.is_causal,
        "fine-tuning makes batches of one length": model.reads_examples,
        "--synthetic_data has rows of full length": data.synthetic_data,
        "--batch_rampup changes the size of the batches that are arranged by length": (batch.batch_rampup != "none"),
    }
    if reason := first_reason(reasons):
        return [Problem("seq_length_buckets", lengths, f"expected none: {reason}")]
    divisor = max(1, parallel.tensor_parallel_size) if parallel.sequence_parallel else 1
    return length_choice.problems(lengths, data.max_seq_length, divisor)


def check_spikes(
    limits: LimitsConfig, checkpoint: CheckpointConfig, data: DataConfig, max_steps: int
) -> Iterator[Problem]:
    """Yields why on_spike can't do what it says."""
    if limits.on_spike != "log" and not limits.spike_zscore:
        yield Problem("spike_zscore", limits.spike_zscore, f"expected above 0 with --on_spike={limits.on_spike}")
    if limits.on_spike != "rollback":
        return
    reasons = {
        "expected log or skip, or add --checkpoint_every: there is no checkpoint to go back to before the end": (
            not checkpoint.saves_before(max_steps)
        ),
        "expected log or skip: samples of --synthetic_data can't be skipped": data.synthetic_data,
    }
    if expected := first_reason(reasons):
        yield Problem("on_spike", "rollback", expected)
    # A multiple of any keep_every is step 0, from before every spike.
    every = math.inf if checkpoint.keep_every else checkpoint.checkpoint_every or math.inf
    if checkpoint.keep_last < (least := 1 + max(1, math.ceil(limits.rollback_margin / every))):
        reason = "newer checkpoints may be within --rollback_margin of the spike"
        yield refused(checkpoint, "keep_last", f"expected at least {least} with --on_spike=rollback: {reason}")


def check_reports(log: LogConfig) -> Iterator[Problem]:
    """Yields trackers that there are not, or that are not installed."""
    for name in log.reports:
        if name not in TRACKERS:
            yield Problem("report_to", name, f"expected some of {', '.join(TRACKERS)}, separated by commas")
        elif TRACKERS[name]:
            yield from not_installed("report_to", name, TRACKERS[name], "trackers")


def check_evaluation(
    evaluation: EvaluationConfig, optimizer: OptimizerConfig, run: RunConfig, settings: FineTuningConfig
) -> Iterator[Problem]:
    """Yields why there are no averaged weights, or why a ranking needs all documents."""
    if settings.eval_corpus:
        yield from superfluous(evaluation, ("eval_examples",), "expected 0: the whole --eval_corpus is ranked")
    if evaluation.weights == "averaged":
        if run.mode == "train" and not optimizer.ema_decay:
            yield Problem("weights", "averaged", "expected trained, or add --ema_decay")
        elif run.mode == "evaluate" and run.init_checkpoint:
            expected = "expected trained with --init_checkpoint; name a run's averages with --output_dir or --resume"
            yield Problem("weights", "averaged", expected)


def check_output(run: RunConfig, settings: FineTuningConfig) -> Iterator[Problem]:
    """Yields why a run can't write where it should, and hooks that are no names of classes."""
    for name in run.hooks:
        if not is_class_name(name):
            yield Problem("hooks", name, f"expected {CLASS}, such as my_module:MyHook")
    if not run.output_dir:
        yield refused(run, "output_dir", "expected a folder for what the run writes")
    elif not is_address(run.output_dir):
        expected = "remove this flag, or give an address such as s3://bucket/run as --output_dir"
        yield from superfluous(run, ("local_dir",), expected)
    elif settings.seeds > 1:
        yield refused(settings, "seeds", "expected 1, as --output_dir is an address")


def check_batch(
    batch: BatchConfig, parallel: ParallelConfig, ranks: int, wrong: Set[str], least: int = 1
) -> list[Problem]:
    """Returns why the ranks or their pipeline can't run the global batch, or a smaller one of the batch ramp.

    Nothing is checked if one of the sizes is in `wrong`, the flags that are refused already. `least` is the least
    number of samples of a global batch: 2 if samples are compared with each other.
    """
    names = {field.name for field in dataclasses.fields(batch)}
    names |= {"tensor_parallel_size", "pipeline_parallel_size", "pipeline_schedule", "virtual_pipeline_size"}
    if not names.isdisjoint(wrong):
        return []
    data_parallel_size = parallel.data_parallel_size(ranks)
    try:
        batch = batch.resolve(data_parallel_size)
    except ConfigError as error:
        return error.problems
    for stage in batch.ramp.stages():
        if stage.batch_size < least:
            name = "global_batch_size" if batch.batch_rampup == "none" else "batch_rampup"
            expected = f"expected at least {least} samples of an update, which the loss compares with each other"
            return [Problem(name, getattr(batch, name), expected)]
        count = stage.batch_size // (batch.micro_batch_size * data_parallel_size)
        sizes = parallel.pipeline_parallel_size, count, parallel.virtual_pipeline_size
        if problems := schedule_problems(parallel.pipeline_schedule, *sizes):
            return problems
    return []
