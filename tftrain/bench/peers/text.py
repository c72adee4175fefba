"""The real text of table `peers`: the built-in corpus in packed rows, and the same examples in rows of their own.

The text is prepared as a user prepares it. Packed rows are what `tftrain.run` reads; `padded` takes them apart again,
so the peers get some of the same examples with the same masked words, each padded to the length of a row.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tftrain.bench.peers import task
from tftrain.bench.peers.task import TASKS, TEXT, Batch
from tftrain.bench.training import run
from tftrain.bench.worker import Worker, serve

PREPARE = (
    *("--builtin_corpus", "--builtin_corpus_mb=8", f"--vocab_size={task.VOCAB}"),
    *(f"--max_seq_length={TASKS[TEXT].length}", "--packing=greedy", "--max_sequences_per_pack=8"),
)
BATCHES = 10
PACKED, PADDED = "packed", "padded"
_OF_TOKENS = ("input_ids", "input_mask", "segment_ids")
_OF_MASKS = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")


@contextlib.contextmanager
def prepared() -> Iterator[dict[str, Any]]:
    """Prepares the text in a temporary folder and yields what is said of it, see `build`."""
    with TemporaryDirectory(prefix="tftrain_bench_") as folder:
        run.launch([*PREPARE, f"--output_dir={folder}/data"], 1, run.LIMIT_SECONDS, module="tftrain.prepare")
        with Worker("tftrain.bench.peers.text", {"data_dir": f"{folder}/data"}) as worker:
            found = worker.ask(folder)
        yield found


def build(settings: dict[str, Any]) -> Callable[[str], dict[str, Any]]:
    """Opens the prepared text as `tftrain.run` does; settings hold data_dir.

    Returns a function that takes a folder, writes the batches of packed and of padded rows into it, and returns:
    packed, padded: the two files, with as many batches; examples_per_row: of all packed rows of the text;
    attending_pairs: of the packed batches.
    """
    from tftrain.config.train import DataConfig
    from tftrain.input.pipeline import open_source, train_batches

    size = TASKS[TEXT]
    data = DataConfig(data_dir=settings["data_dir"])
    source = open_source(data, "train", task.VOCAB, seed=1)

    def write(folder: str) -> dict[str, Any]:
        batches = train_batches(source, data, 1, 0, size.rows, 0, size.rows).take(BATCHES)
        packed = list(batches.as_numpy_iterator())
        files = {name: f"{folder}/{name}.npz" for name in (PACKED, PADDED)}
        task.write(files[PACKED], packed)
        task.write(files[PADDED], padded(packed, size.rows, size.predictions)[:BATCHES])
        examples = source.real_examples / source.num_examples
        return {**files, "examples_per_row": examples, "attending_pairs": attending_pairs(packed)}

    return write


def padded(packed: Sequence[Batch], rows: int, slots: int) -> list[Batch]:
    """Returns the examples of packed rows, each in its own row, in random order, as batches in the standard format.

    Args:
        packed: batches with the features of `tftrain.input.masked_source.PackedSource`.
        rows: of each returned batch, whose rows are as long as packed ones. Examples that fill no batch are left out.
        slots: masked words of an example at most.
    """
    examples = [example for batch in packed for example in _examples(batch, slots)]
    order = np.random.default_rng(1).permutation(len(examples))
    groups = [order[first : first + rows] for first in range(0, len(order) - rows + 1, rows)]
    return [{name: np.stack([examples[number][name] for number in group]) for name in examples[0]} for group in groups]


def _examples(batch: Batch, slots: int) -> Iterator[Batch]:
    for row, number in np.argwhere(batch["sequence_weights"]):
        start = batch["sequence_starts"][row, number]
        size = (batch["sequence_ids"][row] == number + 1).sum()
        places, used = batch["masked_lm_positions"][row], batch["masked_lm_weights"][row] > 0
        chosen = np.flatnonzero(used & (places >= start) & (places < start + size))
        example = {name: np.zeros_like(batch[name][row]) for name in _OF_TOKENS}
        example |= {name: np.zeros(slots, batch[name].dtype) for name in _OF_MASKS}
        for name in _OF_TOKENS:
            example[name][:size] = batch[name][row, start : start + size]
        for name in _OF_MASKS:
            example[name][: len(chosen)] = batch[name][row, chosen]
        example["masked_lm_positions"][: len(chosen)] -= start
        label, weight = batch["next_sentence_labels"][row, number], np.float32(1)
        yield example | {"next_sentence_labels": label, "example_weights": weight}


def attending_pairs(batches: Sequence[Batch]) -> float:
    """Returns the share of the pairs of tokens in a row that are of one example, and so attend to each other."""
    numbers = np.concatenate([batch["sequence_ids"] for batch in batches])
    same = numbers[:, :, np.newaxis] == numbers[:, np.newaxis, :]
    return float((same & (numbers > 0)[:, :, np.newaxis]).mean())


if __name__ == "__main__":
    serve(build)
