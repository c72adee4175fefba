"""The tasks of a preparation worker: count the words of a chunk, hash a held-out one, or write one as a shard."""

from collections import Counter
from itertools import chain, islice
from typing import NamedTuple

import numpy as np

from tftrain.config.prepare import PrepareConfig
from tftrain.input.records import write_records
from tftrain.input.tokenizer_model import Tokenize, TokenizerModel
from tftrain.prepare import accents, decontamination
from tftrain.prepare.accounting import DUPLICATE, IN_TRAINING, Accounting
from tftrain.prepare.objective import Objective
from tftrain.prepare.objectives import objective_of
from tftrain.prepare.spool import Chunk, Spool, SpooledDocument
from tftrain.prepare.tokenized_text import TokenizedText
from tftrain.prepare.unknown_words import count_unknown_words

_SHOWN = 3


class CountTask(NamedTuple):
    """The arguments of `count_chunk`: the documents and the configuration of the tokenizer."""

    spool: Spool
    chunk: Chunk
    config: PrepareConfig


class ShardTask(NamedTuple):
    """The arguments of `write_shard`.

    Attributes:
        spool, chunk: the documents.
        config: the configuration of the preparation.
        tokenizer: what tokenizes them.
        path: path of the shard.
        windows: path of an array of hashes of windows, ascending: for a training shard, all of the held-out split;
            for a held-out shard, those that training has. None if nothing is cut.
    """

    spool: Spool
    chunk: Chunk
    config: PrepareConfig
    tokenizer: TokenizerModel
    path: str
    windows: str | None = None


def count_chunk(task: CountTask) -> Counter:
    """Counts the words of a chunk."""
    from tftrain.input.tokenization import count_words

    config, objective = task.config, objective_of(task.config.objective)
    passages = [
        passage
        for document in task.spool.read(task.chunk)
        for passage in objective.passages(document.paragraphs, config.tokenizer_type)
    ]
    # The counts decide whether accents are stripped.
    return count_words(
        passages, config.tokenizer_type, config.resolved_lower_case, config.resolved_normalization, strip_accents=False
    )


def hash_windows(task: ShardTask) -> np.ndarray:
    """Returns the different hashes of the windows of a chunk, ascending."""
    objective = objective_of(task.config.objective)
    kind, tokenize = task.config.tokenizer_type, task.tokenizer.build(task.config)
    documents = task.spool.read(task.chunk)
    ids = [tokenize(objective.passages(document.paragraphs, kind)) for document in documents]
    return np.unique(_window_hashes(TokenizedText.join(ids), task))


def write_shard(task: ShardTask) -> tuple[Accounting, np.ndarray]:
    """Writes the examples of a chunk and their index, in random order. Without examples, no file is written.

    Returns:
        The accounting, and those of `task.windows` that a training chunk has.
    """
    config, chunk, vocabulary = task.config, task.chunk, task.tokenizer.vocabulary
    objective = objective_of(config.objective)
    tokenize = task.tokenizer.build(config)
    text, accounting = _tokenize(task.spool.read(chunk), objective, tokenize, task)
    found = np.zeros(0, np.uint64)
    if task.windows is not None and chunk.split == "train":
        hashes = _window_hashes(text, task)
        found = np.unique(hashes[decontamination.among(hashes, np.load(task.windows, mmap_mode="r"))])
    elif task.windows is not None:
        text, accounting = _decontaminated(text, accounting, task)
    examples = objective.examples(text, chunk, vocabulary, config)
    used = examples.used()
    accounting = accounting._replace(
        examples=len(examples),
        records=examples.records,
        tokens_in_examples=int(used.sum()),
        tokens_dropped=accounting.tokens_dropped | examples.dropped(),
        unknown_tokens=int((text.tokens[used] == vocabulary.unknown_id).sum())
        if vocabulary.unknown_id is not None
        else 0,
        details=examples.details(),
        lengths=examples.lengths(),
    )
    if not len(examples):
        return accounting, found
    rng = np.random.default_rng([config.seed, int(chunk.split == "eval"), chunk.number])
    order = rng.permutation(examples.records).tolist()
    write_records(task.path, examples.payloads(order))
    return accounting._replace(shown=[examples.lines(number) for number in order[:_SHOWN]]), found


def _window_hashes(text: TokenizedText, task: ShardTask) -> np.ndarray:
    return decontamination.window_hashes(text, task.config.heldout_window, len(task.tokenizer.vocabulary))[1]


def _decontaminated(text: TokenizedText, accounting: Accounting, task: ShardTask) -> tuple[TokenizedText, Accounting]:
    of_training = np.load(task.windows, mmap_mode="r")
    cut = decontamination.cut(text, task.config.heldout_window, len(task.tokenizer.vocabulary), of_training)
    return cut.text, accounting._replace(
        tokens_dropped=accounting.tokens_dropped | {IN_TRAINING: len(text.tokens) - len(cut.text.tokens)},
        windows=cut.windows,
        shared_windows=cut.shared,
        shared_windows_left=cut.left,
    )


def _tokenize(
    documents: list[SpooledDocument], objective: Objective, tokenize: Tokenize, task: ShardTask
) -> tuple[TokenizedText, Accounting]:
    """Returns the text of a chunk without its duplicates, and its tokens, but for those of examples."""
    kind = task.config.tokenizer_type
    kept = [objective.passages(document.paragraphs, kind) for document in documents]
    passages = list(chain.from_iterable(kept))
    ids = tokenize(passages)
    remaining = iter(ids)
    text = TokenizedText.join([list(islice(remaining, len(document))) for document in kept])
    duplicates = tokenize([text for document in documents for text in objective.passages(document.duplicates, kind)])
    duplicate_tokens, unknown = sum(map(len, duplicates)), task.tokenizer.vocabulary.unknown_id
    letters = accents.count_letters(passages) if kind == "wordpiece" else Counter()
    accounting = Accounting(
        documents=len(text.documents) - 1,
        tokens_read=len(text.tokens) + duplicate_tokens,
        tokens_dropped={DUPLICATE: duplicate_tokens},
        lost_marks=accents.losses(letters) if task.tokenizer.strip_accents else Counter(),
        lengths=Counter(),
        letters=letters.total(),
        unknown_words=Counter() if unknown is None else count_unknown_words(passages, ids, tokenize, unknown),
    )
    return text, accounting
