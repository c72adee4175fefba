"""The tokenizer of a preparation: read from `--vocab_file`, or learned from the training split."""

import logging
import os
from collections import Counter
from collections.abc import Iterator

from tftrain.config.prepare import PrepareConfig
from tftrain.data import manifest
from tftrain.families.bert import NORMALIZATION
from tftrain.files import strict_json
from tftrain.files.errors import DataError
from tftrain.prepare import shards
from tftrain.prepare.objective import PrepareObjective
from tftrain.prepare.spool import Spool
from tftrain.prepare.workers import Workers, progress
from tftrain.tokenizer import accents, pipelines, vocabulary_learner, words
from tftrain.tokenizer.added_tokens import with_added
from tftrain.tokenizer.alphabet import joiner_warnings, lost_scripts, vocabulary_warnings
from tftrain.tokenizer.byte_pairs import learn_byte_pairs, read_byte_pairs
from tftrain.tokenizer.roles import SETTINGS, read_object
from tftrain.tokenizer.tokenizer_model import Tokenizer
from tftrain.tokenizer.vocabulary import LIBRARY, SPECIAL_TOKENS, Vocabulary, read_file, read_vocabulary

logger = logging.getLogger(__name__)

DEFAULT_VOCAB_SIZE = 30522
_DISTINCT_WORDS = 20_000_000
# Characters that byte pairs are learned from. Chunks are random samples of the corpus, and so are the first of them.
_LEARNED_CHARACTERS = 1 << 30


def _tokenizer(
    config: PrepareConfig, vocabulary: Vocabulary, model: bytes | None = None, strips: bool = False
) -> Tokenizer:
    return Tokenizer(vocabulary, config.resolved_lower_case, config.resolved_normalization, model, strips)


def read(config: PrepareConfig) -> Tokenizer | None:
    """Returns the tokenizer in --vocab_file, if it is set; raises DataError if it is not of the tokenizer's type."""
    if not config.vocab_file:
        return None
    if config.tokenizer_type == "wordpiece":
        return _read_wordpiece(config)
    if config.tokenizer_type in ("bpe", *LIBRARY):
        read_one = read_byte_pairs if config.tokenizer_type == "bpe" else pipelines.read_file
        vocabulary, model = read_one(config.vocab_file)
        if vocabulary.tokenizer_type != config.tokenizer_type:
            expected = f"expected --tokenizer_type={vocabulary.tokenizer_type}, which it is"
            fault = f"not a tokenizer of --tokenizer_type={config.tokenizer_type}"
            raise DataError(f"{config.vocab_file}: {fault}; {expected}")
        if config.objective == "causal" and vocabulary.roles.end is None:
            raise DataError(f"{config.vocab_file}: no token ends a document; name eos_token in {SETTINGS} beside it")
        if config.objective == "masked" and not vocabulary.is_for_encoders:
            raise DataError(
                f"{config.vocab_file}: no token for {' and '.join(vocabulary.roles.lacking)}; expected one for each "
                f"of these roles, such as {' '.join(SPECIAL_TOKENS)}, for --objective=masked"
            )
        return _tokenizer(config, vocabulary, model)
    model = read_file(config.vocab_file, "expected a sentencepiece model")
    return _tokenizer(config, vocabulary_learner.sentencepiece_vocabulary(model, config.vocab_file), model)


def _read_wordpiece(config: PrepareConfig) -> Tokenizer:
    """Reads a WordPiece vocabulary. Warns if some of its words do not fit the flags of normalization."""
    vocabulary = read_vocabulary(config.vocab_file, config.tokenizer_type)
    normalization, lower_case = config.resolved_normalization, config.resolved_lower_case
    strips = config.strips_accents
    if strips is None:
        recorded = _recorded_beside(config.vocab_file)
        strips = lower_case if recorded is None else recorded
    if unreachable := words.unreachable_words(vocabulary, lower_case, normalization, strips):
        logger.warning(
            f"{config.vocab_file}: {len(unreachable)} whole words of it, such as {', '.join(unreachable[:5])}, never "
            f"occur with --normalization={normalization} --lower_case={str(lower_case).lower()} "
            f"--strip_accents={str(strips).lower()}, which change or split them; use the flags that the vocabulary was "
            "made with"
        )
    model = None
    if normalization == NORMALIZATION:
        vocabulary, model = with_added(vocabulary, os.path.dirname(config.vocab_file), lower_case, strips)
    return _tokenizer(config, vocabulary, model, strips)


