"""Chooses the implementation of each op of a model: only this module replaces `auto` by what it stands for.

`auto` takes the fused op if the library is built, has kernels for the device, and its ops take the model's dtype. The
ops take every shape that a model can have. `--attn_impl=auto` takes the core that the flags allow, and does without
cuDNN where cuDNN refuses the rows of the run. What is named never changes: an op that cannot run raises.
"""

import dataclasses

import tensorflow as tf

from tftrain.config.attention_core import AttentionChoice
from tftrain.config.model import FUSED_OPS, ModelConfig
from tftrain.ops import cudnn_attention
from tftrain.ops.library import MissingLibraryError, require_gpu_kernels, unavailable_reason
from tftrain.ops.tensors import STORAGE

FLAGS = tuple(FUSED_OPS.values())
PLAIN = AttentionChoice("softmax")


def resolve_implementations(
    config: ModelConfig, dtype: str, gpu: bool, attention: AttentionChoice = PLAIN
) -> ModelConfig:
    """Replaces `auto` by the implementation that it stands for on a GPU, or on the CPU.

    `dtype` is that of variables and activations. `attention` has the core that the flags choose, and the rows that it
    takes.

    Returns:
        The same configuration, with `fused` or `reference` for each of FLAGS, and softmax, flash or cudnn.

    Raises:
        MissingLibraryError: a flag names a fused op, and the library has no kernels for the GPU; or it names cuDNN,
            which can't compute what the model needs.
    """
    named = [f"--{flag}=fused" for flag in FLAGS if getattr(config, flag) == "fused"]
    named += ["--attn_impl=flash"] if config.attn_impl == "flash" else []
    if gpu and named:
        require_gpu_kernels(" ".join(named))
    core, reason = _core(config, dtype, gpu, attention)
    if config.attn_impl == "cudnn" and reason:
        raise MissingLibraryError(f"--attn_impl=cudnn: {reason}; choose flash, softmax or auto")
    automatic = [flag for flag in FLAGS if getattr(config, flag) == "auto"]
    fused = set() if _reason_against_fused(dtype, gpu) else set(automatic) - config.without_fused_op.keys()
    ops = {flag: "fused" if flag in fused else "reference" for flag in automatic}
    return dataclasses.replace(config, attn_impl=core, **ops)


def describe(config: ModelConfig, dtype: str, gpu: bool, attention: AttentionChoice = PLAIN) -> str:
    """Returns one line for the log: the implementation of each op and, if `auto` did not take a fused one, the reason.

    For the arguments, see `resolve_implementations`.
    """
    resolved = resolve_implementations(config, dtype, gpu, attention)
    whole = resolved.attn_impl != "softmax"  # does without the attention softmax
    shown = config.attn_impl == "auto" and not whole
    flags = ["attn_impl" if whole and flag == "attn_softmax_impl" else flag for flag in FLAGS]
    flags = ["attn_impl", *flags] if shown else flags
    line = "implementations: " + " ".join(f"{flag}={getattr(resolved, flag)}" for flag in flags)
    reason = _reason_against_fused(dtype, gpu)
    automatic = {flag for flag in FLAGS if getattr(config, flag) == "auto"}
    plain = {flag: part for flag, part in config.without_fused_op.items() if flag in automatic}
    if reason and automatic:
        line += f" (auto is reference: {reason})"
    elif plain:
        line += f" (auto is reference where no op is fused: {', '.join(plain.values())})"
    if config.attn_impl == "auto" and (reason := _core(config, dtype, gpu, attention)[1]):
        line += f" (attn_impl=auto is {resolved.attn_impl}, not {attention.core}: {reason})"
    return line


def _core(config: ModelConfig, dtype: str, gpu: bool, attention: AttentionChoice) -> tuple[str, str]:
    """Returns the attention core and why it is not the one of `attention`, or why that one can't run."""
    core = attention.core if config.attn_impl == "auto" else config.attn_impl
    if core != "softmax" and config.attn_impl == "auto" and (reason := _reason_against_fused(dtype, gpu)):
        return "softmax", reason
    if core != "cudnn":
        return core, ""
    group = config.num_attention_heads // config.key_value_heads
    shapes = [(length, group, config.head_size) for length in attention.lengths]
    reasons = (cudnn_attention.refusal(shape, config.is_causal, dtype) for shape in shapes)
    reason = next(filter(None, reasons), "")
    return ("flash" if reason else core), reason


def _reason_against_fused(dtype: str, gpu: bool) -> str | None:
    if tf.as_dtype(dtype) not in STORAGE:
        return f"fused ops do not take {dtype}"
    return unavailable_reason(gpu)
