"""Small runs: their flags, a training of one rank in this process, and what a run has logged."""

import contextlib
import io
import json
from collections.abc import Sequence
from pathlib import Path

from tftrain import run
from tftrain.cli import flags
from tftrain.config.train import TrainConfig
from tftrain.host import log
from tftrain.inputs.inputs import Inputs
from tftrain.observe.rows import EvalRow
from tftrain.parallel.launcher import Launch
from tftrain.parallel.mesh import Mesh
from tftrain.train import evaluate as evaluation
from tftrain.train import loop

SMALL = (
    *("--num_hidden_layers=1", "--hidden_size=32", "--num_attention_heads=2", "--synthetic_data", "--vocab_size=101"),
    *("--max_seq_length=16", "--learning_rate=0.01", "--log_every=1", "--eval_examples=128"),
)


def configured(*args: str, base: Sequence[str] = SMALL) -> TrainConfig:
    """Returns the configuration of a run of one rank by its flags, with the sizes that the data gives, unchecked."""
    return with_sizes(flags.parse(TrainConfig, ["tftrain.run", *base, *args]).resolve(1))


def with_sizes(config: TrainConfig) -> TrainConfig:
    """Returns a configuration with the sizes and the classes that the data gives."""
    return Inputs.open(config).with_sizes(config)


def checked(*args: str, base: Sequence[str] = SMALL) -> TrainConfig:
    """Returns the configuration of a run of one rank by its flags, after all checks of the program."""
    return run.checked(*run.read(["tftrain.run", *base, *args]), Launch())[0]


def run_alone(*args: str) -> str:
    """Trains or evaluates by a command line on one rank in this process; returns what is printed."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        log.configure(rank=0)
        config, inputs = run.checked(*run.read(["tftrain.run", *args]), Launch())
        if config.run.mode == "evaluate":
            evaluation.evaluate(config, inputs, Mesh())
        else:
            assert loop.train(config, inputs, Mesh()) == 0
    return output.getvalue()


def train_alone(*args: str, base: Sequence[str] = SMALL) -> int:
    """Trains on one rank in this process; returns the exit code."""
    return train(configured(*args, base=base))


def train(config: TrainConfig) -> int:
    """Trains with a resolved configuration on one rank in this process; returns the exit code."""
    return loop.train(config, Inputs.open(config), Mesh())


def evaluate(config: TrainConfig) -> EvalRow:
    """Evaluates a checkpoint on one rank in this process."""
    return evaluation.evaluate(config, Inputs.open(config), Mesh())


def read_rows(output_dir: Path) -> list[dict]:
    """Returns all rows of metrics.jsonl."""
    return [json.loads(line) for line in (Path(output_dir) / "metrics.jsonl").read_text().splitlines()]


def rows(output_dir: Path) -> tuple[list[dict], list[dict]]:
    """Returns the rows of training steps and those of evaluations."""
    found = read_rows(output_dir)
    return [row for row in found if "loss" in row], [row for row in found if "eval_mlm_loss" in row]


def losses(output_dir: Path) -> list[float]:
    """Returns the training loss of each logged step."""
    return [row["loss"] for row in rows(output_dir)[0]]
