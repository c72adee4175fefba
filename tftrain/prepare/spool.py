"""Chunks of documents on disk, the inputs of the shards, and the assignment of documents to them.

A hash of the seed and the document's number, or its id, selects the split and the chunk of a document. So a chunk is a
random sample of the whole corpus, and random next sentences are drawn from this sample. A chunk does not depend on
which worker adds which document: each worker appends to its own files (`tftrain.prepare.appended_files`), and
`Spool.read` sorts the documents.
"""

import contextlib
import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tftrain.prepare import appended_files
from tftrain.prepare.duplicates import Buckets, among, paragraph_rows, read_duplicates
from tftrain.prepare.near_duplicates import band_rows

_BUFFERED_BYTES = 16 << 20
_DOCUMENTS = "documents-"


class Chunk(NamedTuple):
    """A chunk of documents, the input of one shard: its split ("train" or "eval") and its number in the split."""

    split: str
    number: int


class SpooledDocument(NamedTuple):
    """A document: the paragraphs that it keeps, those that are duplicates, and all of them if it is a near duplicate.

    Each paragraph is in the form that `Spool.split` returned.
    """

    paragraphs: list[Any]
    duplicates: list[Any]
    near_duplicates: list[Any]


@dataclass(frozen=True)
class Spool:
    """The existing folder of the chunks, and the assignment of documents to chunks by a seed."""

    folder: str
    seed: int
    eval_fraction: float  # share of held-out documents
    train_chunks: int
    eval_chunks: int
    index: Buckets | None = None  # where `add` writes the hashes of paragraphs; None if duplicates stay
    bands: Buckets | None = None  # where `add` writes those of documents; None if near duplicates stay
    split: Callable[[str], list[str]] | None = None  # divides a paragraph into sentences; None: it stays whole

    def chunks(self) -> list[Chunk]:
        """Returns all chunks: first of "train", then of "eval"."""
        counts = {"train": self.train_chunks, "eval": self.eval_chunks}
        return [Chunk(split, number) for split, count in counts.items() for number in range(count)]

    def chunk_folder(self, chunk: Chunk) -> str:
        """Returns the folder of a chunk. It does not exist if the chunk has no documents."""
        return os.path.join(self.folder, f"{chunk.split}-{chunk.number}")

    def assign(self, key: str) -> Chunk:
        """Returns the chunk of a document, from what tells it from others."""
        digest = hashlib.blake2b(f"{self.seed} {key}".encode(), digest_size=16).digest()
        share, choice = int.from_bytes(digest[:8], "little") / 2**64, int.from_bytes(digest[8:], "little")
        if share < self.eval_fraction:
            return Chunk("eval", choice % self.eval_chunks)
        return Chunk("train", choice % self.train_chunks)

    def add(self, numbered: Iterable[tuple[int, list[str], str | None]]) -> dict[str, int]:
        """Appends documents to their chunks, and returns the number of documents added to each split.

        `numbered` has for each document its number in the corpus, its paragraphs, and its id or None.
        """
        documents, counts, buffered = defaultdict(bytearray), {"train": 0, "eval": 0}, 0
        kinds = ((paragraph_rows, self.index), (band_rows, self.bands))
        hashes = [(rows_of, index, defaultdict(bytearray)) for rows_of, index in kinds if index]

        def flush() -> None:
            for chunk, lines in documents.items():
                appended_files.append(self.chunk_folder(chunk), _DOCUMENTS, lines)
            documents.clear()
            for _, index, rows in hashes:
                index.append(rows)
                rows.clear()

        for number, paragraphs, identity in numbered:
            # The zero is part of what is hashed, so that text is divided as it always was.
            chunk = self.assign(f"0 {number}" if identity is None else identity)
            among_all = chunk.number + (chunk.split == "eval") * self.train_chunks
            for rows_of, index, rows in hashes:
                for digest, row in rows_of(number, paragraphs, among_all):
                    rows[digest % index.count] += row
            parts = list(map(self.split, paragraphs)) if self.split else paragraphs
            # The line before may be incomplete.
            line = f"\n{json.dumps([number, parts], ensure_ascii=False)}".encode()
            documents[chunk] += line
            counts[chunk.split] += 1
            buffered += len(line)
            if buffered > _BUFFERED_BYTES:
                flush()
                buffered = 0
        flush()
        return counts

    def read(self, chunk: Chunk) -> list[SpooledDocument]:
        """Returns the documents of a chunk in the order of the corpus."""
        entries, folder = {}, self.chunk_folder(chunk)
        for path in appended_files.paths(folder, _DOCUMENTS):
            with open(path, "rb") as lines:
                for line in lines:
                    with contextlib.suppress(ValueError):  # An incomplete line, or the empty one before the first.
                        number, paragraphs = json.loads(line)
                        entries[number] = paragraphs
        numbers = sorted(entries)
        near = np.zeros(len(numbers), bool)
        if self.near_duplicates:
            near = among(np.array(numbers, np.uint64), np.load(self.near_duplicates, mmap_mode="r"))
        duplicates, documents = read_duplicates(folder), []
        for number, is_near in zip(numbers, near, strict=True):
            sides, dropped = ([], [], []), duplicates.get(number, ())
            for index, paragraph in enumerate(entries[number]):
                sides[2 if is_near else index in dropped].append(paragraph)
            documents.append(SpooledDocument(*sides))
        return documents

    @property
    def near_duplicates(self) -> str | None:
        """The path of the array of the numbers of near duplicates, ascending; None if they stay."""
        return os.path.join(self.folder, "near.npy") if self.bands else None
