"""The configuration of `tftrain.convert`, and how a model's files are named on a command line: FORMAT:PATH."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tftrain.config.fields import WEIGHTS, Problem, field_problems, flag, refused
from tftrain.files.addresses import is_address

FORMATS = {
    "tftrain": "a checkpoint, or a run's --output_dir",
    "hf": "a folder of transformers, with config.json and model.safetensors",
    "tf1": "a folder of the original BERT, with bert_config.json, bert_model.ckpt.* and vocab.txt",
    "tf_models": "a folder as for tf1, with an object-based checkpoint of tf-models",
    "nvidia": "a folder as for tf1, with a checkpoint of NVIDIA's BERT for TensorFlow 2",
    "megatron": "a checkpoint folder of Megatron-LM's BERT, of one rank",
}
FORMATS_IN_WORDS = "; ".join(f"{name}: {what}" for name, what in FORMATS.items())
FORM = "FORMAT:PATH or FORMAT:ADDRESS"
EXPECTED = f"expected FORMAT:PATH, where FORMAT is one of {', '.join(FORMATS)}"


class Place(NamedTuple):
    """Where a model is: a key of `FORMATS` and a path."""

    format: str
    path: str


def place_problems(name: str, value: str | None, exists: bool) -> list[Problem]:
    """Returns why the value of a flag is no FORMAT:PATH, of something that `exists` or of what will be written."""
    model = parse_place(value or "")
    if model is None:
        return [Problem(name, value, EXPECTED)]
    if exists and not is_address(model.path) and not Path(model.path).is_dir():
        return [Problem(name, value, f"no such folder; expected {FORMATS[model.format]}")]
    return [] if exists else target_problems(name, value, model.path)


def target_problems(name: str, value: str | None, folder: str | None) -> list[Problem]:
    """Returns why a program can't write the folder that the value of a flag names: there is none, or it is in use."""
    path = Path(folder or "")
    if is_address(folder):
        return [Problem(name, value, "expected a local folder; only what is read may be at an address")]
    if not folder or (path.exists() and (not path.is_dir() or any(path.iterdir()))):
        return [Problem(name, value, "expected a folder that does not exist yet, or an empty one")]
    return []


def tokenizer_problems(folder: str | None) -> list[Problem]:
    """Returns why `--tokenizer_dir` names no folder of a tokenizer."""
    if not folder or Path(folder).is_dir():
        return []
    expected = "no such folder; expected one with vocab.txt or tokenizer.json, or prepared data"
    return [Problem("tokenizer_dir", folder, expected)]


def average_problems(weights: str, source: Place | None) -> list[Problem]:
    """Returns why `--weights` can't be averaged of a model at a place."""
    if weights != "averaged" or source is None or source.format == "tftrain":
        return []
    return [Problem("weights", weights, "expected trained: only a run of tftrain has averaged weights")]


def parse_place(value: str) -> Place | None:
    """Returns the place that FORMAT:PATH names; None if it names none."""
    name, _, path = value.partition(":")
    return Place(name, path) if name in FORMATS and path else None


@dataclass(frozen=True)
class ConvertConfig:
    """Which model is read, and in which format it is written."""

    from_: str | None = flag(None, f"Model to read, as {FORM}. {FORMATS_IN_WORDS}.", names="location")
    to: str | None = flag(None, "Model to write, as FORMAT:PATH, into a new or empty folder.", names="location")
    architecture: str | None = flag(None)
    """Class to write, such as BertForMaskedLM or GPT2LMHeadModel for hf, BertPretrainerV2 for tf_models, BertPretrainer
    for nvidia; by default the largest class whose output heads the model has."""
    tokenizer_dir: str | None = flag(None, names="path")
    """Folder with the tokenizer's files, or prepared data, instead of the tokenizer beside the model."""
    max_shard_gb: float = flag(5.0, above=0)
    """Most GB (1e9 bytes) of weights in one file of hf; a larger model has several files and an index."""
    allow_pickle: bool = flag(False)
    """Read pytorch_model.bin if hf has no model.safetensors. A pickle can name code to run when it is loaded; this
    reader runs none of it, but other programs that load the same file may."""
    average_last: int = flag(1, minimum=1, maximum=1000)
    """Number of newest checkpoints of a run, --from=tftrain:OUTPUT_DIR, whose mean weights are converted."""
    weights: str = flag("trained", "Weights of a run. averaged: the moving average of --ema_decay.", choices=WEIGHTS)
    init_missing: bool = flag(False, "Give initial values to output heads that the source lacks.")
    keep_tokens_of: tuple[str, ...] = flag((), names="path")
    """Files, folders or globs with text: only its tokens stay, and the tables of the vocabulary become smaller. Special
    tokens, single characters and bytes always stay."""
    keep_tokens: int | None = flag(None, minimum=6)
    """Most tokens that stay: the most frequent ones of --keep_tokens_of; without it, the first of the vocabulary."""
    seed: int = flag(1, "Seed of the initial values of --init_missing.", minimum=0, maximum=2**31 - 1)

    def problems(self) -> list[Problem]:
        """Returns every reason to refuse this configuration."""
        source, problems = parse_place(self.from_ or ""), field_problems(self)
        if self.average_last > 1 and source and source.format != "tftrain":
            problems.append(refused(self, "average_last", "expected 1: only runs have several checkpoints"))
        problems += average_problems(self.weights, source) + place_problems("from", self.from_, exists=True)
        return problems + place_problems("to", self.to, exists=False) + tokenizer_problems(self.tokenizer_dir)
