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
from tftrain.bench.training import run
from tftrain.bench.worker import Worker, serve

CORPUS = ("--builtin_corpus", "--builtin_corpus_mb=8", f"--vocab_size={task.VOCAB}", "--packing=greedy")
# Most examples of a row, and the share of masked words, by family.
PACKS = {task.BERT: (8, 0.15), task.MODERNBERT: (64, 0.3)}
BATCHES = 10
PACKED, PADDED = "packed", "padded"
_OF_TOKENS = ("input_ids", "input_mask", "segment_ids")
_OF_MASKS = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")


@contextlib.contextmanager
def prepared(work: str) -> Iterator[dict[str, Any]]:
    """Prepares the text of a task in a temporary folder and yields what is said of it, see `build`."""
    size = task.TASKS[work]
    flags = [*CORPUS, f"--max_seq_length={size.length}", f"--max_sequences_per_pack={PACKS[size.family][0]}"]
    flags += [] if size.family == task.BERT else ["--next_sentence=false"]
    with TemporaryDirectory(prefix="tftrain_bench_") as folder:
        run.launch([*flags, f"--output_dir={folder}/data"], 1, run.LIMIT_SECONDS, module="tftrain.prepare")
        with Worker("tftrain.bench.peers.text", {"data_dir": f"{folder}/data", "task": work}) as worker:
            prepared_text = worker.ask(folder)
        yield prepared_text


def build(settings: dict[str, Any]) -> Callable[[str], dict[str, Any]]:
    """Opens the prepared text as `tftrain.run` does; settings hold data_dir and task.

    Returns a function that takes a folder and writes the batches of packed and of padded rows into it. The function
    returns for each of `packed` and `padded` the file, the rows of a batch and the tokens of each batch without
    padding; and `examples_per_row`, the mean of all packed rows of the text.
    """
    from tftrain.config.data import DataConfig
    from tftrain.config.model import ModelConfig
    from tftrain.data.pipeline import train_batches
    from tftrain.data.prepared import open_data
    from tftrain.data.source import open_source

    size = task.TASKS[settings["task"]]
    data = DataConfig(data_dir=settings["data_dir"], masked_lm_prob=PACKS[size.family][1])
    source = open_source(open_data(data, ModelConfig(vocab_size=task.VOCAB)), "train", seed=1)

    def write(folder: str) -> dict[str, Any]:
        batches = train_batches(source, data, 1, 0, size.rows, 0, size.rows).take(BATCHES)
        packed = list(batches.as_numpy_iterator())
        examples = source.real_examples / source.num_examples
        # Peers of ModernBERT have as many tokens in a batch, of examples of similar length.
        of_bert = size.family == task.BERT
        rows = size.rows if of_bert else round(size.rows * examples)
        numbers = {}
        for name, batches in (
            (PACKED, packed),
            (PADDED, padded(packed, rows, size.predictions, by_length=not of_bert)[:BATCHES]),
        ):
            task.write(f"{folder}/{name}.npz", batches)
            tokens = [int(batch["input_mask"].sum()) for batch in batches]
            numbers[name] = {"batches": f"{folder}/{name}.npz", "rows": len(batches[0]["input_ids"]), "tokens": tokens}
        return {**numbers, "examples_per_row": examples}

    return write


def padded(packed: Sequence[task.Batch], rows: int, slots: int, by_length: bool = False) -> list[task.Batch]:
    """Returns the examples of packed rows, each in its own row, as batches in the standard format, in random order.

    Args:
        packed: batches with the features of `tftrain.data.masked_source.PackedSource`.
        rows: rows of a returned batch, as long as packed ones; examples that fill no batch are left out.
        slots: masked words of an example at most.
        by_length: whether the examples of a batch are of similar length.
    """
    examples = [example for batch in packed for example in _examples(batch, slots)]
    random = np.random.default_rng(1)
    order = random.permutation(len(examples))
    if by_length:
        order = np.argsort([example["input_mask"].sum() for example in examples], kind="stable")
    groups = [order[first : first + rows] for first in range(0, len(order) - rows + 1, rows)]
    if by_length:
        random.shuffle(groups)
    return [{name: np.stack([examples[number][name] for number in group]) for name in examples[0]} for group in groups]


def _examples(batch: task.Batch, slots: int) -> Iterator[task.Batch]:
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


if __name__ == "__main__":
    serve(build)
