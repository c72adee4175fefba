"""The first stage of a preparation: distributes the corpus to chunks of documents on disk, see `tftrain.prepare.spool`.

So the memory of a preparation does not depend on the corpus size, and the chunks not on the format or number of the
files. The numbers of documents and chunks are known when all files have been read. So workers first copy the documents
into the work folder (`read_parts`), and then distribute them (`spool_documents`). The files of duplicate paragraphs
(`tftrain.prepare.duplicates`) lie beside the chunks.
"""

import itertools
import logging
import operator
import os
import shutil
import uuid
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import numpy as np

from tftrain.config.prepare import PrepareConfig
from tftrain.files.errors import DataError
from tftrain.prepare import builtin_corpus, duplicates, near_duplicates, sources
from tftrain.prepare.duplicates import Buckets, find_duplicates
from tftrain.prepare.near_duplicates import find_pairs, joined
from tftrain.prepare.objective import PrepareObjective
from tftrain.prepare.sources import Document, FilePart, SourceNotes
from tftrain.prepare.spool import Spool
from tftrain.prepare.workers import Workers
from tftrain.tokenizer.words import by_size

logger = logging.getLogger(__name__)

_MB = 1_000_000
_TASK_BYTES = 4 * _MB
_BUILTIN_FILES_AT_ONCE = 100
# A small corpus has several chunks too, so that several workers share the work.
_SMALL_CHUNK_BYTES, _SMALL_CHUNKS = 250_000, 8
_SPLIT_ATTEMPTS = 40  # Each more than halves the chance that a split of several documents stays empty.


class Copied(NamedTuple):
    """A file that `copy` has written, and what is in it."""

    path: str
    documents: int  # empty ones too
    bytes: int
    bad_rows: int
    fault: str | None  # the first bad row's


def copy(documents: Iterable[Document], path: str) -> Copied:
    """Copies documents, also empty ones, into a file of JSON that appears when it is complete."""
    count, size, bad_rows, fault = 0, 0, 0, None
    unfinished = f"{path}-{uuid.uuid4().hex}"  # Two machines may have the same task.
    with open(unfinished, "xb") as file:
        for document in documents:
            file.write(msgspec.json.encode((document.paragraphs, document.id)) + b"\n")
            count += 1
            size += sum(len(paragraph.encode()) + 1 for paragraph in document.paragraphs)
            bad_rows += document.fault is not None
            fault = fault or document.fault
    os.replace(unfinished, path)
    return Copied(path, count, size, bad_rows, fault)


def read_parts(parts: list[FilePart], config: PrepareConfig, path: str) -> tuple[Copied, SourceNotes]:
    """Copies the documents of parts of files, see `copy`; returns what is to be said of the files too."""
    notes = SourceNotes([], [])
    return copy(sources.read(parts, config, notes), path), notes


def spool_documents(spool: Spool, path: str, first: int) -> dict[str, int]:
    """Adds the documents in a file of `copy` to the spool, see `Spool.add`; `first` documents are before them."""
    decoder = msgspec.json.Decoder(tuple[list[str], str | None])
    with open(path, "rb") as lines:
        documents = enumerate(map(decoder.decode, lines), first)
        return spool.add((number, text, identity) for number, (text, identity) in documents if text)


def read_corpus(objective: PrepareObjective, work: str, inputs: list[str], workers: Workers) -> tuple[Spool, int, int]:
    """Reads all documents into chunks, and finds the duplicate paragraphs.

    Returns the spool, the number of documents, and that of the bad rows that were left out.

    A hash decides which documents are held out. If it leaves a split of a small corpus empty, the documents are
    distributed again with another hash and a larger share.

    Args:
        work: an empty folder for the chunks.
        inputs: the files, unless the corpus is the built-in one.

    Raises:
        DataError: there is no document, or a split that is wanted stays empty, or a file can't be read.
    """
    config = objective.config
    os.makedirs(folder := os.path.join(work, "text"))
    texts = _read_builtin(config, folder, workers) if config.builtin_corpus else _read(config, folder, inputs, workers)
    firsts = [0, *itertools.accumulate(text.documents for text in texts)]  # the number of documents before each file
    bad_rows = sum(text.bad_rows for text in texts)
    for attempt in range(_SPLIT_ATTEMPTS):
        spool = _make_spool(objective, work, texts, attempt)
        tasks = [(spool, text.path, first) for text, first in zip(texts, firsts[:-1], strict=True)]
        counts = sum(map(Counter, workers.run("distribute documents", spool_documents, tasks)), Counter())
        if not counts:
            left_out = f"; {bad_rows:,} bad rows are left out" if bad_rows else ""
            raise DataError(f"{source(config)}: no document in {len(inputs)} files; expected text{left_out}")
        if counts.total() == 1 or not config.eval_fraction or (counts["train"] and counts["eval"]):
            break
    shutil.rmtree(folder)
    for kind, name in (("train", "training"), ("eval", "held-out")):
        if not counts[kind] and (kind == "train" or config.eval_fraction):
            separated = "; blank lines separate documents" if config.document_separator == "blank_line" else ""
            raise DataError(
                f"{source(config)}: of {counts.total()} documents none is in the {name} split with "
                f"--eval_fraction={config.eval_fraction}; use more documents, or 0 to hold out none{separated} "
                f"(--document_separator={config.document_separator})"
            )
    _find_duplicates(spool, workers)
    return spool, counts.total(), bad_rows


