"""The configuration of `tftrain.export`."""

import importlib.util
from dataclasses import dataclass, field
from pathlib import Path

from tftrain.config.convert import target_problems
from tftrain.config.fields import Problem, field_problems, flag, superfluous
from tftrain.config.model_source import ModelSource

_ONNX_PACKAGES = ("tf2onnx", "onnx", "onnxruntime")


@dataclass(frozen=True)
class ExportFlags:
    """What is written, and where."""

    to: str | None = flag(None, "Folder to write, which does not exist yet or is empty.", names="path")
    format: str = flag("saved_model", choices=("saved_model", "onnx"))
    """Format to write. saved_model: a SavedModel, in the subfolder 1. onnx: a file for each signature on token ids."""
    variant: str = flag("fp32", choices=("fp32", "bf16", "int8"))
    """Format of the weights. bf16: the model computes in it too. int8: kernels, the token embedding and a decoder's
    output layer in 8 bits with a scale for each channel; the model computes in fp32."""
    input_names: str = flag("tftrain", choices=("tftrain", "transformers"))
    """Names and types of signatures on token ids. transformers: int64 inputs, attention_mask for input_mask,
    last_hidden_state for hidden_states and pooler_output for pooled."""
    text_file: str | None = flag(None, names="path")
    """UTF-8 text on which the export is compared with the model in fp32; by default the docstrings of tftrain."""
    top_k: int = flag(5, "Candidates that the signatures on text return.", minimum=1, maximum=1000)
    null_score_threshold: float | None = flag(None)
    """Give no answer if the score of no answer exceeds the best answer's by more than this; by default every question
    gets an answer. For the signature answer_text of a question_answering model."""

    def problems(self) -> list[Problem]:
        """Returns every reason to refuse these flags."""
        problems = field_problems(self)
        problems += target_problems("to", self.to, self.to)
        if self.text_file and not Path(self.text_file).is_file():
            problems.append(Problem("text_file", self.text_file, "no such file; expected a UTF-8 text"))
        if self.format == "onnx":
            expected = "remove this flag: --format=onnx has no signature on text"
            problems += superfluous(self, ("null_score_threshold",), expected)
            if self.variant in ("bf16", "int8"):
                problems.append(Problem("variant", self.variant, "expected fp32 with --format=onnx"))
            if missing := [name for name in _ONNX_PACKAGES if importlib.util.find_spec(name) is None]:
                expected = f"expected {' and '.join(missing)} to be installed: pip install {' '.join(missing)}"
                problems.append(Problem("format", self.format, expected))
        return problems


@dataclass(frozen=True)
class ExportConfig:
    """A model, and what it is exported to."""

    source: ModelSource = field(default_factory=ModelSource)
    export: ExportFlags = field(default_factory=ExportFlags)
