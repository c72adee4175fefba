"""The stages of a preparation: documents into chunks, a vocabulary, chunks into shards, and the manifest at the end.

A preparation writes its files into the folder `.unfinished` inside the output folder. When all files are complete, it
moves them into the output folder and writes the manifest last. If it fails or is interrupted, the output folder does
not change.
"""

import logging
import os
import shutil
from collections import Counter
from typing import NamedTuple

from tftrain.data import accounting, builtin_corpus, input_files, manifest, output_folder
from tftrain.data.accounting import Accounting
from tftrain.data.alphabet import vocabulary_warnings
from tftrain.data.duplicates import BucketTask, ParagraphIndex, find_duplicates
from tftrain.data.errors import DataError
from tftrain.data.manifest import Manifest, Shard
from tftrain.data.spool import Chunk, FilesTask, Spool, spool_files
from tftrain.data.vocabulary import MAX_BYTES, Vocabulary, read_vocabulary, write_vocabulary
from tftrain.data.workers import Stage, Workers
from tftrain.data_sizes import predictions
from tftrain.files import read_small
from tftrain.prepare_config import PrepareConfig

logger = logging.getLogger(__name__)

VOCAB_FILE = "vocab.txt"
MODEL_FILE = "sentencepiece.model"
DEFAULT_VOCAB_SIZE = 30522

_MB = 1_000_000
_GZIP_RATIO = 3
_TASK_BYTES = 4 * _MB
_BUILTIN_FILES_AT_ONCE = 100
# A small corpus has several chunks too, so that several workers share the work.
_SMALL_CHUNK_BYTES = 250_000
_SMALL_CHUNKS = 8
_DISTINCT_WORDS = 20_000_000
_SPOOL_FOLDERS = ("spool", "paragraphs")
# Each one more than halves the chance that a split of two documents or more stays empty.
_SPLIT_ATTEMPTS = 40


class _Tokenizer(NamedTuple):
    vocabulary: Vocabulary
    model: bytes | None


def prepare(config: PrepareConfig) -> Manifest:
    """Prepares a data set.

    Args:
        config: a valid configuration.

    Returns:
        The manifest, after it has been written.

    Raises:
        DataError: the text, the vocabulary or the output folder cannot be used.
    """
    output_folder.check(config)
    tokenizer_from_file = _read_tokenizer(config)
    inputs = [] if config.builtin_corpus else input_files.list_files(config.input_files)
    work = os.path.join(config.output_dir, output_folder.UNFINISHED)
    existed = os.path.isdir(config.output_dir)
    shutil.rmtree(work, ignore_errors=True)
    for name in _SPOOL_FOLDERS:
        os.makedirs(os.path.join(work, name))
    try:
        with Workers(config.num_workers or os.cpu_count() or 1) as workers:
            spool, documents = _spool(config, work, inputs, workers)
            tokenizer = tokenizer_from_file or _learn(config, spool, workers)
            new_manifest = _write(config, work, spool, documents, tokenizer, workers)
        output_folder.publish(config, work, new_manifest)
        return new_manifest
    finally:
        shutil.rmtree(work, ignore_errors=True)
        if not existed and os.path.isdir(config.output_dir) and not os.listdir(config.output_dir):
            os.rmdir(config.output_dir)


def _read_tokenizer(config: PrepareConfig) -> _Tokenizer | None:
    """Reads the tokenizer from --vocab_file. Returns None if the flag is not set."""
    if not config.vocab_file:
        return None
    if config.tokenizer_type == "wordpiece":
        return _Tokenizer(_read_wordpiece(config), None)
    from tftrain.data.vocabulary_learner import sentencepiece_vocabulary

    try:
        model = read_small(config.vocab_file, MAX_BYTES)
    except OSError as error:
        raise DataError(f"{config.vocab_file}: {error.strerror}; expected a sentencepiece model") from error
    return _Tokenizer(sentencepiece_vocabulary(model, config.vocab_file), model)


