"""Refuses a run that differs from the checkpoint it resumes from in a flag that must not; logs what else differs.

Each flag's declaration says whether it may, see `tftrain.config.fields.ON_RESUME`.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tftrain.checkpoint.errors import AgreedCheckpointError
from tftrain.config import phases
from tftrain.config.fields import Problem, changed, flag_values, on_resume, sections, without_secrets
from tftrain.config.model import ModelConfig
from tftrain.config.train import TrainConfig
from tftrain.files import strict_json

VOCABULARY, CHAT_TEMPLATE = "the vocabulary", "the chat template"


def kinds() -> dict[str, str]:
    """Returns `fixed`, `named` or `logged` for every flag of such a kind."""
    every = {name: kind for section in sections(TrainConfig()) for name, kind in on_resume(section).items()}
    return {name: kind for name, kind in every.items() if kind in ("fixed", "named", "logged")}


def flag_problems(change_on_resume: str) -> list[Problem]:
    """Returns why `--change_on_resume` can't be followed."""
    of_kind, names = kinds(), change_on_resume.split(",")
    if unknown := [name for name in names if name and of_kind.get(name) != "named"]:
        named = ", ".join(name for name, kind in of_kind.items() if kind == "named")
        expected = f"it permits no change of {', '.join(unknown)}; expected some of {named}"
        return [Problem("change_on_resume", change_on_resume, expected)]
    return []


def changes(config: TrainConfig, data: Mapping[str, str], run: Mapping[str, Any], path: Path) -> list[str]:
    """Compares a run with the checkpoint that it resumes from.

    Args:
        config, data: of the run, resolved, with the sizes of its data; and the data's identity, see `Inputs.identity`.
        run: the metadata of the run that wrote the checkpoint; only known to be JSON.

    Returns:
        A line for the log for each permitted change of a logged or named flag.

    Raises:
        CheckpointError: it is not a checkpoint of this configuration; the message lists every difference.
    """
    saved, of_kind = _flags(run, path), kinds()
    differences: list[_Difference] = []
    has_phases = bool(config.data.phases or saved.get("phases"))
    if has_phases:
        other = changed(config, {name: saved[name] for name in ("phases", *phases.FLAGS) if name in saved})
        compared = [name for name, kind in of_kind.items() if kind == "named" and name in phases.FLAGS]
        try:
            consumed = int(run["progress"]["consumed_samples"])
            now, before = (phases.ranges(each.timeline, consumed, compared) for each in (config, other))
        except (ArithmeticError, KeyError, TypeError, ValueError) as error:
            raise AgreedCheckpointError(f"{path}: its manifest has phases that can't be read: {error}") from error
        texts = {phases.without(each.data.phases, "micro_batch_size", phases.FOLLOWING) for each in (config, other)}
        if now != before:
            differences.append(_Difference("named", "phases", _phase_changes(now, before, compared)))
        elif len(texts) > 1:
            words = f"other --phases after its {consumed} samples than it was saved with"
            differences.append(_Difference("logged", "phases", words))
    for name, value in _plain(config).items():
        kind, before = of_kind.get(name), saved.get(name)
        if not (kind is None or _same(name, before, value) or (has_phases and name in ("phases", *phases.FLAGS))):
            words = f"--{name}={value}, saved with {before}"
            differences.append(_Difference(kind, name, words, f"--{name}={before}"))
    for what, value in data.items():
        if (before := _data(run).get(what)) != value:
            kind = "fixed" if what in (VOCABULARY, CHAT_TEMPLATE) and before is not None else "logged"
            instead = f"the data with that {what.removeprefix('the ')}"
            differences.append(_Difference(kind, what, f"{what}: {value}, saved with {before}", instead))
    permitted = config.checkpoint.change_on_resume.split(",")
    refused = [each for each in differences if each.kind == "fixed"]
    unnamed = [each for each in differences if each.kind == "named" and each.name not in permitted]
    if refused or unnamed:
        reasons = "; ".join([*(each.words for each in refused + unnamed), *_advice(refused, unnamed)])
        raise AgreedCheckpointError(f"{path}: not a checkpoint of this configuration: {reasons}")
    return [f"resuming with {each.words}" for each in differences]


