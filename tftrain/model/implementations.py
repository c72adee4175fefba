"""Chooses the implementation of each op of a model: only this module replaces `auto` by `fused` or `reference`.

`auto` takes the fused op if the library is built, has kernels for the device, and its ops take the model's dtype. The
ops take every shape that a model can have. `fused` and `reference` never change: a fused op that cannot run raises.
"""

import dataclasses

import tensorflow as tf

from tftrain.config.model import FUSED_OPS, ModelConfig
from tftrain.ops.cudnn_attention import check
from tftrain.ops.library import require_gpu_kernels, unavailable_reason
from tftrain.ops.tensors import STORAGE

FLAGS = tuple(FUSED_OPS.values())


def resolve_implementations(config: ModelConfig, dtype: str, gpu: bool) -> ModelConfig:
    """Replaces `auto` by the implementation that it stands for.

    Args:
        config: of the model.
        dtype: of the model's variables and activations.
        gpu: whether the model runs on a GPU; else on the CPU.

    Returns:
        The same configuration, with `fused` or `reference` for each of FLAGS.

    Raises:
        MissingLibraryError: a flag names a fused op, and the library has no kernels for the GPU; or it names cuDNN,
            which fails its `check`.
    """
    named = [f"--{flag}=fused" for flag in FLAGS if getattr(config, flag) == "fused"]
    named += ["--attn_impl=flash"] if config.attn_impl == "flash" else []
    if gpu and named:
        require_gpu_kernels(" ".join(named))
    if config.attn_impl == "cudnn":
        check(config.head_size, config.is_causal, dtype)
    automatic = [flag for flag in FLAGS if getattr(config, flag) == "auto"]
    if not automatic:
        return config
    fused = set() if _reason_against_fused(dtype, gpu) else set(automatic) - config.without_fused_op.keys()
    return dataclasses.replace(config, **{flag: "fused" if flag in fused else "reference" for flag in automatic})


def describe(config: ModelConfig, dtype: str, gpu: bool) -> str:
    """Returns one line for the log: the implementation of each op and, if `auto` did not take a fused one, the reason.

    For the arguments, see `resolve_implementations`.
    """
    resolved = resolve_implementations(config, dtype, gpu)
    whole = resolved.attn_impl != "softmax"  # does without the attention softmax
    flags = ["attn_impl" if whole and flag == "attn_softmax_impl" else flag for flag in FLAGS]
    line = "implementations: " + " ".join(f"{flag}={getattr(resolved, flag)}" for flag in flags)
    reason = _reason_against_fused(dtype, gpu)
    automatic = {flag for flag in FLAGS if getattr(config, flag) == "auto"}
    plain = {flag: part for flag, part in config.without_fused_op.items() if flag in automatic}
    if reason and automatic:
        line += f" (auto is reference: {reason})"
    elif plain:
        line += f" (auto is reference where no op is fused: {', '.join(plain.values())})"
    return line


def _reason_against_fused(dtype: str, gpu: bool) -> str | None:
    if tf.as_dtype(dtype) not in STORAGE:
        return f"fused ops do not take {dtype}"
    return unavailable_reason(gpu)
