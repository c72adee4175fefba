"""The labelled files of a run, opened: examples, classes and problems, sizes and identity; needs no TensorFlow."""

import dataclasses
import functools
import hashlib
import logging
from dataclasses import dataclass

from tftrain.config.data import DataConfig
from tftrain.config.fields import ConfigError, Problem, refused
from tftrain.config.fine_tuning import FineTuningConfig, scores_of
from tftrain.config.mixture import Source
from tftrain.config.model import WITH_CLASSES, ModelConfig
from tftrain.data.mixture import read_sources
from tftrain.data.phase_data import PhaseData
from tftrain.data.sizes import Sizes, example_length
from tftrain.files.errors import DataError
from tftrain.finetune import completions, conll, examples, glue, retrieval, squad, text_groups
from tftrain.finetune.encoding import ExampleEncoder
from tftrain.finetune.examples import with_model_labels
from tftrain.finetune.tables import FileNotes, RowError, digest, read_bytes
from tftrain.host.text import listed
from tftrain.host.user_code import file_of
from tftrain.inputs.tokenizers import TokenizerChoice
from tftrain.tokenizer.tokenizer_model import Tokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Labelled(PhaseData):
    """Labelled files, "train" and "eval"; each is read when it is first needed, and once."""

    settings: FineTuningConfig
    data: DataConfig
    model: ModelConfig  # without labels if they are those of the training file
    chosen: TokenizerChoice

    def of_run(self, folder: str) -> "Labelled":
        """Returns the files for a run in a folder, which may have a tokenizer of its own."""
        return dataclasses.replace(self, chosen=dataclasses.replace(self.chosen, output_dir=folder))

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model; raises a DataError."""
        return self.chosen.tokenizer

    @property
    def sizes(self) -> Sizes:
        """The sizes that model and data share; raises a DataError without a tokenizer."""
        tokens = len(self.tokenizer.vocabulary)
        return Sizes(self.model.vocab_size or tokens, example_length(self.data, self.model), 1)

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """The classes of the model: those of the flags, else of the training file; none for other tasks.

        Raises a DataError if there are too few classes or far too many, and for the reasons of `examples`.
        """
        if self.model.labels or self.model.task not in WITH_CLASSES:
            return self.model.labels
        if self.settings.glue_task:
            return glue.TASKS[self.settings.glue_task].labels
        labels = examples.labels_of(self._read("train")[0], self.model.task)
        rows = {
            source.name: [examples.classes_of(row, self.model.task) for row in each._train[0]]
            for source, each in self.sources
        }
        lacking = {name: {*labels}.difference(*own) for name, own in rows.items()}
        if rows and all(lacking.values()):
            words = "; ".join(f"{name} lacks {listed(sorted(each), 3)}" for name, each in lacking.items())
            raise DataError(f"no source has all {len(labels)} classes: {words}; expected --labels with all of them")
        return labels

    @functools.cached_property
    def sources(self) -> list[tuple[Source, "Labelled"]]:
        """The training files of a mixture, each as if it was the only one; raises a DataError if it can't be read."""
        found = read_sources(self.data)
        settings = [dataclasses.replace(self.settings, train_file=each.path) for each in found]
        alone = dataclasses.replace(self, data=dataclasses.replace(self.data, mix=None))
        return [(each, dataclasses.replace(alone, settings=own)) for each, own in zip(found, settings, strict=True)]

    @property
    def negatives(self) -> int | None:
        """Hard negatives of a training sample of embeddings, if its file has any; for errors see `examples`."""
        reads = self.model.task == "embedding" and (self.settings.train_file or self.data.mix)
        return (len(self._read("train")[0][0].texts) - 2 if reads else 0) or self.settings.negatives

    @property
    def has_held_out(self) -> bool:
        """Whether there are held-out examples."""
        return self.settings.glue_task is not None or self.settings.eval_file is not None

    def examples(self, split: str) -> list:
        """Returns the texts, sentences or questions of a split, as the task has them, with the model's classes.

        The log says what is left out, and which names of classes were replaced. Raises a DataError if the file can't be
        read, if an example is damaged, or if its class is none of the model's; the message names the line.
        """
        rows, notes = self._read(split)
        names = FileNotes()
        rows = with_model_labels(rows, self.model.task, self.labels, names)
        for level, text in (*notes, *names):
            logger.log(level, text)
        return rows

    def count(self, split: str) -> int:
        """Returns the number of the examples of a split; for errors see `examples`."""
        return len(self._read(split)[0])

    def _read(self, split: str) -> tuple[list, FileNotes]:
        """Returns the examples of a split, and what to say of them; for errors see `examples`."""
        return self._train if split == "train" else self._eval

    @functools.cached_property
    def _train(self) -> tuple[list, FileNotes]:
        if not self.sources:
            return self._read_file("train")
        rows = [row for _, each in self.sources for row in each._train[0]]
        notes = FileNotes(note for _, each in self.sources for note in each._train[1])
        if self.model.task == "embedding":
            rows = text_groups.filled(rows, "--mix", notes)
        return rows, notes

    @functools.cached_property
    def _eval(self) -> tuple[list, FileNotes]:
        return self._read_file("eval")

    def _read_file(self, split: str) -> tuple[list, FileNotes]:
        task, settings, notes = self.model.task, self.settings, FileNotes()
        path = examples.path_of(settings, split)
        try:
            if self.model.is_custom:  # Its class reads the file.
                read_bytes(path)
                rows = []
            elif task == "token_classification":
                columns = (settings.text_column, settings.label_column)
                rows = conll.read_sentences(path, *columns, settings.skip_bad_rows, notes)
            elif task == "question_answering":
                rows = squad.read_questions(path, settings.skip_bad_rows, notes)
            elif task == "completion":
                rows = completions.read_examples(path, settings, self.tokenizer, notes)
            elif split == "eval" and settings.eval_corpus:
                rows = retrieval.read(settings, task, self.labels, notes)
            else:
                rows = examples.read_examples(settings, task, split, notes)
        except RowError as error:
            raise DataError(f"{error}; correct it, or leave such rows out with --skip_bad_rows") from error
        return rows, notes

    def problems(self, mode: str, eval_every: int) -> list[Problem]:
        """Returns all conflicts of the flags, valid or not, with the files that a run reads in a mode."""
        settings, task, problems = self.settings, self.model.task, []
        metrics = scores_of(settings, task)
        if metrics and settings.best_metric not in (None, *metrics):
            problems.append(refused(settings, "best_metric", f"expected one of {', '.join(metrics)}"))
        if settings.glue_task and glue.TASKS[settings.glue_task].task != task:
            expected = f"expected {glue.TASKS[settings.glue_task].task} with --glue_task={settings.glue_task}"
            return [*problems, refused(self.model, "task", expected)]
        try:
            _ = self.tokenizer
        except DataError as error:
            problems.append(self._problem(error, "tokenizer_dir" if settings.tokenizer_dir else "init_checkpoint"))
            if task == "completion":  # Its files can't be read without.
                return problems
        if task == "embedding" and not problems:
            encoder = ExampleEncoder(self.tokenizer, self.sizes.max_seq_length)
            for column in (0, 1):
                try:
                    encoder.unpooled(self.model, column)
                except ConfigError as error:
                    problems += error.problems
        labels = self.model.labels
        for split in ("train", "eval"):
            flag = "glue_dir" if settings.glue_task else f"{split}_file"
            flag = "mix" if self.data.mix and flag == "train_file" else flag
            if flag in {problem.flag for problem in problems}:
                continue
            if flag != "mix" and getattr(settings, flag) is None:
                if split == "eval" and mode == "evaluate":
                    expected = "expected held-out examples, which --mode=evaluate reads"
                    problems.append(Problem("eval_file", None, expected))
                continue
            try:
                rows = self._read(split)[0]
                labels = labels or (self.labels if split == "train" else ())
                if labels:
                    with_model_labels(rows, task, labels, FileNotes())
            except completions.TemplateError as error:
                of_template = ("chat_template", "tokenizer_dir")
                flag = next((name for name in of_template if getattr(settings, name)), "init_checkpoint")
                return [*problems, self._problem(error, flag)]
            except DataError as error:
                problems.append(self._problem(error, flag))
        if eval_every > 0 and not self.has_held_out:
            problems.append(Problem("eval_every", eval_every, "expected 0, or --eval_file: nothing is held out"))
        return problems

    def _problem(self, error: DataError, flag: str) -> Problem:
        """Returns an error as a problem of a flag; the message may begin with the flag."""
        initial = self.chosen.initial
        named = self.data if flag == "mix" else self.settings
        value = getattr(named, flag, None) or (initial.value if initial else None)
        message = str(error)
        for prefix in (f"--{flag}={value}: ", f"{value}: ", f"{value}, "):
            message = message.removeprefix(prefix)
        if message.startswith("--"):
            name, _, rest = message.removeprefix("--").partition(" is not given; ")
            if rest:
                return Problem(name, None, rest)
            flag_text, _, message = message.removeprefix("--").partition(": ")
            flag, _, value = flag_text.partition("=")
        return Problem(flag, value, message)

    @functools.cached_property
    def identity(self) -> dict[str, str]:
        """What must be equal of files and tokenizer on all ranks and after a resume; raises a DataError."""
        settings, tokenizer = self.settings, self.tokenizer
        vocabulary = "\n".join(tokenizer.vocabulary.tokens).encode()
        identity = {"the vocabulary": f"{len(tokenizer.vocabulary)} tokens with {_digest(vocabulary)}"}
        if self.model.task == "completion" and tokenizer.chat_template:
            identity["the chat template"] = _digest(tokenizer.chat_template.encode())
        if self.model.is_causal and not self.model.is_custom and tokenizer.begins_with_bos:
            identity["the token before a text"] = tokenizer.named_tokens["bos_token"]
        if self.model.is_custom and (path := file_of(self.model.task)):
            identity["the file of --task"] = _digest(read_bytes(path))
        for source, _ in self.sources:
            identity[f"the source {source.name}"] = f"{source.share:.6f}, SHA-256 {digest(source.path)[:16]}"
        for split in ("train", "eval"):
            if settings.glue_task or getattr(settings, f"{split}_file"):
                identity[f"the labelled {split} file"] = f"SHA-256 {digest(examples.path_of(settings, split))[:16]}"
        for flag in ("eval_corpus", "eval_qrels"):
            if path := getattr(settings, flag):
                identity[f"the file of --{flag}"] = f"SHA-256 {digest(path)[:16]}"
        return identity


def _digest(content: bytes) -> str:
    return f"SHA-256 {hashlib.sha256(content).hexdigest()[:16]}"
