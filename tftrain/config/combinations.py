"""Which flags of a run contradict each other: every rule over more than one flag, section by section."""

import dataclasses
import math
from collections.abc import Iterator, Set

from tftrain.config import fine_tuning, length_choice, mixture, param_groups
from tftrain.config.fields import ConfigError, Problem, not_installed, superfluous
from tftrain.config.layer_split import split_layers
from tftrain.config.model import HEAD_SIZES, TASKS, WITH_CLASSES, ModelConfig
from tftrain.config.parallel import schedule_problems
from tftrain.config.run import TRACKERS
from tftrain.families import listed, taking
from tftrain.families.rope import parse
from tftrain.files.addresses import is_address
from tftrain.host.user_code import CLASS, is_class_name


def problems(config, ranks: int, wrong: Set[str]) -> list[Problem]:
    """Returns why the flags of a configuration can't be combined.

    Args:
        wrong: flags whose own values are refused.
    """
    problems = [*_of_model(config), *_of_data(config), *_of_schedule(config), *_of_ranks(config, ranks)]
    problems += [*_of_buckets(config), *_of_spikes(config)]
    if not config.compute.enable_resource_variables:
        expected = "expected true: tf.function of TensorFlow 2 supports only resource variables"
        problems.append(Problem("enable_resource_variables", False, expected))
    for name in config.log.reports:
        if name not in TRACKERS:
            expected = f"expected some of {', '.join(TRACKERS)}, separated by commas"
            problems.append(Problem("report_to", name, expected))
        elif TRACKERS[name]:
            problems += not_installed("report_to", name, TRACKERS[name], "trackers")
    if config.evaluation.weights == "averaged":
        if config.run.mode == "train" and not config.optimizer.ema_decay:
            problems.append(Problem("weights", "averaged", "expected trained, or add --ema_decay"))
        elif config.run.mode == "evaluate" and config.run.init_checkpoint:
            expected = "expected trained with --init_checkpoint; name a run's averages with --output_dir or --resume"
            problems.append(Problem("weights", "averaged", expected))
    for name in config.run.hooks:
        if not is_class_name(name):
            problems.append(Problem("hooks", name, f"expected {CLASS}, such as my_module:MyHook"))
    if not config.run.output_dir:
        problems.append(Problem("output_dir", config.run.output_dir, "expected a folder for what the run writes"))
    elif not is_address(config.run.output_dir):
        expected = "remove this flag, or give an address such as s3://bucket/run as --output_dir"
        problems += superfluous(config.run, ("local_dir",), expected)
    elif config.fine_tuning.seeds > 1:
        problems.append(Problem("seeds", config.fine_tuning.seeds, "expected 1, as --output_dir is an address"))
    batch_flags = {field.name for field in dataclasses.fields(config.batch)}
    batch_flags |= {"tensor_parallel_size", "pipeline_parallel_size", "pipeline_schedule", "virtual_pipeline_size"}
    if batch_flags.isdisjoint({*wrong, *(problem.flag for problem in problems)}):
        try:
            problems += _of_pipeline(config, config.parallel.data_parallel_size(ranks))
        except ConfigError as error:
            problems += error.problems
    return problems


def _of_model(config) -> Iterator[Problem]:
    model, positions = config.model, config.model.position_embedding
    heads = model.num_attention_heads
    if heads > 0 and model.attention_head_size is None and model.hidden_size % heads:
        yield Problem("hidden_size", model.hidden_size, f"expected a multiple of --num_attention_heads={heads}")
    yield from _of_family(model)
    if positions == "rotary" and model.head_size % 2:
        expected = f"expected learned or alibi with heads of {model.head_size} elements: rotary rotates pairs"
        if model.attention_head_size:
            yield Problem("attention_head_size", model.head_size, "expected an even number: rotary rotates pairs")
        else:
            yield Problem("position_embedding", positions, expected)
    if heads > 0 and heads % max(1, model.key_value_heads):
        expected = f"expected a divisor of --num_attention_heads={heads}"
        yield Problem("num_key_value_heads", model.num_key_value_heads, expected)
    try:
        parse(model.rope_scaling)
    except ValueError as error:
        yield Problem("rope_scaling", model.rope_scaling, str(error))
    size = model.head_size if heads > 0 else 0
    multiple, largest = HEAD_SIZES.get(model.attn_impl, (1, size))
    if size % multiple or size > largest:
        takes = f"{model.attn_impl} takes multiples of {multiple} up to {largest}"
        yield Problem("attn_impl", model.attn_impl, f"expected softmax with heads of {size} elements: {takes}")
    if model.attn_impl == "cudnn" and (reason := _no_cudnn(config)):
        yield Problem("attn_impl", "cudnn", f"expected flash or softmax with {reason}")


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


