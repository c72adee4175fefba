"""Which flags may differ between a checkpoint and the run that resumes from it.

Each flag is of one of four kinds:

- fixed: another value means another model, another update rule or other random numbers. A change is refused.
- named: another value changes the mathematics of the remaining steps, such as the learning rate. A change is refused
  unless `--change_on_resume` names the flag.
- logged: another value changes number formats and so rounding, or the length of the run. The log has a line on it.
- All other flags choose where, how fast and on how many ranks the same result is computed. They may change.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tftrain.checkpoint.errors import AgreedCheckpointError
from tftrain.config import TrainConfig
from tftrain.fields import Problem, implementations, sections

_FORMATS = ("ln_dtype", "precision", "grad_accum_dtype", "hvd_fp16_compression")
_LENGTH = ("max_steps", "warmup_steps")
_OF_EXAMPLES = (
    *("max_seq_length", "max_predictions_per_seq", "seq_length_buckets"),
    *("masked_lm_prob", "whole_word_masking", "synthetic_data"),
)
_OF_LABELLED_DATA = (
    *("text_column", "text_pair_column", "label_column", "header", "label_separator", "glue_task"),
    *("doc_stride", "max_query_length", "temperature"),
)
_NEWER = ("task", "labels", "seq_length_buckets", *_OF_LABELLED_DATA)  # flags that older checkpoints do not have
_AFTER_THE_START = ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range")
VOCABULARY = "the vocabulary"


def kinds(config: TrainConfig) -> dict[str, str]:
    """Returns `fixed`, `named` or `logged` for every flag of such a kind."""
    found = {name: "fixed" for name in _names(config.model) if name not in implementations(config.model)}
    found |= dict.fromkeys(_names(config.optimizer), "named")
    found |= dict.fromkeys(_AFTER_THE_START, "named")
    found |= dict.fromkeys(("global_batch_size", "batch_rampup"), "named")
    found |= dict.fromkeys(_OF_EXAMPLES, "named")
    found |= dict.fromkeys(_OF_LABELLED_DATA, "named")
    found |= dict.fromkeys(("optimizer", "seed"), "fixed")
    return found | dict.fromkeys((*_FORMATS, *_LENGTH), "logged")


def flag_problems(config: TrainConfig) -> list[Problem]:
    """Returns why `--change_on_resume` can't be followed; any configuration may be given."""
    of_kind, names = kinds(config), config.run.change_on_resume.split(",")
    if unknown := [name for name in names if name and of_kind.get(name) != "named"]:
        named = ", ".join(name for name, kind in of_kind.items() if kind == "named")
        expected = f"{', '.join(unknown)} can't be named there; expected some of {named}"
        return [Problem("change_on_resume", config.run.change_on_resume, expected)]
    return []


def changes(config: TrainConfig, data: Mapping[str, str], run: Mapping[str, Any], path: Path) -> list[str]:
    """Compares a run with the checkpoint that it resumes from.

    Args:
        config: of the run, resolved, with the sizes that the data gives.
        data: the identity of the run's data, see `tftrain.data.identity`.
        run: the metadata of the run that wrote the checkpoint; only known to be JSON.
        path: the checkpoint, for the message.

    Returns:
        A line for the log for each permitted change of a logged or named flag.

    Raises:
        CheckpointError: it is not a checkpoint of this configuration; the message lists every difference.
    """
    saved, permitted = _flags(run, path), set(filter(None, config.run.change_on_resume.split(",")))
    of_kind = kinds(config)
    refused, named, logged, hints = [], [], [], []
    for name, now in _all(config).items():
        kind, before = of_kind.get(name), saved.get(name)
        if kind is None or _same(name, before, now):
            continue
        words = f"--{name}={now}, saved with {before}"
        if kind == "fixed":
            refused.append(words)
            hints.append(f"--{name}={before}")
        elif kind == "named" and name not in permitted:
            named.append((name, words))
        else:
            logged.append(f"resuming with {words}")
    for what, now in data.items():
        before = _data(run).get(what)
        if before != now:
            words = f"{what}: {now}, saved with {before}"
            if what == VOCABULARY and before is not None:
                refused.append(words)
                hints.append("the data with that vocabulary")
            else:
                logged.append(f"resuming with {words}")
    if refused or named:
        listed = "; ".join([*refused, *(words for _, words in named)])
        advice = [f"give {' '.join(hints)} or choose another checkpoint with --resume"] if refused else []
        if named:
            names = ",".join(name for name, _ in named)
            advice.append(f"leave out {names} to go on as before, or add --change_on_resume={names} if that is meant")
        raise AgreedCheckpointError(f"{path}: not a checkpoint of this configuration: {listed}; {'; '.join(advice)}")
    return logged


def check_model(config: TrainConfig, data: Mapping[str, str], run: Mapping[str, Any], path: Path) -> None:
    """Refuses to evaluate a checkpoint of another model or vocabulary: the same tensors would mean something else.

    Args:
        config, data, run, path: see `changes`.

    Raises:
        CheckpointError: it is one; the message lists every difference.
    """
    saved, of_kind, now = _flags(run, path), kinds(config), _plain(config.model)
    differing = [
        f"--{name}={value}, saved with {saved.get(name)}"
        for name, value in now.items()
        if of_kind.get(name) == "fixed" and saved.get(name) != value
    ]
    before, here = _data(run).get(VOCABULARY), data.get(VOCABULARY)
    # Records that were not prepared here do not say.
    if None not in (before, here) and before != here:
        differing.append(f"{VOCABULARY}: {here}, saved with {before}")
    if differing:
        advice = "leave the model's flags out, they are in the checkpoint, or choose another checkpoint with --resume"
        raise AgreedCheckpointError(f"{path}: not a checkpoint of this configuration: {'; '.join(differing)}; {advice}")


def _names(section: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(section)]


def _all(config: TrainConfig) -> dict[str, Any]:
    return {name: value for section in sections(config) for name, value in _plain(section).items()}


def _plain(section: Any) -> dict[str, Any]:
    """Returns the flags of a section, as JSON has them."""
    return {name: _listed(value) for name, value in dataclasses.asdict(section).items()}


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _flags(run: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Returns the flags of the run that wrote a checkpoint, all sections together; defaults for newer flags."""
    config = run.get("config")
    if not isinstance(config, dict) or not all(isinstance(section, dict) for section in config.values()):
        raise AgreedCheckpointError(f"{path}: its manifest has no configuration")
    saved = {name: _listed(value) for section in config.values() for name, value in section.items()}
    return {name: value for name, value in _all(TrainConfig()).items() if name in _NEWER} | saved


def _data(run: Mapping[str, Any]) -> dict[str, Any]:
    data = run.get("data")
    return data if isinstance(data, dict) else {}


def _same(name: str, before: Any, now: Any) -> bool:
    if name == "optimizer":  # "fused_" and "reference_" choose how the same rule is computed.
        return str(before).rpartition("_")[2] == str(now).rpartition("_")[2]
    return before == now