def _read(config: PrepareConfig, folder: str, inputs: list[str], workers: Workers) -> list[Copied]:
    texts, notes = [], SourceNotes([], [])
    groups = by_size(sources.parts(inputs), _TASK_BYTES, lambda part: part.bytes)
    tasks = [(group, config, os.path.join(folder, str(number))) for number, group in enumerate(groups)]
    for copied, noted in workers.run("read documents", read_parts, tasks):
        if copied.fault and not any(text.fault for text in texts):
            logger.warning(f"--skip_bad_rows: rows are left out, the first: {copied.fault}")
        texts.append(copied)
        notes = SourceNotes(*map(operator.add, notes, noted))
    for line in notes.words():
        logger.info(line)
    return texts


def _read_builtin(config: PrepareConfig, folder: str, workers: Workers) -> list[Copied]:
    files, step = builtin_corpus.list_files(), _BUILTIN_FILES_AT_ONCE
    tasks = [(files[begin : begin + step],) for begin in range(0, len(files), step)]
    extracted = workers.run("extract documentation", builtin_corpus.extract_all, tasks)
    limit = config.builtin_corpus_mb * _MB or float("inf")
    different = builtin_corpus.deduplicate((document for batch in extracted for document in batch), limit)
    copied = copy(map(Document, different), os.path.join(folder, "0"))
    logger.info(f"built-in corpus: {copied.documents} documents, {copied.bytes / _MB:.1f} MB of text")
    return [copied]


def source(config: PrepareConfig) -> str:
    """Returns the flag that names the text, for error messages."""
    return "--builtin_corpus" if config.builtin_corpus else f"--input_files={','.join(config.input_files)}"


def _make_spool(objective: PrepareObjective, work: str, texts: list[Copied], attempt: int) -> Spool:
    config = objective.config
    size, documents = sum(text.bytes for text in texts), sum(text.documents for text in texts)
    folder, paragraphs, bands = (os.path.join(work, f"{name}-{attempt}") for name in ("spool", "paragraphs", "bands"))
    for path in (folder, paragraphs, bands):
        os.makedirs(path)
    share, seed = min(0.5, config.eval_fraction * 2**attempt), config.seed + (attempt << 31)
    large = -(-size // int(config.shard_mb * _MB))
    small = min(_SMALL_CHUNKS, -(-size // max(_SMALL_CHUNK_BYTES, objective.smallest_chunk())))
    # The built-in corpus has no duplicate paragraphs, and those of verbatim documents are lines, which stay.
    drops = config.deduplicate != "none" and not config.builtin_corpus and config.document_separator != "verbatim"
    index = Buckets(paragraphs, 1 + size // duplicates.BYTES_OF_A_BUCKET, duplicates.ROW) if drops else None
    count = 1 + near_duplicates.DOCUMENT_BYTES * documents // duplicates.BYTES_OF_A_BUCKET
    near = Buckets(bands, count, near_duplicates.ROW) if config.deduplicate == "near" else None
    chunks = max(1, large, small), max(1, -int(-large * share // 1))  # training and held out
    return Spool(folder, seed, share, *chunks, index, near, objective.split)


def _find_duplicates(spool: Spool, workers: Workers) -> None:
    """Near duplicates first: a paragraph that only they have in common with another document stays there."""
    if spool.bands:
        tasks = [(spool.bands, bucket) for bucket in range(spool.bands.count)]
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
    tasks = [(spool.index, bucket, folders, spool.near_duplicates) for bucket in range(spool.index.count)]
    dropped = sum(workers.run("find duplicate paragraphs", find_duplicates, tasks))
    shutil.rmtree(spool.index.folder)
    if dropped:
        logger.info(f"duplicate paragraphs dropped: {dropped:,} (--deduplicate=none keeps them)")
