"""Converts a model's weights and tokenizer between the formats of tftrain and of other libraries.

Example, after the example of tftrain.run:
    python -m tftrain.convert --from=tftrain:runs/try --to=hf:exports/transformers

Nothing is rounded, and nothing is invented unless `--init_missing` says so. docs/formats.md lists the formats.
"""

import os
import sys
from collections.abc import Sequence

from tftrain.cli.program import Program
from tftrain.config.convert import ConvertConfig


def main(argv: Sequence[str]) -> int:
    """Converts what the command line says; returns the exit code."""
    program = Program("convert", ConvertConfig, lambda config: f"--to={config.to}", left="; nothing was written")
    return program.main(convert, argv)


def convert(config: ConvertConfig) -> None:
    """Writes the model into a folder that appears when it is complete; an error names the file or the flag."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    from tftrain.formats import conversion

    conversion.convert(config)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
