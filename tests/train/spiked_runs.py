"""Runs of a tiny decoder in whose data some batches are random tokens, and what --on_spike makes of them.

    python -m tests.train.spiked_runs [FOLDER]     # prints the table of docs/results/reliability.md

Text is a Markov chain in which each token has two possible successors, so that the best loss is ln 2. Batches are
poisoned by their place in the order of the run.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

from tests.kit import runs
from tests.kit.runs import read_rows
from tftrain.data.example import encode
from tftrain.data.order import example_ids
from tftrain.data.records import write_records
from tftrain.hooks import Hook
from tftrain.host import log

WORDS, LENGTH, BATCH, EXAMPLES, STEPS = 16, 16, 64, 20_000, 240
POISONED = range(120, 170)  # batches, from 0
ROLLBACK = ("--on_spike=rollback", "--rollback_margin=5", "--rollback_window=60", "--checkpoint_every=40")
FLAGS = (
    *("--model_family=gpt", f"--vocab_size={WORDS}", f"--max_seq_length={LENGTH}", "--num_hidden_layers=1"),
    *("--hidden_size=16", "--num_attention_heads=2", "--hidden_dropout_prob=0", "--attention_probs_dropout_prob=0"),
    *(
        "--optimizer=adamw",
        "--learning_rate=0.02",
        "--decay_power=2",
        f"--micro_batch_size={BATCH}",
        f"--max_steps={STEPS}",
    ),
    *("--log_every=1", "--keep_last=20", "--checkpoint_minutes=0", "--spike_zscore=4"),
)


def write(folder, poisoned=POISONED):
    """Writes the examples of a run, of which some batches are random tokens; returns the flags that name them."""
    draw = np.random.default_rng(1)
    noise = draw.integers(0, WORDS, [EXAMPLES + 200, LENGTH + 1])
    tokens = noise.copy()
    for place in range(1, LENGTH + 1):
        before = tokens[:, place - 1]
        tokens[:, place] = np.where(noise[:, place] % 2, 3 * before + 1, 5 * before + 2) % WORDS
    places = np.concatenate([np.arange(BATCH * batch, BATCH * (batch + 1)) for batch in poisoned] or [[]])
    numbers = example_ids(places.astype(np.int64), EXAMPLES, seed=1)
    tokens[numbers] = noise[numbers]
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("train", tokens[:EXAMPLES]), ("eval", tokens[EXAMPLES:])):
        write_records(str(folder / f"{name}.tfrecord"), [encode({"input_ids": row.tolist()}) for row in rows])
    return f"--train_files={folder}/train.tfrecord", f"--eval_files={folder}/eval.tfrecord"


class Numbers(Hook):
    """Records the steps that are begun, and after how many of them each checkpoint is known; stops after one."""

    begun, saved, stop_after = [], [], None

    def before_step(self, step):
        """Records."""
        self.begun.append(step)

    def on_checkpoint(self, step, folder):
        """Records."""
        self.saved.append((len(self.begun), step))

    def after_step(self, step, result):
        """Stops."""
        if step == self.stop_after:
            self.context.stop("enough")


def configured(*given):
    """Returns the configuration of a run."""
    return runs.configured(*given, base=FLAGS)


def trained(folder, *given):
    """Trains into a folder; returns the exit code."""
    return runs.train_alone(f"--output_dir={folder}", *given, base=FLAGS)


def final_loss(folder):
    """Returns the held-out loss at the end, in nats."""
    return [row for row in read_rows(folder) if "eval_lm_loss" in row][-1]["eval_lm_loss"]


def table(root):
    """Trains with every value of --on_spike; returns the lines of a table, and that of the rollback in the log."""
    clean, poisoned = write(root / "clean", ()), write(root / "poisoned")
    runs = {
        "no poisoned batches": (*clean,),
        "`log`": (*poisoned,),
        "`skip`": (*poisoned, "--on_spike=skip"),
        "`rollback`": (*poisoned, *ROLLBACK),
    }
    lines = [
        "| run | held-out loss after step 180 | at the end, step 240 | against the first row |",
        "| --- | --- | --- | --- |",
    ]
    ends = []
    for number, (name, given) in enumerate(runs.items()):
        folder = root / f"run_{number}"
        trained(folder, *given, "--eval_every=60")
        (between,) = [row["eval_lm_loss"] for row in read_rows(folder) if "eval_lm_loss" in row and row["step"] == 180]
        ends.append(final_loss(folder))
        lines.append(f"| {name} | {between:.4f} | {ends[-1]:.4f} | {ends[-1] / ends[0] - 1:+.2%} |")
    logged = (folder / "log.txt").read_text().splitlines()
    return [*lines, "", *(line.partition("] ")[2] for line in logged if "rollback " in line)]


if __name__ == "__main__":
    log.configure(0, "warning")
    with tempfile.TemporaryDirectory() as folder:
        print("\n".join(table(Path(*sys.argv[1:2] or [folder]))))
