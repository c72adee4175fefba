"""The first stage of a preparation: distributes the corpus to chunks of documents on disk, the inputs of the shards.

So the memory of a preparation does not depend on the corpus size. A hash of the seed and the document's number, or its
id, selects the split and the chunk of a document. So a chunk is a random sample of the whole corpus, and random next
sentences are drawn from this sample. A chunk does not depend on which worker reads which file, nor on the format and
the number of the files: each worker appends to its own files (`tftrain.prepare.appended_files`), and `Spool.read` sorts
the documents. For that, all files are read twice, first to count documents and bytes. The files of duplicate paragraphs
(`tftrain.prepare.duplicates`) lie beside them.
"""

import contextlib
import hashlib
import json
import logging
import operator
import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tftrain.config.prepare import PrepareConfig
from tftrain.files.errors import DataError
from tftrain.prepare import appended_files, builtin_corpus, near_duplicates, sources
from tftrain.prepare.duplicates import (
    ParagraphIndex,
    ParagraphRows,
    among,
    document_numbers,
    find_duplicates,
    read_duplicates,
)
from tftrain.prepare.near_duplicates import Bands, find_pairs, joined
from tftrain.prepare.sources import FilePart, Notes
from tftrain.prepare.workers import Workers

logger = logging.getLogger(__name__)

_BUFFERED_BYTES = 16 << 20
_DOCUMENTS = "documents-"
_MB = 1_000_000
_TASK_BYTES = 4 * _MB
_BUILTIN_FILES_AT_ONCE = 100
# A small corpus has several chunks too, so that several workers share the work.
_SMALL_CHUNK_BYTES, _SMALL_CHUNKS = 250_000, 8
# Each one more than halves the chance that a split of two documents or more stays empty.
_SPLIT_ATTEMPTS = 40


class Chunk(NamedTuple):
    """A chunk of documents, the input of one shard: its split ("train" or "eval") and its number in the split."""

    split: str
    number: int


class SpooledDocument(NamedTuple):
    """A document: the paragraphs that it keeps, those that are duplicates, and all if it is a near duplicate."""

    paragraphs: list[str]
    duplicates: list[str]
    near_duplicates: list[str]


@dataclass(frozen=True)
class Spool:
    """The existing folder of the chunks, and the assignment of documents to chunks by a seed."""

    folder: str
    seed: int
    eval_fraction: float  # share of held-out documents
    train_chunks: int
    eval_chunks: int
    index: ParagraphIndex | None = None  # where `add` writes the hashes of paragraphs; None if duplicates stay
    bands: ParagraphIndex | None = None  # where `add` writes those of documents; None if near duplicates stay

    def chunks(self) -> list[Chunk]:
        """Returns all chunks: those of "train", then those of "eval"."""
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

    def add(self, numbered: Iterable[tuple[int, int, list[str], str | None]]) -> dict[str, int]:
        """Appends documents to their chunks, and returns the number of documents added to each split.

        Args:
            numbered: two numbers by which documents are sorted, the document's paragraphs, and its id, if it has one.
        """
        buffers: dict[Chunk, list[str]] = defaultdict(list)
        rows = [kind(index) for kind, index in ((ParagraphRows, self.index), (Bands, self.bands)) if index]
        counts, buffered = {"train": 0, "eval": 0}, 0
        for file, number, paragraphs, identity in numbered:
            chunk = self.assign(f"{file} {number}" if identity is None else identity)
            for writer in rows:
                writer.add(file, number, paragraphs, chunk.number + (chunk.split == "eval") * self.train_chunks)
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
        entries, folder = {}, self.chunk_folder(chunk)
        for path in appended_files.paths(folder, _DOCUMENTS):
            with open(path, "rb") as lines:
                for line in lines:
                    with contextlib.suppress(ValueError):  # An incomplete line, or the empty one before the first.
                        file, number, paragraphs = json.loads(line)
                        entries[file, number] = paragraphs
        keys = sorted(entries)
        near = np.zeros(len(keys), bool)
        if self.near_duplicates:
            numbers = np.array(keys, np.uint64).reshape(-1, 2)
            near = among(document_numbers(*numbers.T), np.load(self.near_duplicates, mmap_mode="r"))
        duplicates, documents = read_duplicates(folder), []
        for key, is_near in zip(keys, near, strict=True):
            sides, paragraphs = ([], [], []), entries[key]
            dropped = duplicates.get(key, ())
            for index, paragraph in enumerate(paragraphs):
                sides[2 if is_near else index in dropped].append(paragraph)
            documents.append(SpooledDocument(*sides))
        return documents

    @property
    def near_duplicates(self) -> str | None:
        """The path of the array of `document_numbers` of near duplicates, ascending; None if they stay."""
        return os.path.join(self.folder, "near.npy") if self.bands else None

    def _flush(self, buffers: dict[Chunk, list[str]], rows: list[ParagraphRows]) -> None:
        for chunk, lines in buffers.items():
            # The line before may be incomplete.
            content = "".join("\n" + line for line in lines).encode()
            appended_files.append(self.chunk_folder(chunk), _DOCUMENTS, content)
        buffers.clear()
        for writer in rows:
            writer.flush()


