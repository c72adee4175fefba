"""Converts text to a vocabulary and to shards of training examples.

Example, with a guide as the text:
    python -m tftrain docs flags > text.txt &&
    python -m tftrain.prepare --input_files=text.txt --vocab_size=500 --max_seq_length=64 --output_dir=data/try
"""

import logging
import os
import sys
from collections.abc import Sequence

from tftrain.cli.program import Program
from tftrain.config.prepare import PrepareConfig

logger = logging.getLogger("tftrain.prepare")

PROGRAM = Program(
    "prepare",
    PrepareConfig,
    target=lambda config: f"--output_dir={config.output_dir}",
    left="; nothing was left in the output folder",
)


def main(argv: Sequence[str]) -> int:
    """Prepares the data set that the command line describes; returns the exit code."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    # Arrow's own pool reserves a gigabyte of addresses, and C++ aborts the process if a limit leaves too few of them.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    return PROGRAM.main(prepare, argv)


def prepare(config: PrepareConfig) -> None:
    """Prepares a data set, see `preparation.prepare`, and logs its size."""
    from tftrain.prepare import preparation

    result = preparation.prepare(config)
    rows = f", packed into {result.examples('train')} and {result.examples('eval')} rows"
    documents = f"{result.documents} documents, " if result.documents else ""  # Records of others have no number.
    logger.info(
        f"{config.output_dir}: {documents}"
        f"{result.tokens_read} tokens, vocabulary of "
        f"{result.vocab_size}, {result.packed_examples('train')} training and {result.packed_examples('eval')} "
        f"held-out examples of {result.max_seq_length} tokens{rows if result.max_sequences_per_pack else ''}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv))
