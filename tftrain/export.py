"""Exports a model for programs that serve it, as a SavedModel of TensorFlow or as ONNX.

Example, after the example of tftrain.run:
    python -m tftrain.export --output_dir=runs/try --to=exports/try

A SavedModel needs only TensorFlow, an ONNX file only a runtime of ONNX; docs/export.md shows how each is loaded.
"""

import os
import sys
from collections.abc import Sequence

from tftrain.cli.program import Program
from tftrain.config.export import ExportConfig
from tftrain.host import log


def main(argv: Sequence[str]) -> int:
    """Exports what the command line says; returns the exit code."""
    program = Program("export", ExportConfig, lambda config: f"--to={config.export.to}", left="; nothing was written")
    return program.main(export, argv)


def export(config: ExportConfig) -> None:
    """Writes the model, see `exported_folder.write`."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    with log.loading():
        from tftrain.inference.serving import exported_folder
    exported_folder.write(config)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
