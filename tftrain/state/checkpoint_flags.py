"""The flags of a checkpoint serve where the command line gives none: a resume needs only `--output_dir`.

The manifest of a checkpoint holds the whole configuration of its run. A flag that the command line gives always wins;
`tftrain.state.resume_compatibility` then decides whether it may differ. These flags never come from a checkpoint:

- those that are declared `on_resume="local"`;
- `decay_steps`, if it is the default of its run, a tenth of `max_steps`; and `warmup_steps`, if it is that and the
  command line gives a `max_steps` below it;
- sizes of the data, if the command line names other data;
- what a phase may have, if the command line names the phases;
- what a stranger could use: a class of the user's, an address at a server that the command line does not name, and a
  file that has the text of a flag; these are refused, because the run would go on without them;
- if a checkpoint is evaluated: all but the model, the data, the precision, the micro-batch and which weights the run
  evaluated, because the evaluation may run on other ranks.
"""

import contextlib
import dataclasses
import math
import typing
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tftrain.checkpoint import folder, manifest, scores
from tftrain.checkpoint.errors import CheckpointError
from tftrain.config import fields, phases
from tftrain.config.data import DataConfig
from tftrain.config.fields import ConfigError, Problem, changed, flag_values, on_resume, sections
from tftrain.config.run import RunConfig
from tftrain.config.train import TrainConfig
from tftrain.files import names
from tftrain.inputs.initial_weights import InitialWeights

_TO_EVALUATE = {"precision", "micro_batch_size", "weights"}


class Completed(NamedTuple):
    """A configuration whose flags come from the command line, or else from a checkpoint."""

    config: TrainConfig
    path: Path | None  # the checkpoint; None if there is none
    taken: dict[str, Any]  # the values from the checkpoint that are not defaults, by flag
    initial: InitialWeights | None = None  # the weights that the run begins with

    @property
    def line(self) -> str:
        """A line for the log with the flags from the checkpoint; "" if they are all defaults."""
        words = [
            f"--{name}={str(item).lower() if isinstance(item, bool) else item}"
            for name, value in self.taken.items()
            for item in (value if isinstance(value, tuple) else (value,))
        ]
        return f"flags from {self.path}: {' '.join(words)}" if words else ""

    def explain(self, problems: list[Problem]) -> list[Problem]:
        """Returns the problems; those of flags that are not on the command line say where their values come from."""
        output_dir, resume = self.config.run.folder, self.config.checkpoint.resume
        has_begun = resume == "auto" and (Path(output_dir or "") / "config.json").is_file()

        def explained(problem: Problem) -> Problem:
            if problem.flag in self.taken:
                reason = f"this value is that of {self.path}"
            elif self.path is None and problem.value is None and has_begun and problem.flag == "data_dir":
                reason = f"{output_dir} has no checkpoint that would supply the flags; give them again"
            else:
                return problem
            return problem._replace(expected=f"{problem.expected}; {reason}")

        return list(map(explained, problems))


def with_flags_of_checkpoint(
    config: TrainConfig, named: Collection[str], given: Collection[Any] | None = None
) -> Completed:
    """Takes the flags that the command line does not give from the checkpoint to continue from.

    The micro-batch of the checkpoint is the largest to use: on other ranks a smaller one may be needed to make up the
    global batch. `named` has the names of the flags that the command line gives, and `given` their values if these
    differ from those of `config`, such as addresses.

    Raises:
        ConfigError: the command line gives flags that the phases of the checkpoint have, or must give flags itself.
    """
    try:
        path, saved = _chosen(config.checkpoint.resume, config.run.folder)
    except CheckpointError:
        return Completed(config, None, {})  # `--output_dir` can't be read, which is refused later.
    left_out = _left_out(config.run, config.data, named, saved)
    values, taken = {}, {}
    for field in dataclasses.fields(config):
        section = getattr(config, field.name)
        evaluates_less = config.run.mode == "evaluate" and field.name not in ("model", "data", "fine_tuning")
        for name, value in _values(section, saved).items():
            if name not in left_out and (name in _TO_EVALUATE or not evaluates_less):
                values[name] = value
                if value != getattr(section, name):
                    taken[name] = value
    given = [flag_values(config)[name] for name in named] if given is None else given
    if refused := _of_strangers(values, path, given):
        raise ConfigError(refused)
    if path:  # The weights come from it.
        values |= {"init_checkpoint": None, "init_missing": False}
        if config.checkpoint.resume == "best":
            values["resume"] = str(path)
    if "micro_batch_size" in taken and "fit_micro_batch" not in named:
        values["fit_micro_batch"] = bool(values.get("global_batch_size", config.batch.global_batch_size))
    if taken.get("phases"):
        if clash := sorted({*phases.FLAGS, phases.FOLLOWING} & set(named) - {"micro_batch_size"}):
            expected = f"remove this flag, as the phases of {path} have it, or give the file of --phases too"
            raise ConfigError([Problem(name, flag_values(config)[name], expected) for name in clash])
        data = dataclasses.replace(config.data, phases=values["phases"])
        phases.read(data, config.batch)  # Raises a ConfigError if they can't be read.
        micro = {"micro_batch_size"} & set(named)
        values |= {"phases": phases.without(values["phases"], phases.FOLLOWING, *micro), "fit_micro_batch": True}
    return Completed(changed(config, values), path, taken)


