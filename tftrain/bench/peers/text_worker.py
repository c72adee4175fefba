"""The process that reads prepared text as `tftrain.run` does, and writes its batches for the implementations."""

from collections.abc import Callable
from typing import Any

from tftrain.bench.peers import task, text
from tftrain.bench.worker import serve


def build(settings: dict[str, Any]) -> Callable[[str], dict[str, Any]]:
    """Opens the prepared text; settings hold data_dir.

    Returns:
        A function that takes a folder, writes the batches of packed and of padded rows into it, and returns:
        packed, padded: the two files, with as many batches; examples_per_row: of all packed rows of the text;
        attending_pairs: of the packed batches.
    """
    from tftrain.config.train import DataConfig
    from tftrain.input.pipeline import open_source, train_batches

    size = task.TASKS[task.TEXT]
    data = DataConfig(data_dir=settings["data_dir"])
    source = open_source(data, "train", task.VOCAB, seed=1)

    def write(folder: str) -> dict[str, Any]:
        batches = train_batches(source, data, 1, 0, size.rows, 0, size.rows).take(text.BATCHES)
        packed = list(batches.as_numpy_iterator())
        found = {text.PACKED: packed, text.PADDED: text.padded(packed, size.rows, size.predictions)}
        for name, each in found.items():
            task.write(f"{folder}/{name}.npz", each[: text.BATCHES])
        return {
            **{name: f"{folder}/{name}.npz" for name in found},
            "examples_per_row": source.real_examples / source.num_examples,
            "attending_pairs": text.attending_pairs(packed),
        }

    return write


if __name__ == "__main__":
    serve(build)