def _no_cudnn(config) -> str | None:
    """Returns why cuDNN can't compute the attention, as far as it depends on neither data nor device."""
    model, compute = config.model, config.compute
    reasons = {
        "--precision=fp32: cuDNN takes fp16 and bf16": compute.precision == "fp32",
        "--attention_probs_dropout_prob above 0: cuDNN would draw other masks after a resume": (
            model.attention_probs_dropout_prob > 0
        ),
        "--position_embedding=alibi: cuDNN would need a bias for each pair of tokens": (
            model.position_embedding == "alibi"
        ),
        "--local_attention: cuDNN would compute what a window hides": model.local_attention > 0,
        "--document_mask: cuDNN would mix the documents of a row": config.data.document_mask,
        "--deterministic: cuDNN adds gradients in any order": compute.deterministic,
        "a step that XLA does not compile": not config.compiles(gpu=True),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _of_data(config) -> Iterator[Problem]:
    model, data, sources = config.model, config.data, config.data.sources
    if model.task in TASKS or model.is_custom:
        yield from fine_tuning.problems(config.fine_tuning, model.task, model.model_family, config.run.mode)
    if model.labels and model.task in TASKS and model.task not in WITH_CLASSES:
        yield Problem("labels", model.labels[0], f"remove this flag, or use --task={', '.join(WITH_CLASSES)}")
    elif twice := next((label for label in model.labels if model.labels.count(label) > 1), None):
        yield Problem("labels", twice, "expected each class once")
    if model.reads_examples:
        expected = "remove this flag: fine-tuning reads --train_file and --eval_file"
        given = [*sources, *(["phases"] if data.phases else [])]
        yield from (Problem(name, getattr(data, name), expected) for name in given)
    elif len(sources) != 1:
        named = ", ".join(f"--{name}" for name in sources) or "none"
        expected = f"expected exactly one of --data_dir, --mix, --train_files and --synthetic_data, given: {named}"
        yield Problem("data_dir", data.data_dir, expected)
    yield from mixture.problems(data)
    if data.document_mask and not (model.is_causal and (data.data_dir or data.mix)):
        families = listed("causal")
        expected = f"remove this flag, or use --model_family={families} and --data_dir, which names the end token"
        yield Problem("document_mask", True, expected)
    if data.eval_files and not data.train_files:
        yield Problem("eval_files", data.eval_files, "remove this flag, or add --train_files")
    if model.position_embedding == "learned" and (data.max_seq_length or 0) > model.max_position_embeddings:
        expected = f"expected at most --max_position_embeddings={model.max_position_embeddings}"
        yield Problem("max_seq_length", data.max_seq_length, expected)


def _of_schedule(config) -> Iterator[Problem]:
    optimizer, max_steps = config.optimizer, config.run.max_steps
    yield from param_groups.problems(optimizer.param_groups)
    if optimizer.end_learning_rate > max(optimizer.learning_rate, 0):
        expected = f"expected at most --learning_rate={optimizer.learning_rate}"
        yield Problem("end_learning_rate", optimizer.end_learning_rate, expected)
    warmup = max_steps // 10 if optimizer.warmup_steps is None else optimizer.warmup_steps
    if warmup > max(max_steps, 0):
        yield Problem("warmup_steps", optimizer.warmup_steps, f"expected at most --max_steps={max_steps}")
    if (
        optimizer.schedule == "wsd"
        and optimizer.decay_steps
        and optimizer.decay_steps > (stable := max(0, max_steps - warmup))
    ):
        yield Problem("decay_steps", optimizer.decay_steps, f"expected at most {stable}, the steps after the warm-up")


def _of_ranks(config, ranks: int) -> Iterator[Problem]:
    model, parallel, compute = config.model, config.parallel, config.compute
    size, length = parallel.tensor_parallel_size, config.data.max_seq_length or 0
    widths = {"num_attention_heads": model.num_attention_heads, "intermediate_size": model.feed_forward_size}
    if model.num_key_value_heads:
        widths["num_key_value_heads"] = model.num_key_value_heads
    yield from parallel.problems(ranks, widths)
    try:
        sizes = model.num_hidden_layers, parallel.pipeline_parallel_size, parallel.virtual_pipeline_size
        split_layers(*(max(1, each) for each in sizes), parallel.pipeline_split)
    except ConfigError as error:
        yield from error.problems
    if (segments := parallel.backward_segments or 1) > 1:
        if parallel.pipeline_parallel_size > 1 or size > 1:
            expected = "remove this flag: it is for runs without tensor parallel ranks and pipeline stages"
            yield Problem("backward_segments", segments, expected)
        elif parallel.split_weights:
            expected = "remove this flag: with --split_weights, backward runs block by block"
            yield Problem("backward_segments", segments, expected)
        elif segments > model.num_hidden_layers:
            expected = f"expected at most --num_hidden_layers={model.num_hidden_layers}"
            yield Problem("backward_segments", segments, expected)
    if parallel.pipeline_schedule == "zero_bubble" and compute.activation_checkpointing == "full":
        expected = "expected none or selective with --pipeline_schedule=zero_bubble, which computes backward in halves"
        yield Problem("activation_checkpointing", "full", expected)
    if (model.vocab_size or math.inf) < size:
        expected = f"expected at least --tensor_parallel_size={size} words"
        yield Problem("vocab_size", model.vocab_size, expected)
    if config.has_deferred_collectives and compute.jit_compile == "true":
        expected = (
            "expected auto or false with --tensor_parallel_size > 1 and --pipeline_schedule=zero_bubble: the halves of "
            "backward share tensors, which XLA keeps inside one compiled function"
        )
        yield Problem("jit_compile", "true", expected)
    if parallel.sequence_parallel and size < 2:
        yield Problem("sequence_parallel", True, "remove this flag, or add --tensor_parallel_size > 1")
    elif parallel.sequence_parallel and length % size:
        yield Problem(
            "max_seq_length", length, f"expected a multiple of --tensor_parallel_size={size} with --sequence_parallel"
        )


def _of_buckets(config) -> list[Problem]:
    """Returns why batches can't be cut to seq_length_buckets, as far as that does not depend on the data."""
    lengths, model, parallel = config.data.seq_length_buckets, config.model, config.parallel
    if lengths == length_choice.NONE:
        return []
    reasons = {
        f"--model_family={model.model_family} has sequences of full length": model.is_causal,
        "fine-tuning makes batches of one length": model.reads_examples,
        "--synthetic_data has rows of full length": config.data.synthetic_data,
        "--batch_rampup changes the size of the batches that are arranged by length": config.batch.batch_rampup
        != "none",
    }
    for reason, holds in reasons.items():
        if holds:
            return [Problem("seq_length_buckets", lengths, f"expected none: {reason}")]
    divisor = max(1, parallel.tensor_parallel_size) if parallel.sequence_parallel else 1
    return length_choice.problems(lengths, config.data.max_seq_length, divisor)


def _of_spikes(config) -> Iterator[Problem]:
    """Yields why on_spike can't do what it says."""
    limits, checkpoint = config.limits, config.checkpoint
    if limits.on_spike != "log" and not limits.spike_zscore:
        yield Problem("spike_zscore", limits.spike_zscore, f"expected above 0 with --on_spike={limits.on_spike}")
    if limits.on_spike != "rollback":
        return
    if not checkpoint.saves_before(config.run.max_steps):
        expected = (
            "expected log or skip, or add --checkpoint_every: there is no checkpoint to go back to before the end"
        )
        yield Problem("on_spike", "rollback", expected)
    elif config.data.synthetic_data:
        expected = "expected log or skip with --synthetic_data, of which no samples can be left out"
        yield Problem("on_spike", "rollback", expected)
    # A multiple of any keep_every is step 0, from before every spike.
    every = math.inf if checkpoint.keep_every else checkpoint.checkpoint_every or math.inf
    if checkpoint.keep_last < (least := 1 + max(1, math.ceil(limits.rollback_margin / every))):
        reason = "newer checkpoints may be within --rollback_margin of the spike"
        yield Problem(
            "keep_last", checkpoint.keep_last, f"expected at least {least} with --on_spike=rollback: {reason}"
        )


def _of_pipeline(config, data_parallel_size: int) -> list[Problem]:
    """Returns why the pipeline schedule can't run the global batch, or a smaller one of the batch ramp.

    Raises:
        ConfigError: the batch sizes contradict each other.
    """
    batch, parallel = config.batch.resolve(data_parallel_size), config.parallel
    for stage in batch.ramp.stages():
        count = stage.batch_size // (batch.micro_batch_size * data_parallel_size)
        sizes = parallel.pipeline_parallel_size, count, parallel.virtual_pipeline_size
        if problems := schedule_problems(parallel.pipeline_schedule, *sizes):
            return problems
    return []