def _read_wordpiece(config: PrepareConfig) -> Vocabulary:
    """Reads a WordPiece vocabulary. Warns if some of its words do not fit --normalization and --lower_case."""
    from tftrain.data.tokenization import unreachable_words

    vocabulary = read_vocabulary(config.vocab_file, config.tokenizer_type)
    normalization, lower_case = config.resolved_normalization, config.lower_case
    if unreachable := unreachable_words(vocabulary, lower_case, normalization):
        logger.warning(
            f"{config.vocab_file}: {len(unreachable)} whole words of it, such as {', '.join(unreachable[:5])}, never "
            f"occur with --normalization={normalization} --lower_case={str(lower_case).lower()}, which change or split "
            "them; use the flags that the vocabulary was made with"
        )
    return vocabulary


def _spool(config: PrepareConfig, work: str, inputs: list[str], workers: Workers) -> tuple[Spool, int]:
    """Reads all documents into chunks. Returns the spool and the number of documents.

    A hash decides which documents are held out. If it leaves a split of a small corpus empty, the documents are read
    again with another hash and a larger share.

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
        spool = _make_spool(config, work, total, attempt)
        counts = _fill(config, spool, documents, inputs, workers)
        if not counts.total():
            raise DataError(f"{_source(config)}: no document in {len(inputs)} files; expected text")
        if counts.total() == 1 or not config.eval_fraction or (counts["train"] and counts["eval"]):
            break
        for name in _SPOOL_FOLDERS:
            shutil.rmtree(os.path.join(work, name))
            os.makedirs(os.path.join(work, name))
    for split, name in (("train", "training"), ("eval", "held-out")):
        if not counts[split] and (split == "train" or config.eval_fraction):
            separated = "" if config.document_separator == "file" else "; blank lines separate documents"
            raise DataError(
                f"{_source(config)}: of {counts.total()} documents none is in the {name} split with "
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


def _source(config: PrepareConfig) -> str:
    return "--builtin_corpus" if config.builtin_corpus else f"--input_files={','.join(config.input_files)}"


def _text_size(path: str) -> int:
    return os.path.getsize(path) * (_GZIP_RATIO if path.endswith(".gz") else 1)


def _make_spool(config: PrepareConfig, work: str, total_bytes: int, attempt: int) -> Spool:
    share, seed = min(0.5, config.eval_fraction * 2**attempt), config.seed + (attempt << 31)
    large = -(-total_bytes // int(config.shard_mb * _MB))
    small = min(_SMALL_CHUNKS, -(-total_bytes // _SMALL_CHUNK_BYTES))
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


def _learn(config: PrepareConfig, spool: Spool, workers: Workers) -> _Tokenizer:
    """Learns the vocabulary from the training split."""
    from tftrain.data import shards, vocabulary_learner

    tasks = [
        shards.CountTask(spool, chunk, config.tokenizer_type, config.lower_case, config.resolved_normalization)
        for chunk in spool.chunks()
        if chunk.split == "train"
    ]
    counts: Counter = Counter()
    for part in workers.run("count words", shards.count_chunk, tasks):
        counts.update(part)
        if len(counts) > _DISTINCT_WORDS:
            counts = Counter({word: count for word, count in counts.items() if count > 1})
    size = config.vocab_size or DEFAULT_VOCAB_SIZE
    with Stage("learn vocabulary", None) as progress:
        if config.tokenizer_type == "wordpiece":
            tokenizer = _Tokenizer(vocabulary_learner.learn_wordpiece(counts, size, progress.advance), None)
        else:
            tokenizer = _Tokenizer(*vocabulary_learner.learn_sentencepiece(counts, size, config.lower_case))
    if config.tokenizer_type == "wordpiece":
        for warning in vocabulary_warnings(counts, tokenizer.vocabulary, size):
            logger.warning(warning)
    elif len(tokenizer.vocabulary) < size:
        logger.warning(
            f"the vocabulary has {len(tokenizer.vocabulary)} tokens, not {size}: the text has too few different words"
        )
    return tokenizer


def _write(
    config: PrepareConfig, work: str, spool: Spool, documents: int, tokenizer: _Tokenizer, workers: Workers
) -> Manifest:
    """Writes the shards and the vocabulary. Returns the manifest without writing it."""
    from tftrain.data import shards

    slots = None
    if config.masking == "static":
        slots = config.max_predictions_per_seq or predictions(config.max_seq_length, config.masked_lm_prob)
    chunks = spool.chunks()
    tasks = [
        shards.ShardTask(spool, chunk, config, *tokenizer, slots, os.path.join(work, f"{chunk.split}-{chunk.number}"))
        for chunk in chunks
    ]
    results = list(workers.run("write records", shards.write_shard, tasks))
    _warn_of_single_documents(config, [result.documents for result in results])
    tokens = _account(config, chunks, results)
    splits: dict[str, list[Shard]] = {"train": [], "eval": []}
    for split, split_shards in splits.items():
        nonempty = [
            (task.path, result.examples)
            for task, result in zip(tasks, results, strict=True)
            if task.chunk.split == split and result.examples
        ]
        for number, (path, examples) in enumerate(nonempty):
            name = f"{split}-{number:05d}-of-{len(nonempty):05d}.tfrecord"
            for suffix in ("", ".index"):
                os.rename(path + suffix, os.path.join(work, name + suffix))
            split_shards.append(Shard(name, examples, os.path.getsize(os.path.join(work, name))))
    write_vocabulary(os.path.join(work, VOCAB_FILE), tokenizer.vocabulary)
    if tokenizer.model is not None:
        with open(os.path.join(work, MODEL_FILE), "wb") as file:
            file.write(tokenizer.model)
    return Manifest(
        folder=config.output_dir,
        masking=config.masking,
        tokenizer_type=config.tokenizer_type,
        vocab_file=VOCAB_FILE,
        vocab_size=len(tokenizer.vocabulary),
        vocab_sha256=manifest.file_sha256(os.path.join(work, VOCAB_FILE)),
        tokenizer_file=None if tokenizer.model is None else MODEL_FILE,
        lower_case=config.lower_case,
        normalization=config.resolved_normalization,
        max_seq_length=config.max_seq_length,
        max_predictions_per_seq=slots,
        documents=documents,
        tokens_read=tokens.tokens_read,
        tokens_in_examples=tokens.tokens_in_examples,
        tokens_dropped=tokens.tokens_dropped,
        unk_share=tokens.unk_share,
        seed=config.seed,
        splits=splits,
    )


def _account(config: PrepareConfig, chunks: list[Chunk], results: list[Accounting]) -> Accounting:
    """Logs the accounting of the whole text and returns it.

    Raises:
        DataError: too little of the text is in examples, or a split has none.
    """
    whole = accounting.total(results)
    for line in accounting.table(whole):
        logger.info(line)
    accounting.check(whole, config)
    for split, name in (("train", "training"), ("eval", "held-out")):
        examples = sum(result.examples for chunk, result in zip(chunks, results, strict=True) if chunk.split == split)
        if not examples and (split == "train" or config.eval_fraction):
            raise DataError(
                f"{_source(config)}: the {name} split has no example; expected a document of two tokens or more "
                "that is no duplicate; use more text"
            )
    return whole


def _warn_of_single_documents(config: PrepareConfig, documents: list[int]) -> None:
    """Warns if a chunk has a single document, because its random next sentences have no other document to come from.

    Args:
        config: the configuration, for the message.
        documents: number of documents of each chunk.
    """
    single, filled = documents.count(1), sum(count > 0 for count in documents)
    if single:
        other_separator = "file" if config.document_separator == "blank_line" else "blank_line"
        logger.warning(
            f"{single} of {filled} chunks hold a single document: their pairs are all consecutive; use more documents, "
            f"a larger --shard_mb, or --document_separator={other_separator} if that is what parts the text"
        )
