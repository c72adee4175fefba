"""What a preparation worker does: count the words of a chunk, hash a held-out one, or write one as a shard."""

import functools
import os
import re
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, islice

import numpy as np

from tftrain.config.prepare import PrepareConfig
from tftrain.data.records import write_records
from tftrain.prepare import decontamination
from tftrain.prepare.accounting import DUPLICATE, IN_TRAINING, NEAR_DUPLICATE, Accounting
from tftrain.prepare.duplicates import among
from tftrain.prepare.objective import PrepareObjective, TokenizedText
from tftrain.prepare.objectives import objective_of
from tftrain.prepare.spool import Chunk, Spool, SpooledDocument
from tftrain.tokenizer import accents
from tftrain.tokenizer.tokenizer_model import Tokenize, Tokenizer
from tftrain.tokenizer.words import count_words

_SHOWN = 3
_UNKNOWN_SENTENCES, _UNKNOWN_WORDS = 500, 100  # for a message: a sample of the text is enough
_WORD = re.compile(r"\w+|[^\w\s]")


def count_chunk(spool: Spool, chunk: Chunk, config: PrepareConfig) -> Counter:
    """Counts the words of a chunk."""
    objective = objective_of(config)
    passages = [passage for document in spool.read(chunk) for passage in objective.passages(document.paragraphs)]
    # The counts decide whether accents are stripped.
    return count_words(
        passages, config.tokenizer_type, config.resolved_lower_case, config.resolved_normalization, strip_accents=False
    )


def hash_windows(spool: Spool, chunk: Chunk, config: PrepareConfig, tokenizer: Tokenizer) -> np.ndarray:
    """Returns the different hashes of the windows of a chunk, ascending."""
    objective, tokenize = objective_of(config), _built(tokenizer)
    ids = [tokenize(objective.passages(document.paragraphs)) for document in spool.read(chunk)]
    windows = decontamination.window_hashes(TokenizedText.join(ids), config.heldout_window, len(tokenizer.vocabulary))
    return np.unique(windows[1])


def write_shard(
    spool: Spool, chunk: Chunk, config: PrepareConfig, tokenizer: Tokenizer, path: str, windows: str | None = None
) -> tuple[Accounting, np.ndarray]:
    """Writes the examples of a chunk and their index, in random order. Without examples, no file is written.

    Args:
        path: of the shard.
        windows: path of an array of hashes of windows, ascending: for a training shard, all of the held-out split;
            for a held-out shard, those that training has. None if nothing is cut.

    Returns:
        The accounting, and those of `windows` that a training chunk has.
    """
    objective, vocabulary = objective_of(config), tokenizer.vocabulary
    text, accounting = _tokenize(spool.read(chunk), objective, tokenizer)
    seen_hashes = np.zeros(0, np.uint64)
    if windows is not None:
        wanted, size = np.load(windows, mmap_mode="r"), config.heldout_window
        if chunk.split == "train":
            _, hashes = decontamination.window_hashes(text, size, len(vocabulary))
            seen_hashes = np.unique(hashes[among(hashes, wanted)])
        else:
            tokens = len(text.tokens)
            text, windows_of = decontamination.cut(text, size, len(vocabulary), wanted)
            dropped = accounting.tokens_dropped | {IN_TRAINING: tokens - len(text.tokens)}
            accounting = accounting._replace(tokens_dropped=dropped, **windows_of)
    examples = objective.examples(text, chunk, vocabulary)
    accounting = accounting._replace(
        examples=examples.count,
        records=examples.records,
        tokens_in_examples=int(examples.used.sum()),
        tokens_dropped=accounting.tokens_dropped | examples.dropped,
        # A vocabulary without [UNK] has the id None, which no token equals.
        unknown_tokens=int(np.sum(text.tokens[examples.used] == vocabulary.unknown_id)),
        details=examples.details,
        lengths=examples.lengths,
    )
    if not examples.count:
        return accounting, seen_hashes
    rng = np.random.default_rng([config.seed, int(chunk.split == "eval"), chunk.number])
    order = rng.permutation(examples.records).tolist()
    write_file(path, examples.payloads(order))
    return accounting._replace(shown=[examples.lines(number) for number in order[:_SHOWN]]), seen_hashes


def write_file(path: str, payloads: Iterable[bytes]) -> None:
    """Writes records and their index, which appear when they are complete: two machines may have the same task."""
    unfinished = f"{path}-{uuid.uuid4().hex}"
    write_records(unfinished, payloads)
    for suffix in ("", ".index"):
        os.replace(unfinished + suffix, path + suffix)


@functools.lru_cache(maxsize=1)
def _built(tokenizer: Tokenizer) -> Tokenize:
    """Returns `tokenizer.build()`, the same for all tasks of a process: the memory of a BPE is never given back."""
    return tokenizer.build()


def _tokenize(
    documents: list[SpooledDocument], objective: PrepareObjective, tokenizer: Tokenizer
) -> tuple[TokenizedText, Accounting]:
    """Returns the text of a chunk without its duplicates, and its accounting before there are examples."""
    tokenize, unknown = _built(tokenizer), tokenizer.vocabulary.unknown_id
    kept = [objective.passages(document.paragraphs) for document in documents]
    passages = list(chain.from_iterable(kept))
    ids = tokenize(passages)
    remaining = iter(ids)
    text = TokenizedText.join([list(islice(remaining, len(document))) for document in kept])
    reasons = {DUPLICATE: [document.duplicates for document in documents]}
    if objective.config.deduplicate == "near":
        reasons[NEAR_DUPLICATE] = [document.near_duplicates for document in documents]
    dropped = {
        reason: sum(map(len, tokenize([text for paragraphs in left_out for text in objective.passages(paragraphs)])))
        for reason, left_out in reasons.items()
    }
    letters = accents.count_letters(passages) if objective.config.tokenizer_type == "wordpiece" else Counter()
    accounting = Accounting(
        documents=len(text.documents) - 1,
        tokens_read=len(text.tokens) + sum(dropped.values()),
        tokens_dropped=dropped,
        lost_marks=accents.losses(letters) if tokenizer.strip_accents else Counter(),
        letters=letters.total(),
        unknown_words=Counter() if unknown is None else _unknown_words(passages, ids, tokenize, unknown),
        documents_read=len(documents),
    )
    return text, accounting


def _unknown_words(sentences: Sequence[str], ids: Sequence[np.ndarray], tokenize: Tokenize, unknown: int) -> Counter:
    """Returns the counts of the most frequent characters and words that become [UNK], the token `unknown`.

    The first sentences that contain [UNK] are searched. A word counts as the characters in it that are [UNK] alone, or
    as a whole if it has none.
    """

    def lost(texts: list[str]) -> list[str]:
        return [text for text, tokens in zip(texts, tokenize(texts), strict=True) if unknown in tokens]

    ends = np.cumsum([len(tokens) for tokens in ids])
    places = np.flatnonzero(np.concatenate([np.zeros(0, np.int32), *ids]) == unknown)
    sample = np.unique(np.searchsorted(ends, places, side="right"))[:_UNKNOWN_SENTENCES]
    counts = Counter(word for number in sample for word in _WORD.findall(sentences[number]))
    words = lost(list(counts))
    characters = set(lost(sorted(set("".join(words)))))
    unknown_words: Counter = Counter()
    for word in words:
        for part in [character for character in word if character in characters] or [word]:
            unknown_words[part] += counts[word]
    return Counter(dict(sorted(unknown_words.items(), key=lambda item: (-item[1], item[0]))[:_UNKNOWN_WORDS]))
