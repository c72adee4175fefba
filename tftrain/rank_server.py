"""Loads what a run needs and forks the ranks of one host: `python -m tftrain.rank_server FLAGS OF tftrain.run`.

The agent of `python -m tftrain.launch --fork_ranks` starts it on each host, and `tftrain.launching.forking` says how
the ranks come to be. A rank does what `python -m tftrain.run` does with the same flags.
"""

import contextlib
import importlib
import sys
from collections.abc import Sequence

from tftrain import run
from tftrain.cli import flags
from tftrain.config.fields import ConfigError
from tftrain.config.train import TrainConfig
from tftrain.host import log
from tftrain.host.exit_codes import RunError
from tftrain.launching import forking
from tftrain.state import checkpoint_flags

# They import all others that a run needs.
MODULES = ("tensorflow", "horovod.tensorflow", "tftrain.train.process")


def main(argv: Sequence[str]) -> None:
    """Forks the ranks that standard input requests; in each rank it ends with the exit code of the run."""
    config, _, named = flags.read(TrainConfig, ["tftrain.run", *argv[1:]])
    with contextlib.suppress(RunError, ConfigError):  # The ranks find the same and say so.
        config = checkpoint_flags.with_flags_of_checkpoint(config, named).config
    run.prepare_process(config.compute, may_restart=True)
    load_modules()
    forking.fork_ranks(lambda: run.main(["tftrain.run", *argv[1:]]))


def load_modules() -> None:
    """Imports the modules of a run; this starts no thread and opens no GPU."""
    with log.loading():
        for name in MODULES:
            importlib.import_module(name)


if __name__ == "__main__":
    main(sys.argv)
