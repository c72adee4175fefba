"""Draws the learning rate of every --schedule over one run.

    python tools/schedule_picture.py OUTPUT.png [FLAGS]

FLAGS are those of tftrain.run, for example --decay_power=2. The rates are those that a run's updates take.
"""

import dataclasses
import sys

import numpy as np
import tensorflow as tf

from tftrain.cli import flags
from tftrain.config.optimizer import OptimizerConfig
from tftrain.config.train import TrainConfig
from tftrain.observe.plot import axes_of
from tftrain.optim.schedule import learning_rate, run_length

RUN = "--synthetic_data --model_family=gpt --max_steps=1000 --learning_rate=0.001 --output_dir=unused"


def main() -> None:
    """Draws one curve for each schedule."""
    path, *given = sys.argv[1:] or sys.exit(__doc__)
    axes = axes_of("Learning rate by --schedule", "update")
    flag = next(field for field in dataclasses.fields(OptimizerConfig) if field.name == "schedule")
    for schedule in flag.metadata["choices"]:
        args = ["tftrain.run", *RUN.split(), f"--schedule={schedule}", *given]
        config = flags.parse(TrainConfig, args).resolve(1)
        steps, length = np.arange(config.run.max_steps), run_length(config.run.max_steps, config.timeline)
        rates = [float(learning_rate(config.optimizer, length, tf.constant(step, tf.int64))) for step in steps]
        axes.plot(steps, rates, linewidth=2, label=schedule)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    axes.figure.savefig(path, dpi=100, format="png")


if __name__ == "__main__":
    main()
