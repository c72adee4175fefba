"""Suggestions for flags that do not exist: what people type out of habit, and names that are nearly right.

A wrong suggestion is worse than none. So a name is suggested only if another trainer or a common abbreviation uses it,
or if it differs from a flag by its case, its dashes or about one letter in six.
"""

import difflib
from collections.abc import Collection, Mapping

# By the flags to suggest: what other trainers and habit call them, without dashes and underscores.
_NAMES = {
    "learning_rate": "lr maxlr",
    "end_learning_rate": "minlr",
    "global_batch_size micro_batch_size": "bs batch batchsize trainbatchsize",
    "micro_batch_size": "perdevicetrainbatchsize mbs microbatchsize",
    "global_batch_size": "gbs",
    "grad_accum_steps": "gradientaccumulationsteps accumsteps gas",
    "max_steps": (
        "epoch epochs numepochs numtrainepochs steps trainsteps trainiters iterations numsteps numtrainsteps totalsteps"
    ),
    "warmup_steps": "warmup numwarmupsteps",
    "precision=fp32": "fp32",
    "precision=fp16": "fp16 usefp16 half amp",
    "precision=fp16 precision=bf16": "mixedprecision",
    "precision=bf16": "bf16 bfloat16",
    "precision": "dtype",
    "jit_compile=true": "xla usexla",
    "split_opt_state split_grad_accum": "zero zerostage",
    "split_opt_state": "zero1 usedistributedoptimizer",
    "split_grad_accum": "zero2",
    "split_weights": "zero3 fsdp",
    "tensor_parallel_size": "tp tensormodelparallelsize",
    "pipeline_parallel_size": "pp pipelinemodelparallelsize",
    "activation_checkpointing=full": "gradientcheckpointing recompute",
    "activation_checkpointing": "recomputegranularity",
    "weight_decay": "wd",
    "adam_beta1": "beta1",
    "adam_beta2": "beta2",
    "adam_epsilon": "eps",
    "clip_global_norm": "clip clipgrad clipnorm maxgradnorm",
    "num_hidden_layers": "layers numlayers nlayer",
    "hidden_size": "hidden hiddendim dmodel",
    "num_attention_heads": "heads numheads nhead",
    "intermediate_size": "ffnhiddensize",
    "hidden_dropout_prob attention_probs_dropout_prob": "dropout",
    "hidden_dropout_prob": "hiddendropout",
    "attention_probs_dropout_prob": "attentiondropout",
    "max_seq_length": "seqlen seqlength maxlength maxlen",
    "checkpoint_every": "saveevery savesteps saveinterval savecheckpointssteps",
    "keep_last": "savetotallimit keepcheckpointmax",
    "log_every": "logsteps loginterval loggingsteps",
    "eval_every": "evalsteps evalinterval",
    "data_readers": "numworkers",
    "num_workers": "workers",
    "resume": "load ckpt",
    "output_dir": "out outdir modeldir save",
    "data_dir input_files": "data dataset datapath",
    "input_files data_dir": "input",
    "input_files": "inputfile",
    "input_files train_files": "files",
    "vocab_file vocab_size": "vocab",
    "lower_case": "dolowercase lowercase uncased",
    "whole_word_masking": "wwm dowholewordmask",
    "masked_lm_prob": "mlmprob mlmprobability",
    "seed": "randomseed",
    "optimizer": "opt",
}
HABITS = {name: tuple(flags.split()) for flags, names in _NAMES.items() for name in names.split()}
# Below this similarity (difflib's ratio), a name that is merely spelled alike is no suggestion.
_ALIKE = 0.84
# Shorter names are too often another word, such as model beside mode.
_LONG_ENOUGH = 6


def suggest(name: str, known: Collection[str]) -> list[str]:
    """Returns the flags to suggest for a name that is none, all without dashes; empty if no suggestion is certain."""
    by_letters = {_letters(flag): flag for flag in known}
    letters = _letters(name)
    if habit := [flag for flag in HABITS.get(letters, ()) if flag.partition("=")[0] in known]:
        return habit
    spelled = {letters.removeprefix("no"): "no", letters: ""}
    likeness, flag, prefix = max((*_nearest(each, by_letters), prefix) for each, prefix in spelled.items())
    return [prefix + flag] if likeness >= _ALIKE else []


def _nearest(name: str, by_letters: Mapping[str, str]) -> tuple[float, str]:
    """Returns the flag that is spelled most alike, and how much alike it is, from 0 to 1."""
    if name in by_letters:
        return 1.0, by_letters[name]
    near = difflib.get_close_matches(name, list(by_letters), n=1, cutoff=_ALIKE) if len(name) >= _LONG_ENOUGH else []
    return (difflib.SequenceMatcher(None, near[0], name).ratio(), by_letters[near[0]]) if near else (0.0, "")


def _letters(name: str) -> str:
    return name.replace("_", "").replace("-", "").replace(".", "").casefold()