def _left_out(run: RunConfig, data: DataConfig, named: Collection[str], saved: Mapping[str, Any]) -> set[str]:
    """Returns the flags that never come from the checkpoint, whose own are `saved`, or that those `named` replace."""
    kinds = [item for section in sections(TrainConfig()) for item in on_resume(section).items()]
    left_out = {*named, *(name for name, kind in kinds if kind in ("local", "host"))}
    own = vars(fields.without_secrets(data))
    if any(own[name] != saved.get(name) for name in {*phases.SOURCES}.intersection(named)):
        left_out |= {*phases.SOURCES, *phases.SIZES_OF_DATA}
    if run.mode == "evaluate":
        left_out.add("phases")  # The data of the last one is in the other flags.
    elif "phases" in named:
        left_out |= set(phases.FLAGS)
    if "grad_accum_steps" in named:
        left_out.add("global_batch_size" if "micro_batch_size" in named else "micro_batch_size")
    max_steps, warmup = saved.get("max_steps"), saved.get("warmup_steps")
    # They then follow from `max_steps`, as in `TrainConfig.resolve`: the saved flags are resolved. A longer run keeps
    # its warm-up, into which it would go back.
    if isinstance(max_steps, int) and "max_steps" in named and warmup == max_steps // 10 > run.max_steps:
        left_out.add("warmup_steps")
    if isinstance(max_steps, int) and saved.get("decay_steps") == max(1, max_steps // 10):
        left_out.add("decay_steps")
    return left_out


def _of_strangers(values: Mapping[str, Any], path: Path | None, given: Collection[Any]) -> list[Problem]:
    """Returns why a checkpoint can't supply some of its values, given those of the command line."""
    every = {field.name: field for section in sections(TrainConfig()) for field in dataclasses.fields(section)}
    files = {name: value for name, value in values.items() if every[name].metadata["in_file"] and value}
    kinds = {
        "code": [name for name, value in values.items() if fields.names_code(every[name], value)],
        "an address": names.foreign_addresses(values, given),
        "a file": [name for name, value in files.items() if not value.startswith("[") and "=" not in value],
    }
    expected = f"that only {path} names; give this flag if you trust it"
    return [Problem(name, values[name], f"{kind} {expected}") for kind, found in kinds.items() for name in found]


def ranks_of(path: Path) -> int | None:
    """Returns how many ranks have written a checkpoint; None if its manifest does not say so."""
    try:
        layout = manifest.read(path).run.get("layout")
    except (CheckpointError, OSError):
        return None
    return layout.get("ranks") if isinstance(layout, dict) else None


def problems(settings: RunConfig, resume: str) -> list[Problem]:
    """Returns why there is no checkpoint where the flags say that there is one."""
    try:
        chosen, _ = _chosen(resume, settings.folder)
    except CheckpointError as error:
        return [Problem("output_dir", settings.output_dir, str(error))]
    if resume == "best" and chosen is None:
        expected = "--output_dir has no best checkpoint; expected auto, none, or the folder of a checkpoint"
        return [Problem("resume", "best", expected)]
    if resume not in ("auto", "none") and not (chosen / manifest.NAME).is_file():
        newest = folder.find(settings.folder)[-1:]
        such_as = newest[0] if newest else folder.checkpoint_folder(settings.folder) / "step_00001000"
        expected = f"no checkpoint is there; expected auto, none, or the folder of a checkpoint, such as {such_as}"
        return [Problem("resume", resume, expected)]
    if settings.mode == "evaluate" and chosen is None and settings.init_checkpoint is None:
        expected = "expected the folder of a run, or --resume with the folder of a checkpoint, or --init_checkpoint"
        return [Problem("output_dir", settings.output_dir, f"no checkpoint to evaluate; {expected}")]
    return []


def _chosen(resume: str, output_dir: str | None) -> tuple[Path | None, dict[str, Any]]:
    """Returns the checkpoint that `--resume` means, without a check of its tensors, and the flags in its manifest."""
    if resume == "none":
        return None, {}
    if resume == "best":
        path = scores.checkpoint(output_dir) if output_dir else None
        return path, _saved(path) if path else {}
    if resume != "auto":
        return Path(resume), _saved(Path(resume))
    for path in reversed(folder.find(output_dir) if output_dir else []):
        if saved := _saved(path):
            return path, saved
    return None, {}


def _saved(path: Path) -> dict[str, Any]:
    """Returns the flags of a checkpoint's run, whatever section they were in; empty if its manifest can't be read."""
    try:
        sections = manifest.read(path).run.get("config")
    except (CheckpointError, OSError):
        return {}
    parts = sections.values() if isinstance(sections, dict) else ()
    saved = {name: value for part in parts if isinstance(part, dict) for name, value in part.items()}
    sizes = saved.get("eval_batches"), saved.get("global_batch_size")
    if all(isinstance(size, int) for size in sizes):  # Older versions had eval_batches in the place of eval_examples.
        saved["eval_examples"] = math.prod(sizes)
    return saved


def _values(section: Any, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the saved values of a section's flags, without those of a wrong type."""
    values, types = {}, typing.get_type_hints(type(section))
    for name, kind in types.items():
        if name in saved:
            with contextlib.suppress(msgspec.ValidationError):
                values[name] = msgspec.convert(saved[name], kind)
    return values
