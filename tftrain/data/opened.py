"""The data that a run is pre-trained on: its sizes, its identity, and why it can't serve; needs no TensorFlow."""

import abc
import functools
import hashlib
import os
from dataclasses import dataclass

from tftrain.config import length_choice
from tftrain.config.data import DataConfig
from tftrain.config.fields import Problem, field_problems, refused
from tftrain.config.model import ModelConfig
from tftrain.data.example import decode
from tftrain.data.objectives import OBJECTIVES, ObjectiveChecks
from tftrain.data.phase_data import PhaseData
from tftrain.data.records import RecordSet, match_files
from tftrain.data.sizes import SYNTHETIC_SEQ_LENGTH, Sizes, synthetic
from tftrain.files.errors import DataError

_NO_VOCAB_SIZE = "expected the vocabulary's size, as --train_files do not state it"


@dataclass(frozen=True)
class OpenedData(PhaseData):
    """The data of a run, or of one of its phases; files are read when they are first needed, and once.

    Attributes:
        settings, model: the flags. Only those whose own values are refused may be out of their bounds, and no check
            depends on them.
    """

    settings: DataConfig
    model: ModelConfig

    @property
    def objective(self) -> ObjectiveChecks:
        """What depends on the objective of the model."""
        return OBJECTIVES[self.model.objective]

    @property
    def identity(self) -> dict[str, str]:
        """Properties of the data, by name, that must be equal on all ranks and after a resume.

        Raises:
            DataError: the data can't be read.
        """
        return {}

    def problems(self, mode: str, eval_every: int) -> list[Problem]:
        """Returns all conflicts with the flags, see `PhaseData`."""
        return self.objective.flag_problems(self.model, self.settings) + self._problems(mode, eval_every)

    @abc.abstractmethod
    def _problems(self, mode: str, eval_every: int) -> list[Problem]:
        """Returns the conflicts of this kind of data."""

    def _length_problems(self, length: int, origin: str | None) -> list[Problem]:
        data, faults = self.settings, []
        if data.max_seq_length not in (None, length):
            faults.append(refused(data, "max_seq_length", f"remove this flag, or give the {length} of {origin}"))
        if self.model.longest_sequence < length:
            expected = f"expected at least the --max_seq_length={length} of {origin}"
            faults.append(refused(self.model, "max_position_embeddings", expected))
        return faults


class Synthetic(OpenedData):
    """Random token ids."""

    @property
    def sizes(self) -> Sizes:
        """The sizes that flags set, else the defaults."""
        return synthetic(self.settings, self.model.vocab_size, self.model.objective)

    def _problems(self, mode: str, eval_every: int) -> list[Problem]:
        data, faults = self.settings, []
        if data.max_seq_length is None and self.model.longest_sequence < SYNTHETIC_SEQ_LENGTH:
            default = f"--max_seq_length={SYNTHETIC_SEQ_LENGTH}, which is the default of synthetic data"
            faults.append(refused(self.model, "max_position_embeddings", f"expected at least {default}"))
        if {each.flag for each in field_problems(data)} & {"max_seq_length", "masked_lm_prob"}:
            return faults
        return faults + self.objective.synthetic_problems(data, *self.sizes[1:])


class RecordFiles(OpenedData):
    """Records that another program wrote, identified by the names and sizes of their files, in order."""

    @property
    def sizes(self) -> Sizes:
        """The sizes of the first record, and the vocabulary size that a flag states."""
        if self.model.vocab_size is None:
            raise DataError(f"--vocab_size is not given; {_NO_VOCAB_SIZE}")
        return Sizes(self.model.vocab_size, *self.record_sizes("train_files"))

    @property
    def identity(self) -> dict[str, str]:
        """Names and sizes of the files."""
        properties = {}
        for flag in self._flags():
            paths = self.paths(flag)
            names_and_sizes = "\n".join(f"{os.path.basename(path)} {os.path.getsize(path)}" for path in paths)
            digest = hashlib.sha256(names_and_sizes.encode()).hexdigest()
            properties[f"what --{flag} names"] = f"{len(paths)} files whose names and sizes have SHA-256 {digest[:16]}"
        return properties

    @property
    def has_held_out(self) -> bool:
        """Whether there are held-out files."""
        return self.settings.eval_files is not None

    def paths(self, flag: str) -> list[str]:
        """Returns the files that train_files or eval_files names; raises a DataError."""
        return match_files(getattr(self.settings, flag), flag)

    def record_sizes(self, flag: str) -> tuple[int, int]:
        """Returns max_seq_length and max_predictions_per_seq of the first record of files.

        Raises:
            DataError: a file can't be read, or the record is no example of the objective.
        """
        if flag not in self._read:
            self._read[flag] = record_sizes(self.paths(flag), self.model.objective)
        return self._read[flag]

    @functools.cached_property
    def _read(self) -> dict[str, tuple[int, int]]:
        return {}

    def _flags(self) -> list[str]:
        return [flag for flag in ("train_files", "eval_files") if getattr(self.settings, flag)]

    def _problems(self, mode: str, eval_every: int) -> list[Problem]:
        data, faults, described = self.settings, [], {}
        if self.model.vocab_size is None:
            faults.append(Problem("vocab_size", None, _NO_VOCAB_SIZE))
        if not self.has_held_out:
            expected = "expected a glob of held-out TFRecords, which --mode=evaluate reads"
            faults += held_out_problems(mode, eval_every, refused(data, "eval_files", expected), "--eval_files")
        for flag in self._flags():
            pattern = getattr(data, flag)
            try:
                length, slots = self.record_sizes(flag)
            except DataError as error:
                faults.append(refused(data, flag, str(error).removeprefix(f"--{flag}={pattern}: ")))
                continue
            described[flag] = self.objective.records_have.format(length, slots)
            faults += self._length_problems(length, pattern)
            if flag == "train_files":
                faults += length_choice.problems(data.seq_length_buckets, length, 1)
            faults += self.objective.record_problems(data, length, slots)
        if len(set(described.values())) > 1:
            expected = f"expected the {described['train_files']} of --train_files, not {described['eval_files']}"
            faults.append(refused(data, "eval_files", expected))
        return list(dict.fromkeys(faults))


def record_sizes(paths: list[str], objective: str) -> tuple[int, int]:
    """Returns the sizes of the first record of files that were not prepared here, see `RecordFiles.record_sizes`."""
    records = RecordSet(paths[:1])
    where = records.place(0)
    return OBJECTIVES[objective].record_sizes(decode(records.read(0), where), where)


def held_out_problems(mode: str, eval_every: int, reason: Problem, missing: str) -> list[Problem]:
    """Returns the problems of a run without held-out examples; `reason` is the problem if it only evaluates."""
    if mode == "evaluate":
        return [reason]
    expected = f"expected 0, or {missing}: nothing is held out"
    return [Problem("eval_every", eval_every, expected)] if eval_every > 0 else []
