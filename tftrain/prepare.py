"""`python -m tftrain.prepare`: converts text to a vocabulary and shards of training examples."""

import logging
import os
import signal
import sys
from collections.abc import Sequence

from tftrain import flags, log
from tftrain.fields import ConfigError
from tftrain.prepare_config import PrepareConfig

logger = logging.getLogger("tftrain.prepare")

PROGRAM = "python -m tftrain.prepare"
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str]) -> int:
    """Prepares a data set from command line flags.

    Args:
        argv: the name of the program and its flags.

    Returns:
        The exit status.
    """
    log.configure(program="prepare")
    try:
        config, problems, _ = flags.read(PrepareConfig, [PROGRAM, *argv[1:]])
        misread = {problem.flag for problem in problems}
        problems += [problem for problem in config.problems() if problem.flag not in misread]
        if problems:
            raise ConfigError(problems)
    except ConfigError as error:
        flags.refuse("prepare", error)
    # TensorFlow logs a missing GPU as an error.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.update(TF_USE_LEGACY_KERAS="1", CUDA_VISIBLE_DEVICES="-1")
    from tftrain.data.errors import DataError
    from tftrain.data.preparation import prepare

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        result = prepare(config)
    except DataError as error:
        logger.error(error)
        return EXIT_FAILED
    except OSError as error:
        # Unreadable input raises DataError, so this error comes from the output folder.
        file_prefix = f"{error.filename}: " if error.filename else ""
        logger.error(
            f"--output_dir={config.output_dir}: {file_prefix}{error.strerror or error}; expected a folder that can be "
            "written, with enough space"
        )
        return EXIT_FAILED
    except KeyboardInterrupt:
        logger.error("interrupted; nothing was left in the output folder")
        return EXIT_INTERRUPTED
    logger.info(
        f"{config.output_dir}: {result.documents} documents, {result.tokens_read} tokens, vocabulary of "
        f"{result.vocab_size}, {result.packed_examples('train')} training and {result.packed_examples('eval')} "
        f"held-out examples of {result.max_seq_length} tokens{_rows(result)}"
    )
    return 0


def _rows(result) -> str:
    if result.max_sequences_per_pack is None:
        return ""
    return f", packed into {result.examples('train')} and {result.examples('eval')} rows"


if __name__ == "__main__":
    sys.exit(main(sys.argv))
