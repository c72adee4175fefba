"""The first stage of a preparation: reads the documents of the corpus into chunks of both splits."""

import logging
import os
import shutil
from collections import Counter

from tftrain.config.prepare import PrepareConfig
from tftrain.input.errors import DataError
from tftrain.prepare import builtin_corpus
from tftrain.prepare.duplicates import BucketTask, ParagraphIndex, find_duplicates
from tftrain.prepare.spool import FilesTask, Spool, spool_files
from tftrain.prepare.workers import Workers

logger = logging.getLogger(__name__)

# Folders that `read_corpus` needs.
FOLDERS = ("spool", "paragraphs")

_MB = 1_000_000
_GZIP_RATIO = 3
_TASK_BYTES = 4 * _MB
_BUILTIN_FILES_AT_ONCE = 100
# A small corpus has several chunks too, so that several workers share the work.
_SMALL_CHUNK_BYTES = 250_000
_SMALL_CHUNKS = 8
# Each one more than halves the chance that a split of two documents or more stays empty.
_SPLIT_ATTEMPTS = 40


def read_corpus(
    config: PrepareConfig, work: str, inputs: list[str], workers: Workers, smallest_chunk: int
) -> tuple[Spool, int]:
    """Reads all documents into chunks, and finds the duplicate paragraphs.

    A hash decides which documents are held out. If it leaves a split of a small corpus empty, the documents are read
    again with another hash and a larger share.

    Args:
        config: names the text.
        work: the folder for the chunks. FOLDERS are in it.
        inputs: the files, unless the corpus is the built-in one.
        workers: read the files.
        smallest_chunk: bytes of text that the chunks of a small corpus should have at least.

    Returns:
        The spool and the number of documents.

    Raises:
        DataError: there is no document, or a split that is wanted stays empty.
    """
    if config.builtin_corpus:
        documents = _builtin_documents(config, workers)
        total = sum(len(paragraph.encode()) + 1 for document in documents for paragraph in document)
        logger.info(f"built-in corpus: {len(documents)} documents, {total / _MB:.1f} MB of text")
    else:
        documents, total = None, sum(map(_text_size, inputs))
    for attempt in range(_SPLIT_ATTEMPTS):
        spool = _make_spool(config, work, total, attempt, smallest_chunk)
        counts = _fill(config, spool, documents, inputs, workers)
        if not counts.total():
            raise DataError(f"{source(config)}: no document in {len(inputs)} files; expected text")
        if counts.total() == 1 or not config.eval_fraction or (counts["train"] and counts["eval"]):
            break
        for name in FOLDERS:
            shutil.rmtree(os.path.join(work, name))
            os.makedirs(os.path.join(work, name))
    for split, name in (("train", "training"), ("eval", "held-out")):
        if not counts[split] and (split == "train" or config.eval_fraction):
            separated = "" if config.document_separator == "file" else "; blank lines separate documents"
            raise DataError(
                f"{source(config)}: of {counts.total()} documents none is in the {name} split with "
                f"--eval_fraction={config.eval_fraction}; use more documents, or 0 to hold out none{separated} "
                f"(--document_separator={config.document_separator})"
            )
    if spool.index:
        _find_duplicates(spool, workers)
    return spool, counts.total()


def _builtin_documents(config: PrepareConfig, workers: Workers) -> list[list[str]]:
    files = builtin_corpus.list_files()
    batches = [files[begin : begin + _BUILTIN_FILES_AT_ONCE] for begin in range(0, len(files), _BUILTIN_FILES_AT_ONCE)]
    extracted = workers.run("extract documentation", builtin_corpus.extract_all, batches)
    limit = config.builtin_corpus_mb * _MB or float("inf")
    return list(builtin_corpus.deduplicate((document for batch in extracted for document in batch), limit))


def _fill(
    config: PrepareConfig, spool: Spool, documents: list[list[str]] | None, inputs: list[str], workers: Workers
) -> Counter:
    """Adds documents, by default those of the input files, to the spool. Returns their number in each split."""
    if documents is not None:
        return Counter(spool.add((0, number, document) for number, document in enumerate(documents)))
    counts = Counter()
    for part in workers.run("read documents", spool_files, _file_tasks(spool, inputs, config.document_separator)):
        counts.update(part)
    return counts


def source(config: PrepareConfig) -> str:
    """Returns the flag that names the text, for error messages."""
    return "--builtin_corpus" if config.builtin_corpus else f"--input_files={','.join(config.input_files)}"


def _text_size(path: str) -> int:
    return os.path.getsize(path) * (_GZIP_RATIO if path.endswith(".gz") else 1)


def _make_spool(config: PrepareConfig, work: str, total_bytes: int, attempt: int, smallest_chunk: int) -> Spool:
    share, seed = min(0.5, config.eval_fraction * 2**attempt), config.seed + (attempt << 31)
    large = -(-total_bytes // int(config.shard_mb * _MB))
    small = min(_SMALL_CHUNKS, -(-total_bytes // max(_SMALL_CHUNK_BYTES, smallest_chunk)))
    train = max(1, large, small)
    held_out = max(1, -int(-large * share // 1))
    index = None
    # The built-in corpus has no duplicates.
    if config.deduplicate == "paragraph" and not config.builtin_corpus:
        index = ParagraphIndex.for_text(os.path.join(work, "paragraphs"), total_bytes)
    return Spool(os.path.join(work, "spool"), seed, share, train, held_out, index)


def _find_duplicates(spool: Spool, workers: Workers) -> None:
    folders = [spool.chunk_folder(chunk) for chunk in spool.chunks()]
    tasks = [BucketTask(spool.index, bucket, folders) for bucket in range(spool.index.buckets)]
    found = sum(workers.run("find duplicate paragraphs", find_duplicates, tasks))
    shutil.rmtree(spool.index.folder)
    if found:
        logger.info(f"duplicate paragraphs dropped: {found:,} (--deduplicate=none keeps them)")


def _file_tasks(spool: Spool, paths: list[str], separator: str) -> list[FilesTask]:
    """Groups consecutive files into tasks of similar size."""
    tasks, begin, size = [], 0, 0
    for number, path in enumerate(paths):
        size += _text_size(path)
        if size >= _TASK_BYTES or number + 1 == len(paths):
            tasks.append(FilesTask(spool, paths[begin : number + 1], begin, separator))
            begin, size = number + 1, 0
    return tasks