def _recorded_beside(vocab_file: str) -> bool | None:
    """Returns what the tokenizer's settings or the manifest beside a vocabulary say of accents; None: nothing."""
    folder = os.path.dirname(vocab_file)
    for name in (SETTINGS, manifest.NAME):
        if content := read_object(folder, name):
            recorded = content.get("strip_accents")
            if not isinstance(recorded, bool | None):
                fault = f"strip_accents is {strict_json.shown(recorded)}, no boolean"
                raise DataError(f"{os.path.join(folder, name)}: {fault}; correct it, or give --strip_accents")
            return recorded
    return None


def learn(objective: PrepareObjective, spool: Spool, workers: Workers) -> Tokenizer:
    """Learns the tokenizer from the training split; raises DataError if the text is too small for the vocabulary."""
    config = objective.config
    size = config.vocab_size or DEFAULT_VOCAB_SIZE
    if config.tokenizer_type == "bpe":
        with progress("learn vocabulary"):
            tokenizer = _tokenizer(config, *learn_byte_pairs(_texts(objective, spool), size, objective.special_tokens))
    else:
        tokenizer = _learn_from_words(config, spool, size, workers)
    tokens = len(tokenizer.vocabulary)
    if config.tokenizer_type != "wordpiece" and tokens < size:
        logger.warning(f"the vocabulary has {tokens} tokens, not {size}: the text has too few different words")
    return tokenizer


def _texts(objective: PrepareObjective, spool: Spool) -> Iterator[list[str]]:
    """Yields the texts of training documents, about _LEARNED_CHARACTERS of them at most."""
    left = _LEARNED_CHARACTERS
    for chunk in spool.chunks()[: spool.train_chunks]:
        if left > 0:
            documents = [objective.passages(document.paragraphs) for document in spool.read(chunk)]
            yield from documents
            left -= sum(len(text) for document in documents for text in document)


def _learn_from_words(config: PrepareConfig, spool: Spool, size: int, workers: Workers) -> Tokenizer:
    tasks = [(spool, chunk, config) for chunk in spool.chunks()[: spool.train_chunks]]
    counts: Counter = Counter()
    for part in workers.run("count words", shards.count_chunk, tasks):
        counts.update(part)
        if len(counts) > _DISTINCT_WORDS:
            counts = Counter({word: count for word, count in counts.items() if count > 1})
    strips = _strips(config, counts)
    if strips and config.resolved_normalization == NORMALIZATION:
        counts = words.strip_accents(counts)
    if config.resolved_normalization == "nfkc":
        workers.load("tftrain.tokenizer.tensorflow_text")
    with progress("learn vocabulary") as advance:
        if config.tokenizer_type == "wordpiece":
            vocabulary, model = vocabulary_learner.learn_wordpiece(counts, size, advance), None
            warnings = vocabulary_warnings(counts, vocabulary, size)
        else:
            vocabulary, model = vocabulary_learner.learn_sentencepiece(counts, size, config.resolved_lower_case)
            if config.tokenizer_type in LIBRARY:
                vocabulary, model = pipelines.of_sentencepiece(model, vocabulary_learner.LEARNED, None)
            warnings = joiner_warnings(counts)
    for warning in [*warnings, *lost_scripts(counts, vocabulary)]:
        logger.warning(warning)
    return _tokenizer(config, vocabulary, model, strips)


def _strips(config: PrepareConfig, counts: Counter) -> bool:
    """Whether accents of the words are stripped, by flag or because there are few."""
    if config.strips_accents is not None:
        return config.strips_accents
    characters: Counter = Counter()
    for word, count in counts.items():
        for character in word:
            characters[character] += count
    letters = accents.only_letters(characters)
    if accents.strips(letters):
        return True
    if lost := accents.losses(letters):
        logger.info(
            f"accents are kept (--strip_accents): {lost.total() / letters.total():.2%} of the letters would lose a "
            f"mark, such as {accents.shown(lost)}"
        )
    return False