def attention_changes(model: ModelConfig, now: Mapping[str, Any], saved: Any) -> list[str]:
    """Returns a line for the log for each change of the attention that no flag says.

    `saved` is what the manifest says, unvalidated JSON; manifests of versions with 16 bits say nothing.
    """
    saved, lines = saved if isinstance(saved, dict) else {}, []
    core, bits = saved.get("core", now["core"]), saved.get("dropout_bits", 16)
    if model.attn_impl == "auto" and core != now["core"]:
        lines.append(f"resuming with --attn_impl=auto, which is {now['core']} here; it was {strict_json.shown(core)}")
    if model.attention_probs_dropout_prob and bits != now["dropout_bits"]:
        words = f"masks of attention probabilities from {now['dropout_bits']} bits each, saved with"
        lines.append(f"resuming with {words} {strict_json.shown(bits)}: the masks of the remaining steps are others")
    return lines


class _Difference(NamedTuple):
    """What differs between a run and its checkpoint."""

    kind: str  # fixed, named or logged
    name: str  # the flag, or what of the data
    words: str
    instead: str = ""  # what to give


def _advice(refused: Sequence[_Difference], unnamed: Sequence[_Difference]) -> Iterator[str]:
    """Yields what to do about differences that can't be, and about those that must be meant."""
    if refused:
        instead = " ".join(each.instead for each in refused)
        yield f"give {instead} or choose another checkpoint with --resume"
    if unnamed:
        names = ",".join(each.name for each in unnamed)
        yield f"leave out {names} to go on as before, or add --change_on_resume={names} if that is meant"


def _phase_changes(now: list, before: list, named: Sequence[str]) -> str:
    """Returns how the phases of a run differ from the phases of a checkpoint in what it has consumed.

    A run without phases is one phase. For `now` and `before`, see `phases.ranges`; `named` are the flags in them.
    """
    differing = [name for name in named if len({values[name] for _, values in (*now, *before)}) > 1]

    def words(ranges: list) -> str:
        flags = [(" ".join(f"{name}={values[name]}" for name in differing), end) for end, values in ranges]
        return "; ".join(f"{text} until sample {end}" for text, end in flags)

    return f"--phases: {words(now)}, saved with {words(before)}"


def check_model(model: ModelConfig, data: Mapping[str, str], run: Mapping[str, Any], path: Path) -> None:
    """Refuses to evaluate a checkpoint of another model or vocabulary: the same tensors would mean something else.

    Raises:
        CheckpointError: it is one; the message lists every difference. For the arguments, see `changes`.
    """
    saved, of_kind, now = _flags(run, path), kinds(), _plain(model)
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


def _plain(config: Any) -> dict[str, Any]:
    """Returns the flags of a configuration or a section, as JSON has them: a list for a tuple."""
    values = flag_values(without_secrets(config))
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _flags(run: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Returns the flags of the run that wrote a checkpoint, all sections together; defaults for those that it lacks."""
    config = run.get("config")
    if not (isinstance(config, dict) and config and all(isinstance(section, dict) for section in config.values())):
        raise AgreedCheckpointError(f"{path}: its manifest has no configuration")
    saved = {name: value for section in config.values() for name, value in section.items()}
    return _plain(TrainConfig()) | saved


def _data(run: Mapping[str, Any]) -> dict[str, Any]:
    data = run.get("data")
    return data if isinstance(data, dict) else {}


def _same(name: str, before: Any, now: Any) -> bool:
    if name == "optimizer":  # "fused_" and "reference_" choose how the same rule is computed.
        return str(before).rpartition("_")[2] == str(now).rpartition("_")[2]
    return before == now
