"""Documents sorted into chunks on disk, so that a corpus of any size is prepared in bounded memory.

A hash of the seed and the document's number says whether it is held out and which chunk of its split it belongs to. So
a chunk is a random mixture of the whole corpus, which is what "a random next sentence" is drawn from, and it is the
same whoever reads which file. A worker appends to files of its own; a chunk is put in order when it is read.
"""

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tftrain.data.corpus import read_documents

_BUFFERED_BYTES = 16 << 20


class Chunk(NamedTuple):
    """A chunk of documents, which becomes one shard: its split, "train" or "eval", and its number there."""

    split: str
    number: int


@dataclass(frozen=True)
class Spool:
    """Where the chunks are and how documents are assigned to them.

    Attributes:
        folder: exists.
        seed: of the assignment.
        eval_fraction: share of the documents that is held out.
        train_chunks, eval_chunks: how many chunks each split has.
    """

    folder: str
    seed: int
    eval_fraction: float
    train_chunks: int
    eval_chunks: int

    def chunks(self) -> list[Chunk]:
        """Returns all chunks in their order."""
        return [
            Chunk(split, number)
            for split, count in (("train", self.train_chunks), ("eval", self.eval_chunks))
            for number in range(count)
        ]

    def assign(self, file: int, document: int) -> Chunk:
        """Returns the chunk of a document, which is the n-th of the n-th file."""
        text = f"{self.seed} {file} {document}".encode()
        digest = hashlib.blake2b(text, digest_size=16).digest()
        share, choice = int.from_bytes(digest[:8], "little") / 2**64, int.from_bytes(digest[8:], "little")
        if share < self.eval_fraction:
            return Chunk("eval", choice % self.eval_chunks)
        return Chunk("train", choice % self.train_chunks)

    def add(self, numbered: Iterable[tuple[int, int, list[str]]]) -> dict[str, int]:
        """Appends documents to their chunks.

        Args:
            numbered: the file's number, the document's number in it, its paragraphs.

        Returns:
            The documents of each split.
        """
        buffers: dict[Chunk, list[str]] = defaultdict(list)
        counts, held = {"train": 0, "eval": 0}, 0
        for file, number, paragraphs in numbered:
            chunk = self.assign(file, number)
            line = json.dumps([file, number, paragraphs], ensure_ascii=False)
            buffers[chunk].append(line)
            counts[chunk.split] += 1
            held += len(line)
            if held > _BUFFERED_BYTES:
                self._flush(buffers)
                held = 0
        self._flush(buffers)
        return counts

    def read(self, chunk: Chunk) -> list[list[str]]:
        """Returns the documents of a chunk, each a list of paragraphs, in the order of the corpus."""
        found = []
        folder = self._folder(chunk)
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                found += [json.loads(line) for line in file]
        found.sort(key=lambda entry: (entry[0], entry[1]))
        return [paragraphs for _, _, paragraphs in found]

    def _folder(self, chunk: Chunk) -> str:
        return os.path.join(self.folder, f"{chunk.split}-{chunk.number}")

    def _flush(self, buffers: dict[Chunk, list[str]]) -> None:
        for chunk, lines in buffers.items():
            os.makedirs(self._folder(chunk), exist_ok=True)
            with open(os.path.join(self._folder(chunk), str(os.getpid())), "a", encoding="utf-8", newline="\n") as file:
                file.writelines(line + "\n" for line in lines)
        buffers.clear()


class FilesTask(NamedTuple):
    """Input files that one worker reads: their paths, and the number of the first among all."""

    spool: Spool
    paths: list[str]
    first: int
    separator: str


def spool_files(task: FilesTask) -> dict[str, int]:
    """Reads input files into the spool; returns the documents of each split."""
    return task.spool.add(
        (task.first + place, number, document)
        for place, path in enumerate(task.paths)
        for number, document in enumerate(read_documents(path, task.separator))
    )
