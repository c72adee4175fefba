"""Which trained model a program takes: a run's, or one of any format that tftrain.convert reads."""

from dataclasses import dataclass
from pathlib import Path

from tftrain.config.convert import FORMATS, Place, parse_place, place_problems
from tftrain.config.fields import Problem, field_problems, flag


@dataclass(frozen=True)
class ModelSource:
    """The model, and its tokenizer."""

    output_dir: str | None = flag(None, "Output folder of a run: its newest checkpoint, or its best if fine-tuned.")
    init_checkpoint: str | None = flag(
        None,
        "The model instead of that of a run, as FORMAT:PATH. "
        + "; ".join(f"{name}: {what}" for name, what in FORMATS.items())
        + ".",
    )
    tokenizer_dir: str | None = flag(
        None, "Folder with the tokenizer's files, or prepared data, instead of the tokenizer beside the model."
    )

    @property
    def place(self) -> Place:
        """Format and folder of the model."""
        return Place("tftrain", self.output_dir) if self.output_dir else parse_place(self.init_checkpoint)

    @property
    def shown(self) -> str:
        """The flag that names the model, for messages."""
        return f"--output_dir={self.output_dir}" if self.output_dir else f"--init_checkpoint={self.init_checkpoint}"

    def problems(self) -> list[Problem]:
        """Returns every reason to refuse these flags."""
        found = field_problems(self)
        if bool(self.output_dir) == bool(self.init_checkpoint):
            found.append(Problem("output_dir", self.output_dir, "expected either output_dir or init_checkpoint"))
        elif self.init_checkpoint:
            found += place_problems("init_checkpoint", self.init_checkpoint, exists=True)
        elif not Path(self.output_dir).is_dir():
            found.append(Problem("output_dir", self.output_dir, "no such folder; expected that of a run"))
        if self.tokenizer_dir and not Path(self.tokenizer_dir).is_dir():
            expected = "no such folder; expected one with vocab.txt or tokenizer.json, or prepared data"
            found.append(Problem("tokenizer_dir", self.tokenizer_dir, expected))
        return found