def count_parts(parts: list[FilePart], config: PrepareConfig) -> tuple[int, int, int, str | None, Notes]:
    """Returns numbers of documents, also empty ones, of bytes and bad rows, the first bad row's fault, and notes."""
    documents, size, bad_rows, first, notes = 0, 0, 0, None, Notes([], [])
    for document in sources.read(parts, config, notes):
        documents += 1
        size += sum(len(paragraph.encode()) + 1 for paragraph in document.paragraphs)
        bad_rows += document.fault is not None
        first = first or document.fault
    return documents, size, bad_rows, first, notes


def spool_parts(spool: Spool, parts: list[FilePart], first: int, config: PrepareConfig) -> dict[str, int]:
    """Adds the documents of consecutive parts to the spool, see `Spool.add`; `first` documents are before them."""
    documents = enumerate(sources.read(parts, config), first)
    return spool.add((0, number, each.paragraphs, each.id) for number, each in documents if each.paragraphs)


def read_corpus(
    config: PrepareConfig, work: str, inputs: list[str], workers: Workers, smallest_chunk: int
) -> tuple[Spool, int, int]:
    """Reads all documents into chunks, and finds the duplicate paragraphs.

    Returns the spool, the number of documents, and that of the bad rows that were left out.

    A hash decides which documents are held out. If it leaves a split of a small corpus empty, the documents are read
    again with another hash and a larger share.

    Args:
        work: an empty folder for the chunks.
        inputs: the files, unless the corpus is the built-in one.
        smallest_chunk: bytes of text that the chunks of a small corpus should have at least.

    Raises:
        DataError: there is no document, or a split that is wanted stays empty, or a file can't be read.
    """
    groups, firsts, bad_rows, notes = [], [], 0, Notes([], [])
    if config.builtin_corpus:
        documents = _builtin_documents(config, workers)
        total = sum(len(paragraph.encode()) + 1 for document in documents for paragraph in document)
        logger.info(f"built-in corpus: {len(documents)} documents, {total / _MB:.1f} MB of text")
    else:
        groups, documents, total = list(_groups(inputs)), None, 0
        tasks = [(group, config) for group in groups]
        for counted, size, bad, fault, own in workers.run("count documents", count_parts, tasks):
            if bad and not bad_rows:
                logger.warning(f"--skip_bad_rows: rows are left out, the first: {fault}")
            firsts.append(sum(firsts[-1:]) + counted)
            total, bad_rows, notes = total + size, bad_rows + bad, Notes(*map(operator.add, notes, own))
        for line in notes.words():
            logger.info(line)
    count = sum(firsts[-1:]) if documents is None else len(documents)
    for attempt in range(_SPLIT_ATTEMPTS):
        spool = _make_spool(config, work, count, total, attempt, smallest_chunk)
        if documents is None:
            tasks = [(spool, group, first, config) for group, first in zip(groups, [0, *firsts], strict=False)]
            added = workers.run("read documents", spool_parts, tasks)
        else:
            added = [spool.add((0, number, document, None) for number, document in enumerate(documents))]
        counts = sum(map(Counter, added), Counter())
        if not counts:
            left_out = f"; {bad_rows:,} bad rows are left out" if bad_rows else ""
            raise DataError(f"{source(config)}: no document in {len(inputs)} files; expected text{left_out}")
        if counts.total() == 1 or not config.eval_fraction or (counts["train"] and counts["eval"]):
            break
    for split, name in (("train", "training"), ("eval", "held-out")):
        if not counts[split] and (split == "train" or config.eval_fraction):
            separated = "; blank lines separate documents" if config.document_separator == "blank_line" else ""
            raise DataError(
                f"{source(config)}: of {counts.total()} documents none is in the {name} split with "
                f"--eval_fraction={config.eval_fraction}; use more documents, or 0 to hold out none{separated} "
                f"(--document_separator={config.document_separator})"
            )
    _find_duplicates(spool, workers)
    return spool, counts.total(), bad_rows


