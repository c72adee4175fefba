"""Distributes documents to chunks on disk, so that the memory of a preparation does not depend on the corpus size.

A hash of the seed and the document's number selects the split and the chunk of a document. So a chunk is a random
sample of the whole corpus, and random next sentences are drawn from this sample. A chunk does not depend on which
worker reads which file: each worker appends to its own files, and `Spool.read` sorts the documents. The files of
duplicate paragraphs (`tftrain.prepare.duplicates`) lie beside them.
"""

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tftrain.prepare.corpus import read_documents
from tftrain.prepare.duplicates import ParagraphIndex, Rows, read_duplicates

_BUFFERED_BYTES = 16 << 20
_DOCUMENTS = "documents-"


class Chunk(NamedTuple):
    """A chunk of documents, the input of one shard: its split ("train" or "eval") and its number in the split."""

    split: str
    number: int


class SpooledDocument(NamedTuple):
    """A document: the paragraphs that it keeps, and those that are duplicates, both in the order of the document."""

    paragraphs: list[str]
    duplicates: list[str]


@dataclass(frozen=True)
class Spool:
    """The folder of the chunks and the assignment of documents to chunks.

    Attributes:
        folder: an existing folder.
        seed: seed of the assignment.
        eval_fraction: share of held-out documents.
        train_chunks, eval_chunks: number of chunks of each split.
        index: where `add` writes the hashes of paragraphs; None if duplicates stay.
    """

    folder: str
    seed: int
    eval_fraction: float
    train_chunks: int
    eval_chunks: int
    index: ParagraphIndex | None = None

    def chunks(self) -> list[Chunk]:
        """Returns all chunks: those of "train", then those of "eval"."""
        return [
            Chunk(split, number)
            for split, count in (("train", self.train_chunks), ("eval", self.eval_chunks))
            for number in range(count)
        ]

    def chunk_folder(self, chunk: Chunk) -> str:
        """Returns the folder of a chunk. It does not exist if the chunk has no documents."""
        return os.path.join(self.folder, f"{chunk.split}-{chunk.number}")

    def assign(self, file: int, document: int) -> Chunk:
        """Returns the chunk of a document, from the number of its file and its number in the file."""
        text = f"{self.seed} {file} {document}".encode()
        digest = hashlib.blake2b(text, digest_size=16).digest()
        share, choice = int.from_bytes(digest[:8], "little") / 2**64, int.from_bytes(digest[8:], "little")
        if share < self.eval_fraction:
            return Chunk("eval", choice % self.eval_chunks)
        return Chunk("train", choice % self.train_chunks)

    def add(self, numbered: Iterable[tuple[int, int, list[str]]]) -> dict[str, int]:
        """Appends documents to their chunks.

        Args:
            numbered: the file's number, the document's number in the file, and the document's paragraphs.

        Returns:
            The number of documents added to each split.
        """
        buffers: dict[Chunk, list[str]] = defaultdict(list)
        rows = Rows(self.index) if self.index else None
        counts, buffered = {"train": 0, "eval": 0}, 0
        for file, number, paragraphs in numbered:
            chunk = self.assign(file, number)
            if rows:
                rows.add(file, number, paragraphs, chunk.number + (chunk.split == "eval") * self.train_chunks)
            line = json.dumps([file, number, paragraphs], ensure_ascii=False)
            buffers[chunk].append(line)
            counts[chunk.split] += 1
            buffered += len(line)
            if buffered > _BUFFERED_BYTES:
                self._flush(buffers, rows)
                buffered = 0
        self._flush(buffers, rows)
        return counts

    def read(self, chunk: Chunk) -> list[SpooledDocument]:
        """Returns the documents of a chunk in the order of the corpus."""
        entries = []
        folder = self.chunk_folder(chunk)
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            if name.startswith(_DOCUMENTS):
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    entries += [json.loads(line) for line in file]
        entries.sort(key=lambda entry: (entry[0], entry[1]))
        duplicates = read_duplicates(folder)
        return [_divided(paragraphs, duplicates.get((file, number), ())) for file, number, paragraphs in entries]

    def _flush(self, buffers: dict[Chunk, list[str]], rows: Rows | None) -> None:
        for chunk, lines in buffers.items():
            folder = self.chunk_folder(chunk)
            os.makedirs(folder, exist_ok=True)
            path = os.path.join(folder, f"{_DOCUMENTS}{os.getpid()}")
            with open(path, "a", encoding="utf-8", newline="\n") as file:
                file.writelines(line + "\n" for line in lines)
        buffers.clear()
        if rows:
            rows.flush()


def _divided(paragraphs: list[str], duplicates: Collection[int]) -> SpooledDocument:
    if not duplicates:
        return SpooledDocument(paragraphs, [])
    kept = [paragraph for number, paragraph in enumerate(paragraphs) if number not in duplicates]
    return SpooledDocument(kept, [paragraph for number, paragraph in enumerate(paragraphs) if number in duplicates])


class FilesTask(NamedTuple):
    """Consecutive input files for one worker. `first` is the number of the first file among all input files."""

    spool: Spool
    paths: list[str]
    first: int
    separator: str


def spool_files(task: FilesTask) -> dict[str, int]:
    """Reads input files into the spool. Returns the number of documents added to each split."""
    return task.spool.add(
        (task.first + offset, number, document)
        for offset, path in enumerate(task.paths)
        for number, document in enumerate(read_documents(path, task.separator))
    )
