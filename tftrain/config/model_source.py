"""Which trained model a program takes: a run's, or one of any format that tftrain.convert reads."""

from dataclasses import dataclass
from pathlib import Path

from tftrain.config import convert
from tftrain.config.fields import WEIGHTS, Problem, field_problems, flag, refused
from tftrain.files.addresses import is_address


@dataclass(frozen=True)
class ModelSource:
    """The model, and its tokenizer."""

    output_dir: str | None = flag(None, names="path")
    """Output folder of a run, or its address. The newest checkpoint is read, or the best one if fine-tuned."""
    init_checkpoint: str | None = flag(
        None, f"Model to read instead of a run, as {convert.FORM}. {convert.FORMATS_IN_WORDS}.", names="location"
    )
    weights: str = flag("trained", "Weights of a run. averaged: the moving average of --ema_decay.", choices=WEIGHTS)
    tokenizer_dir: str | None = flag(None, names="path")
    """Folder with the tokenizer's files, or prepared data, instead of the tokenizer beside the model."""

    @property
    def place(self) -> convert.Place:
        """Format and folder, or address, of the model."""
        if self.output_dir:
            return convert.Place("tftrain", self.output_dir)
        return convert.parse_place(self.init_checkpoint)

    @property
    def shown(self) -> str:
        """The flag that names the model, for messages."""
        return f"--output_dir={self.output_dir}" if self.output_dir else f"--init_checkpoint={self.init_checkpoint}"

    def problems(self) -> list[Problem]:
        """Returns every reason to refuse these flags."""
        problems = field_problems(self)
        if bool(self.output_dir) == bool(self.init_checkpoint):
            problems.append(refused(self, "output_dir", "expected either --output_dir or --init_checkpoint"))
        elif self.init_checkpoint:
            problems += convert.place_problems("init_checkpoint", self.init_checkpoint, exists=True)
            problems += convert.average_problems(self.weights, convert.parse_place(self.init_checkpoint))
        elif not is_address(self.output_dir) and not Path(self.output_dir).is_dir():
            problems.append(refused(self, "output_dir", "no such folder; expected that of a run"))
        return problems + convert.tokenizer_problems(self.tokenizer_dir)
