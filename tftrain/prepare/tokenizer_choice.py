"""The tokenizer of a preparation: read from `--vocab_file`, or learned from the training split.

Each library is loaded when it is needed: byte pairs need no TensorFlow, which takes a worker seconds to load.
"""

import logging
import os
from collections import Counter
from collections.abc import Iterator

from tftrain.config.prepare import PrepareConfig
from tftrain.host import strict_json
from tftrain.host.files import read_small
from tftrain.input import manifest
from tftrain.input.errors import DataError, unreadable
from tftrain.input.tokenizer_model import SETTINGS, TokenizerModel
from tftrain.input.vocabulary import MAX_BYTES, SPECIAL_TOKENS, read_vocabulary
from tftrain.prepare import accents, shards
from tftrain.prepare.alphabet import vocabulary_warnings
from tftrain.prepare.objective import Objective
from tftrain.prepare.spool import Spool
from tftrain.prepare.workers import Stage, Workers

logger = logging.getLogger(__name__)

DEFAULT_VOCAB_SIZE = 30522
_DISTINCT_WORDS = 20_000_000
# Characters that byte pairs are learned from. Chunks are random samples of the corpus, and so are the first of them.
_LEARNED_CHARACTERS = 1 << 30


def read(config: PrepareConfig) -> TokenizerModel | None:
    """Reads the tokenizer from --vocab_file. Returns None if the flag is not set.

    Raises:
        DataError: the file is not one of the tokenizer's type.
    """
    if not config.vocab_file:
        return None
    if config.tokenizer_type == "wordpiece":
        return _read_wordpiece(config)
    if config.tokenizer_type == "bpe":
        from tftrain.input.byte_pairs import read_byte_pairs

        vocabulary, model = read_byte_pairs(config.vocab_file)
        if config.objective == "masked" and not vocabulary.is_for_encoders:
            raise DataError(
                f"{config.vocab_file}: the vocabulary lacks special tokens; expected {' '.join(SPECIAL_TOKENS)} for "
                "--objective=masked"
            )
        return TokenizerModel(vocabulary, model)
    from tftrain.prepare.vocabulary_learner import sentencepiece_vocabulary

    try:
        model = read_small(config.vocab_file, MAX_BYTES)
    except OSError as error:
        raise unreadable(config.vocab_file, error, "expected a sentencepiece model") from error
    return TokenizerModel(sentencepiece_vocabulary(model, config.vocab_file), model)


def _read_wordpiece(config: PrepareConfig) -> TokenizerModel:
    """Reads a WordPiece vocabulary. Warns if some of its words do not fit the flags of normalization."""
    from tftrain.input.tokenization import unreachable_words

    vocabulary = read_vocabulary(config.vocab_file, config.tokenizer_type)
    normalization, lower_case = config.resolved_normalization, config.resolved_lower_case
    strips = config.strips_accents
    if strips is None:
        recorded = _recorded_beside(config.vocab_file)
        strips = lower_case if recorded is None else recorded
    if unreachable := unreachable_words(vocabulary, lower_case, normalization, strips):
        logger.warning(
            f"{config.vocab_file}: {len(unreachable)} whole words of it, such as {', '.join(unreachable[:5])}, never "
            f"occur with --normalization={normalization} --lower_case={str(lower_case).lower()} "
            f"--strip_accents={str(strips).lower()}, which change or split them; use the flags that the vocabulary was "
            "made with"
        )
    return TokenizerModel(vocabulary, None, strips)


def _recorded_beside(vocab_file: str) -> bool | None:
    """Returns what the tokenizer's settings or the manifest beside a vocabulary say of accents; None: nothing."""
    for name in (SETTINGS, manifest.NAME):
        path = os.path.join(os.path.dirname(vocab_file), name)
        try:
            content = strict_json.parse(read_small(path, MAX_BYTES))
            recorded = content.get("strip_accents") if isinstance(content, dict) else None
            if not isinstance(recorded, bool | None):
                raise ValueError(f"strip_accents is {strict_json.shown(recorded)}, no boolean")
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise DataError(
                f"{path}: {error}; it says how the text of --vocab_file is normalized: mend it, or give --strip_accents"
            ) from error
        return recorded
    return None


def learn(config: PrepareConfig, objective: Objective, spool: Spool, workers: Workers) -> TokenizerModel:
    """Learns the tokenizer from the training split.

    Raises:
        DataError: the text is too small for the vocabulary.
    """
    size = config.vocab_size or DEFAULT_VOCAB_SIZE
    if config.tokenizer_type == "bpe":
        tokenizer = _learn_byte_pairs(objective, spool, size)
    else:
        tokenizer = _learn_from_words(config, spool, size, workers)
    if config.tokenizer_type != "wordpiece" and len(tokenizer.vocabulary) < size:
        logger.warning(
            f"the vocabulary has {len(tokenizer.vocabulary)} tokens, not {size}: the text has too few different words"
        )
    return tokenizer


def _learn_byte_pairs(objective: Objective, spool: Spool, size: int) -> TokenizerModel:
    """Learns byte pairs. The library counts words on all cores; the result does not depend on their number."""
    from tftrain.input.byte_pairs import learn_byte_pairs

    def texts() -> Iterator[list[str]]:
        left = _LEARNED_CHARACTERS
        for chunk in spool.chunks():
            if chunk.split == "train" and left > 0:
                documents = [objective.passages(document.paragraphs, "bpe") for document in spool.read(chunk)]
                yield from documents
                left -= sum(len(text) for document in documents for text in document)

    with Stage("learn vocabulary", None):
        return TokenizerModel(*learn_byte_pairs(texts(), size, objective.special_tokens))


def _learn_from_words(config: PrepareConfig, spool: Spool, size: int, workers: Workers) -> TokenizerModel:
    """Learns a WordPiece vocabulary or a sentencepiece model from the counts of words."""
    from tftrain.input import tokenization
    from tftrain.prepare import vocabulary_learner

    tasks = [shards.CountTask(spool, chunk, config) for chunk in spool.chunks() if chunk.split == "train"]
    counts: Counter = Counter()
    for part in workers.run("count words", shards.count_chunk, tasks):
        counts.update(part)
        if len(counts) > _DISTINCT_WORDS:
            counts = Counter({word: count for word, count in counts.items() if count > 1})
    strips = _strips(config, counts)
    if strips and config.resolved_normalization == "bert":
        counts = tokenization.strip_accents(counts)
    with Stage("learn vocabulary", None) as progress:
        if config.tokenizer_type == "sentencepiece":
            return TokenizerModel(*vocabulary_learner.learn_sentencepiece(counts, size, config.resolved_lower_case))
        vocabulary = vocabulary_learner.learn_wordpiece(counts, size, progress.advance)
    for warning in vocabulary_warnings(counts, vocabulary, size):
        logger.warning(warning)
    return TokenizerModel(vocabulary, None, strips)


def _strips(config: PrepareConfig, counts: Counter) -> bool:
    """Whether accents of the words are stripped, by flag or because there are few."""
    if config.strips_accents is not None:
        return config.strips_accents
    letters: Counter = Counter()
    for word, count in counts.items():
        for letter in word:
            letters[letter] += count
    letters = accents.only_letters(letters)
    if accents.strips(letters):
        return True
    if lost := accents.losses(letters):
        logger.info(
            f"accents are kept (--strip_accents): {lost.total() / letters.total():.2%} of the letters would lose a "
            f"mark, such as {accents.shown(lost)}"
        )
    return False
