"""Suggestions for flags that do not exist: what people type out of habit, and names that are nearly right.

A wrong suggestion is worse than none. So a name is suggested only if another trainer or a common abbreviation uses it,
or if it differs from a flag by its case, its dashes or about one letter in six.
"""

import difflib
from collections.abc import Collection, Mapping

# What other trainers and habit call a lever, without dashes and underscores, and the flags to suggest instead.
HABITS = {
    "lr": ("learning_rate",),
    "maxlr": ("learning_rate",),
    "minlr": ("end_learning_rate",),
    "bs": ("global_batch_size", "micro_batch_size"),
    "batch": ("global_batch_size", "micro_batch_size"),
    "batchsize": ("global_batch_size", "micro_batch_size"),
    "trainbatchsize": ("global_batch_size", "micro_batch_size"),
    "perdevicetrainbatchsize": ("micro_batch_size",),
    "mbs": ("micro_batch_size",),
    "microbatchsize": ("micro_batch_size",),
    "gbs": ("global_batch_size",),
    "gradientaccumulationsteps": ("grad_accum_steps",),
    "accumsteps": ("grad_accum_steps",),
    "gas": ("grad_accum_steps",),
    "epoch": ("max_steps",),
    "epochs": ("max_steps",),
    "numepochs": ("max_steps",),
    "numtrainepochs": ("max_steps",),
    "steps": ("max_steps",),
    "trainsteps": ("max_steps",),
    "trainiters": ("max_steps",),
    "iterations": ("max_steps",),
    "numsteps": ("max_steps",),
    "numtrainsteps": ("max_steps",),
    "totalsteps": ("max_steps",),
    "warmup": ("warmup_steps",),
    "numwarmupsteps": ("warmup_steps",),
    "fp32": ("precision=fp32",),
    "fp16": ("precision=fp16",),
    "usefp16": ("precision=fp16",),
    "half": ("precision=fp16",),
    "amp": ("precision=fp16",),
    "mixedprecision": ("precision=fp16", "precision=bf16"),
    "bf16": ("precision=bf16",),
    "bfloat16": ("precision=bf16",),
    "dtype": ("precision",),
    "xla": ("jit_compile=true",),
    "usexla": ("jit_compile=true",),
    "zero": ("split_opt_state", "split_grad_accum"),
    "zerostage": ("split_opt_state", "split_grad_accum"),
    "zero1": ("split_opt_state",),
    "zero2": ("split_grad_accum",),
    "usedistributedoptimizer": ("split_opt_state",),
    "tp": ("tensor_parallel_size",),
    "tensormodelparallelsize": ("tensor_parallel_size",),
    "pp": ("pipeline_parallel_size",),
    "pipelinemodelparallelsize": ("pipeline_parallel_size",),
    "gradientcheckpointing": ("activation_checkpointing=full",),
    "recompute": ("activation_checkpointing=full",),
    "recomputegranularity": ("activation_checkpointing",),
    "wd": ("weight_decay",),
    "beta1": ("adam_beta1",),
    "beta2": ("adam_beta2",),
    "eps": ("adam_epsilon",),
    "clip": ("clip_global_norm",),
    "clipgrad": ("clip_global_norm",),
    "clipnorm": ("clip_global_norm",),
    "maxgradnorm": ("clip_global_norm",),
    "layers": ("num_hidden_layers",),
    "numlayers": ("num_hidden_layers",),
    "nlayer": ("num_hidden_layers",),
    "hidden": ("hidden_size",),
    "hiddendim": ("hidden_size",),
    "dmodel": ("hidden_size",),
    "heads": ("num_attention_heads",),
    "numheads": ("num_attention_heads",),
    "nhead": ("num_attention_heads",),
    "ffnhiddensize": ("intermediate_size",),
    "dropout": ("hidden_dropout_prob", "attention_probs_dropout_prob"),
    "hiddendropout": ("hidden_dropout_prob",),
    "attentiondropout": ("attention_probs_dropout_prob",),
    "seqlen": ("max_seq_length",),
    "seqlength": ("max_seq_length",),
    "maxlength": ("max_seq_length",),
    "maxlen": ("max_seq_length",),
    "saveevery": ("checkpoint_every",),
    "savesteps": ("checkpoint_every",),
    "saveinterval": ("checkpoint_every",),
    "savecheckpointssteps": ("checkpoint_every",),
    "savetotallimit": ("keep_last",),
    "keepcheckpointmax": ("keep_last",),
    "logsteps": ("log_every",),
    "loginterval": ("log_every",),
    "loggingsteps": ("log_every",),
    "evalsteps": ("eval_every",),
    "evalinterval": ("eval_every",),
    "numworkers": ("data_readers",),
    "workers": ("num_workers",),
    "load": ("resume",),
    "ckpt": ("resume",),
    "out": ("output_dir",),
    "outdir": ("output_dir",),
    "modeldir": ("output_dir",),
    "save": ("output_dir",),
    "data": ("data_dir", "input_files"),
    "dataset": ("data_dir", "input_files"),
    "datapath": ("data_dir", "input_files"),
    "input": ("input_files", "data_dir"),
    "inputfile": ("input_files",),
    "files": ("input_files", "train_files"),
    "vocab": ("vocab_file", "vocab_size"),
    "dolowercase": ("lower_case",),
    "lowercase": ("lower_case",),
    "uncased": ("lower_case",),
    "wwm": ("whole_word_masking",),
    "dowholewordmask": ("whole_word_masking",),
    "mlmprob": ("masked_lm_prob",),
    "mlmprobability": ("masked_lm_prob",),
    "randomseed": ("seed",),
    "opt": ("optimizer",),
}
# Flags of earlier versions: the flag in their place, and what to write.
REPLACED = {
    "eval_batches": (
        "eval_examples",
        "give --eval_examples, the number of batches times --global_batch_size; 0 or no flag: all held-out examples",
    ),
    "causal": ("trainer", "give --model_family=gpt; --trainer=megatron plans it as Megatron-LM runs it"),
}
# Below this similarity (difflib's ratio), a name that is merely spelled alike is no suggestion.
_ALIKE = 0.84
# Shorter names are too often another word, such as model beside mode.
_LONG_ENOUGH = 6


def suggest(name: str, known: Collection[str]) -> list[str]:
    """Returns the flags to suggest for a name that is none, without dashes; empty if no suggestion is certain.

    Args:
        name: as given, without leading dashes.
    """
    by_letters = {_letters(flag): flag for flag in known}
    given = _letters(name)
    if habit := [flag for flag in HABITS.get(given, ()) if flag.partition("=")[0] in known]:
        return habit
    negated = given.removeprefix("no")
    found = [(*_nearest(given, by_letters), "")] + (
        [(*_nearest(negated, by_letters), "no")] if negated != given else []
    )
    likeness, flag, prefix = max(found)
    return [prefix + flag] if likeness >= _ALIKE else []


def _nearest(given: str, by_letters: Mapping[str, str]) -> tuple[float, str]:
    """Returns the flag that is spelled most alike, and how much alike it is, from 0 to 1."""
    if given in by_letters:
        return 1.0, by_letters[given]
    near = difflib.get_close_matches(given, list(by_letters), n=1, cutoff=_ALIKE) if len(given) >= _LONG_ENOUGH else []
    return (difflib.SequenceMatcher(None, near[0], given).ratio(), by_letters[near[0]]) if near else (0.0, "")


def _letters(name: str) -> str:
    return name.replace("_", "").replace("-", "").replace(".", "").casefold()
