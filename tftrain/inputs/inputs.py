"""What a run reads, opened once: after the flags, and before TensorFlow is imported."""

import contextlib
import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

from tftrain.checkpoint.errors import CheckpointError
from tftrain.config import attention_core, phases
from tftrain.config.fields import ConfigError, Problem, changed
from tftrain.config.model import ModelConfig
from tftrain.config.train import TrainConfig
from tftrain.data.phase_data import PhaseData
from tftrain.data.prepared import ONE_VOCABULARY, Prepared, difference, open_data
from tftrain.files.errors import DataError, FormatError
from tftrain.formats.weights import Weights
from tftrain.inputs import tokenizers
from tftrain.inputs.initial_weights import InitialWeights
from tftrain.inputs.labelled import Labelled
from tftrain.inputs.tokenizers import TokenizerChoice
from tftrain.tokenizer.tokenizer_model import Tokenizer


@dataclass(frozen=True)
class Inputs:
    """Data, tokenizer and initial weights of a run; a file is read when it is first needed, and once."""

    data: tuple[PhaseData, ...]  # one for each phase, or for a run without phases; none if the phases can't be read
    phases: str | None  # the value of --phases
    initial: InitialWeights | None  # the weights that the run begins with; None if they are random
    mode: str  # what the run does with the data, as the flag of the same name; so does `eval_every`
    eval_every: int
    folder: str | None  # the folder of the run

    @classmethod
    def open(cls, config: TrainConfig, initial: InitialWeights | None = None) -> "Inputs":
        """Returns what the flags name; they may be invalid, but for those of data and phases.

        Args:
            initial: the weights that the run begins with, if they are open already.
        """
        run, settings, model = config.run, config.fine_tuning, config.model
        if initial is None and run.init_checkpoint:
            initial = InitialWeights(run.init_checkpoint)
        data = ()
        if model.reads_examples:
            template, resumes = settings.chat_template, config.checkpoint.resume != "none"
            choice = TokenizerChoice(
                settings.tokenizer_dir, template, initial, run.folder, resumes, not model.is_causal
            )
            data = (Labelled(settings, config.data, model, choice),)
        else:
            with contextlib.suppress(ConfigError):  # `TrainConfig.problems` says what is wrong with the phases.
                data = tuple(open_data(phase.data, model) for phase in config.phases)
        every = config.evaluation.eval_every
        return cls(data, None if model.reads_examples else config.data.phases, initial, run.mode, every, run.folder)

    def resolved(self, config: TrainConfig) -> tuple["Inputs", TrainConfig]:
        """Returns what a resolved configuration names, whose paths hold in any folder, and see `with_sizes`.

        What is the same stays open.
        """
        own = Inputs.open(config, self.initial)
        data = tuple(old if old == new else new for old, new in zip(self.data, own.data, strict=True))
        own = dataclasses.replace(own, data=data)
        return own, own.with_sizes(config)

    def of_run(self, folder: str) -> "Inputs":
        """Returns what a run of another seed reads, whose folder may have a tokenizer of its own."""
        data = tuple(each.of_run(folder) if isinstance(each, Labelled) else each for each in self.data)
        return dataclasses.replace(self, folder=folder, data=data)

    def problems(self) -> list[Problem]:
        """Returns all conflicts of the flags with the data, and of the data with the initial weights."""
        of_data = [each.problems(self.mode, self.eval_every) for each in self.data]
        return (phases.numbered(self.phases, of_data) or self._differences()) + self._of_vocabulary()

    def batch_problems(self, size: int) -> list[Problem]:
        """Returns why the training examples are too few for a global batch of this size, if they are compared."""
        data = self.data[0]
        compares = isinstance(data, Labelled) and data.settings.compares_samples(data.model.task)
        if not compares or self.mode != "train":
            return []
        shares = [(source.share if data.data.mix_by == "sample" else 1, own) for source, own in data.sources]
        for share, own in shares or [(1, data)]:
            if int(share * size) > (count := own.count("train")):
                expected = f"expected at most {int(count / share)} with the {count} pairs of {own.settings.train_file}"
                twice = "a pair that is twice in a batch would be compared with itself"
                return [Problem("global_batch_size", size, f"{expected}; {twice}")]
        return []

    def with_sizes(self, config: TrainConfig) -> TrainConfig:
        """Returns a configuration, that of `open` or what it resolves to, with the sizes and classes of the data.

        Raises:
            DataError: the data can't be read.
        """
        data, is_packed = iter(self.data), any(each.is_packed for each in self.data)  # one core for all phases
        return config.change_phases(lambda phase: changed(phase, _sizes(phase.model, next(data), is_packed)))

    @functools.cached_property
    def identity(self) -> dict[str, str]:
        """Properties of the data, by name, that must be equal on all ranks and after a resume; raises a DataError."""
        first, *others = (each.identity for each in self.data)
        numbered = [(number, what, value) for number, each in enumerate(others, 2) for what, value in each.items()]
        return first | {f"{what} of phase {n}": value for n, what, value in numbered if first.get(what) != value}

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the data, else that beside the initial weights; None if there is neither.

        Raises:
            DataError, FormatError: it can't be read.
        """
        return self.data[-1].tokenizer or (self.initial.tokenizer if self.initial else None)

    def open_weights(self, model: ModelConfig, may_lack_heads: bool) -> Weights | None:
        """Opens the initial weights, see `InitialWeights.open`; None if they are random."""
        return self.initial.open(model, self.mode, may_lack_heads) if self.initial else None

    def keep_tokenizer(self, resumed: bool) -> None:
        """Writes the tokenizer into the folder of the run; a resumed run has it there already."""
        if not (resumed and tokenizers.kept_folder(self.folder).is_dir()):
            tokenizers.keep(self.tokenizer, self.folder)

    def _differences(self) -> list[Problem]:
        numbered = [(number, each) for number, each in enumerate(self.data, 1) if isinstance(each, Prepared)]
        return [
            Problem("phases", self.phases, f"phase {number}: {each.settings.folder} has {fault}")
            for number, each in numbered
            if (fault := difference(numbered[0][1].manifest, each.manifest, ONE_VOCABULARY))
        ]

    def _of_vocabulary(self) -> list[Problem]:
        first = self.data[0]
        if self.initial is None or not isinstance(first, Prepared):
            return []
        try:
            tokenizer, ours = self.initial.tokenizer, first.tokenizer.vocabulary.tokens
        except (CheckpointError, DataError, FormatError):
            return []  # The checks of the weights and of the data say more.
        if tokenizer is None or (theirs := tokenizer.vocabulary.tokens) == ours:
            return []
        index = next((index for index, pair in enumerate(zip(theirs, ours, strict=False)) if pair[0] != pair[1]), None)
        difference = "one is longer" if index is None else f"token {index} is {theirs[index]!r}, there {ours[index]!r}"
        expected = f"its vocabulary is not that of the data in {first.settings.folder}: {difference}"
        remedy = "prepare the text with --vocab_file"
        return [Problem("init_checkpoint", self.initial.value, f"{expected}; {remedy}")]


def _sizes(model: ModelConfig, data: PhaseData, is_packed: bool) -> dict[str, Any]:
    """Returns the sizes and the classes that data gives a run, by flag, and the attention core of packed rows."""
    labels = {"labels": data.labels, "negatives": data.negatives} if isinstance(data, Labelled) else {}
    packed = {"attn_impl": attention_core.of_packed_rows(model)} if is_packed else {}
    first = {}
    if model.first_row and model.first_position is None and data.tokenizer:
        padding = data.tokenizer.vocabulary.roles.padding
        first = {} if padding is None else {"first_position": padding + 1}
    sizes = data.sizes._asdict() | {"intermediate_size": model.feed_forward_size}
    return labels | packed | first | sizes
