"""`--phases`: a run whose data and batch change after so many consumed samples or tokens.

A phase has the data and the batch of the run with the flags of its line. It trains exactly what a run with these flags
trains if it resumes where the phase begins. The batches of the whole run are one list of stages: the stages of the
phases' ramps (`ramp`), each cut where its phase ends.
"""

import dataclasses
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tftrain.config import mixture
from tftrain.config.data import DataConfig
from tftrain.config.fields import ConfigError, Problem, parse, type_of
from tftrain.config.parallel import BatchConfig
from tftrain.config.paths import expand
from tftrain.config.ramp import Stage
from tftrain.config.suggestions import suggest
from tftrain.files.lines import lines

# The flags that each name the data; and those of its sizes, which hold for the data beside which they are given.
SOURCES = ("data_dir", "mix", "train_files", "eval_files", "synthetic_data")
SIZES_OF_DATA = ("mix_temperature", "max_seq_length", "max_predictions_per_seq")
# The flags that a phase may have.
FLAGS = (
    *(*SOURCES, *SIZES_OF_DATA, "masked_lm_prob", "whole_word_masking", "document_mask", "seq_length_buckets"),
    *("global_batch_size", "micro_batch_size", "batch_rampup"),
)
FOLLOWING = "grad_accum_steps"  # the flag of the batch that follows from those of a phase
_ENDS = ("until_samples", "until_tokens")
_FORM = (
    "expected a file with a phase on each line, such as `until_samples=1000000 data_dir=data/128 "
    "global_batch_size=4096`, the last one without an end"
)


class Phase(NamedTuple):
    """A part of a run, with its own data and batch."""

    data: DataConfig  # without phases
    batch: BatchConfig
    until_samples: int | None = None  # consumed samples of the run after which the phase ends; None: see until_tokens
    until_tokens: int | None = None  # likewise consumed tokens, padding included; without both, the phase has no end


@dataclass(frozen=True)
class Timeline:
    """The phases of a run, with their sizes, and its batches; a run without phases has one."""

    phases: tuple[Phase, ...]
    begins: tuple[int, ...]  # consumed samples at the begin of each phase
    ends: tuple[float, ...]  # those from which on it is over: fewer than the next `begins` if its last update is larger

    def stages(self, consumed_samples: int = 0) -> list[Stage]:
        """Returns the stages of a run that continues after `consumed_samples`; the last stage has no end."""
        stages, step, sample = [], 0, consumed_samples
        for number, (phase, end) in enumerate(zip(self.phases, self.ends, strict=True)):
            if sample < end:
                own, step, sample = _stages(phase, number, step, sample, end)
                stages += own
        return stages

    def samples_after(self, steps: int, consumed_samples: int = 0) -> int:
        """Returns the number of consumed samples after `steps` further updates."""
        stage = next(stage for stage in reversed(self.stages(consumed_samples)) if stage.first_step <= steps)
        return stage.first_sample + (steps - stage.first_step) * stage.batch_size

    def steps(self, max_steps: int) -> list[range]:
        """Returns the updates of each phase, numbered from 0, in a run of so many."""
        first = {stage.phase: stage.first_step for stage in reversed(self.stages())}
        steps, end = [], max_steps
        for number in reversed(range(len(self.phases))):
            begin = min(first.get(number, end), end)
            steps, end = [range(begin, end), *steps], begin
        return steps

    def tokens(self, consumed_samples: int) -> int:
        """Returns the tokens of the first samples of a run, padding included."""
        spans = zip(self.phases, self.begins, [*self.begins[1:], math.inf], strict=True)
        lengths = [(phase.data.max_seq_length, begin, end) for phase, begin, end in spans]
        return sum(length * max(0, min(consumed_samples, end) - begin) for length, begin, end in lengths)

    def at(self, consumed_samples: int) -> tuple[int, float]:
        """Returns the number of the phase of the next update, from 0, and the updates that are left of it."""
        first, *others = self.stages(consumed_samples)
        return first.phase, next((stage.first_step for stage in others if stage.phase != first.phase), math.inf)