def source(config: PrepareConfig) -> str:
    """Returns the flag that names the text, for error messages."""
    return "--builtin_corpus" if config.builtin_corpus else f"--input_files={','.join(config.input_files)}"


def _builtin_documents(config: PrepareConfig, workers: Workers) -> list[list[str]]:
    files, step = builtin_corpus.list_files(), _BUILTIN_FILES_AT_ONCE
    tasks = [(files[begin : begin + step],) for begin in range(0, len(files), step)]
    extracted = workers.run("extract documentation", builtin_corpus.extract_all, tasks)
    limit = config.builtin_corpus_mb * _MB or float("inf")
    return list(builtin_corpus.deduplicate((document for batch in extracted for document in batch), limit))


def _make_spool(
    config: PrepareConfig, work: str, documents: int, total_bytes: int, attempt: int, smallest_chunk: int
) -> Spool:
    """Returns a spool with empty folders."""
    folder, paragraphs, bands = (os.path.join(work, f"{name}-{attempt}") for name in ("spool", "paragraphs", "bands"))
    for path in (folder, paragraphs, bands):
        os.makedirs(path)
    share, seed = min(0.5, config.eval_fraction * 2**attempt), config.seed + (attempt << 31)
    large = -(-total_bytes // int(config.shard_mb * _MB))
    small = min(_SMALL_CHUNKS, -(-total_bytes // max(_SMALL_CHUNK_BYTES, smallest_chunk)))
    # The built-in corpus has no duplicate paragraphs, and those of verbatim documents are lines, which stay.
    drops = config.deduplicate != "none" and not config.builtin_corpus and config.document_separator != "verbatim"
    indices = (
        ParagraphIndex.for_text(paragraphs, total_bytes) if drops else None,
        ParagraphIndex.for_text(bands, near_duplicates.DOCUMENT_BYTES * documents)
        if config.deduplicate == "near"
        else None,
    )
    return Spool(folder, seed, share, max(1, large, small), max(1, -int(-large * share // 1)), *indices)


def _find_duplicates(spool: Spool, workers: Workers) -> None:
    """Near duplicates first: a paragraph that only they have in common with another document stays there."""
    if spool.bands:
        tasks = [(spool.bands, bucket) for bucket in range(spool.bands.buckets)]
        groups = np.zeros([0, 2], np.uint64)
        for pairs in workers.run("find near duplicates", find_pairs, tasks):
            groups = joined(np.concatenate([groups, pairs]))
        later = groups[:, 1]
        np.save(spool.near_duplicates, later)
        shutil.rmtree(spool.bands.folder)
        logger.info(f"near duplicates dropped: {len(later):,} documents (--deduplicate=paragraph keeps them)")
    if not spool.index:
        return
    folders = [spool.chunk_folder(chunk) for chunk in spool.chunks()]
    tasks = [(spool.index, bucket, folders, spool.near_duplicates) for bucket in range(spool.index.buckets)]
    dropped = sum(workers.run("find duplicate paragraphs", find_duplicates, tasks))
    shutil.rmtree(spool.index.folder)
    if dropped:
        logger.info(f"duplicate paragraphs dropped: {dropped:,} (--deduplicate=none keeps them)")


def _groups(paths: list[str]) -> Iterator[list[FilePart]]:
    """Yields consecutive parts of files in groups of similar size."""
    group, size = [], 0
    for part in sources.parts(paths):
        group.append(part)
        size += part.bytes
        if size >= _TASK_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group