def timeline(data: DataConfig, batch: BatchConfig) -> Timeline:
    """Returns the phases of a resolved configuration with the sizes that the data gives."""
    phases, begins, ends, sample, tokens = tuple(read(data, batch)), [], [], 0, 0
    for phase in phases:
        length, begin = phase.data.max_seq_length, sample
        end = phase.until_samples or math.inf
        if phase.until_tokens:
            end = begin + -(-(phase.until_tokens - tokens) // length)
        if begin < end < math.inf:
            sample = _stages(phase, 0, 0, begin, end)[2]
            tokens += (sample - begin) * length
        begins.append(begin)
        ends.append(end)
    return Timeline(phases, tuple(begins), tuple(ends))


def read(data: DataConfig, batch: BatchConfig) -> list[Phase]:
    """Returns the phases of a run; a run without phases is one phase.

    Raises a ConfigError if the phases can't be read, if one has no end, or if the ends do not rise.
    """
    value = data.phases
    if not value:
        return [Phase(data, batch)]
    try:
        entries = _resolved(value) if _is_resolved(value) else [_words(line) for line in lines(value, _FORM)]
        phases = [_phase(data, batch, entry, f"phase {number}") for number, entry in enumerate(entries, 1)]
        _check_ends(phases)
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # A manifest may hold anything.
        raise ConfigError([Problem("phases", value, str(error))]) from error
    return phases


def resolved(phases: Sequence[Phase]) -> str:
    """Returns a value of --phases with all flags of each, so that it means the same after a change of the file."""
    names = (*FLAGS, FOLLOWING)
    values = [vars(phase.data) | vars(phase.batch) for phase in phases]
    ends = [{name: getattr(phase, name) for name in _ENDS} for phase in phases]
    return json.dumps([end | {name: each[name] for name in names} for end, each in zip(ends, values, strict=True)])


def without(value: str | None, *names: str) -> str | None:
    """Returns resolved phases without some flags, which are then those of the run; other values as they are."""
    if not value or not _is_resolved(value):
        return value
    return json.dumps([{name: entry[name] for name in entry if name not in names} for entry in json.loads(value)])


def source_names(phases: Sequence[Phase]) -> list[str]:
    """Returns the names of the sources of all mixtures of a run."""
    mixtures = {(phase.data.mix, phase.data.mix_temperature) for phase in phases if phase.data.mix}
    return sorted({source.name for each in mixtures for source in mixture.read(*each)})


def ranges(line: Timeline, consumed_samples: int, names: Collection[str]) -> list[tuple[int, dict[str, Any]]]:
    """Returns the ranges of a run's first samples in which flags are the same: the end of each, and the flags."""
    joined = []
    for phase, begin, end in zip(line.phases, line.begins, [*line.begins[1:], consumed_samples], strict=True):
        values = {name: value for name, value in (vars(phase.data) | vars(phase.batch)).items() if name in names}
        if begin < min(end, consumed_samples):
            same = bool(joined) and joined[-1][1] == values
            joined[len(joined) - same :] = [(min(end, consumed_samples), values)]
    return joined


def numbered(value: str | None, of_phases: Sequence[list[Problem]]) -> list[Problem]:
    """Returns the problems of the phases in a value of --phases: once what all have, the rest with a number."""
    of_all = [problem for problem in of_phases[0] if all(problem in own for own in of_phases)]
    rest = [(number, each) for number, own in enumerate(of_phases, 1) for each in own if each not in of_all]
    return of_all + [Problem("phases", value, f"phase {number}: {each}") for number, each in rest]


def _stages(phase: Phase, number: int, step: int, sample: int, end: float) -> tuple[list[Stage], int, int]:
    """Returns the stages of a phase that goes on after so many steps and samples, and both numbers at its end."""
    ramp = phase.batch.ramp.stages(sample)
    own = [each._replace(first_step=step + each.first_step, phase=number) for each in ramp if each.first_sample < end]
    if end == math.inf:
        return own, step, sample
    last = own[-1]
    updates = -(-(end - last.first_sample) // last.batch_size)
    return own, last.first_step + updates, last.first_sample + updates * last.batch_size


def _is_resolved(value: str) -> bool:
    return value.startswith("[")


def _resolved(value: str) -> list[dict[str, Any]]:
    """Returns the entries of a value that `resolved` has made, or a stranger."""
    entries = json.loads(value)
    for entry in entries:
        if unknown := entry.keys() - {*FLAGS, *_ENDS, FOLLOWING}:
            raise ValueError(f"a phase has no flag {min(unknown)}")
        if "=" not in (entry.get("mix") or "="):
            raise ValueError(f"mix={entry['mix']}: expected its sources, not the name of a file")
    return entries


def _words(line: str) -> dict[str, str]:
    """Returns the values of a line by their names."""
    values = {}
    for word in line.split():
        name, equals, value = word.partition("=")
        if not equals or name in values:
            raise ValueError(f"{line}: expected each flag once, as name=value; {_FORM}")
        if name not in (*FLAGS, *_ENDS):
            meant = " or ".join(suggest(name, (*FLAGS, *_ENDS)))
            hint = f"did you mean {meant}? " if meant else ""
            raise ValueError(f"{word}: a phase has no such flag; {hint}expected {', '.join((*_ENDS, *FLAGS))}")
        values[name] = value
    return values


def _phase(data: DataConfig, batch: BatchConfig, entry: Mapping[str, Any], name: str) -> Phase:
    """Returns a phase: data and batch of the run with the values of an entry, where None is a default."""
    ends = {each: entry.get(each) for each in _ENDS}
    for end, value in ends.items():
        if value is not None and not (str(value).isdecimal() and int(value) > 0):
            raise ValueError(f"{name}: {end}={value}: expected a whole number above 0")
    given = {each: value for each, value in entry.items() if each not in _ENDS}
    defaulted = (*SOURCES, *SIZES_OF_DATA) if set(SOURCES) & given.keys() else ()
    sections = []
    for section in (data, batch):
        values = {}
        for field in dataclasses.fields(section):
            if (text := given.get(field.name)) is not None:
                values[field.name] = _value(section, field, str(text), name)
            elif field.name in (*defaulted, *given):
                values[field.name] = field.default
        sections.append(dataclasses.replace(section, **values))
    data, batch = sections
    if "global_batch_size" in given and FOLLOWING not in given and batch.micro_batch_size:
        batch = dataclasses.replace(batch, grad_accum_steps=None)
    ends = {each: value and int(value) for each, value in ends.items()}
    return Phase(dataclasses.replace(data, phases=None), batch, **ends)


def _value(section: DataConfig | BatchConfig, field: dataclasses.Field, text: str, phase: str) -> Any:
    """Returns the value of a flag of a phase; raises a ValueError that names both."""
    try:
        return expand(field, parse(type_of(section, field), text))
    except ValueError as error:
        raise ValueError(f"{phase}: {Problem(field.name, text, str(error))}") from error


def _check_ends(phases: list[Phase]) -> None:
    """Raises a ValueError unless each phase but the last one ends later than the one before."""
    if not phases:
        raise ValueError(_FORM)
    used = [name for name in _ENDS if any(getattr(phase, name) for phase in phases)]
    if len(used) > 1:
        raise ValueError(f"expected {' or '.join(used)} in all phases, not both")
    before = 0
    for number, phase in enumerate(phases, 1):
        end, is_last = phase.until_samples or phase.until_tokens, number == len(phases)
        if (end is None) != is_last:
            expected = "no end, as it is the last one" if is_last else "an end, until_samples or until_tokens"
            raise ValueError(f"phase {number}: expected {expected}")
        if end and end <= before:
            raise ValueError(f"phase {number}: {used[0]}={end}: expected more than {before}, the end before it")
        before = end
