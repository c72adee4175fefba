"""Learns a vocabulary from word counts: WordPiece with tensorflow-text's learner, or a sentencepiece unigram model.

Both learners read only the distinct words and their counts. So the memory depends on the number of distinct words, and
the result does not depend on the number of worker processes.
"""

import io
import math
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import sentencepiece
from tensorflow_text.tools.wordpiece_vocab import wordpiece_tokenizer_learner_lib as learner

from tftrain.data.errors import DataError
from tftrain.data.vocabulary import SPECIAL_TOKENS, Vocabulary, check_tokens

_ITERATIONS = 4
_LONGEST_TOKEN = 30
_SLACK = 0.05
# Fixed, because the rounding of sums depends on the number of threads.
_SENTENCEPIECE_THREADS = 2


def learn_wordpiece(counts: Counter, vocab_size: int, progress: Callable[[], None]) -> Vocabulary:
    """Learns a WordPiece vocabulary with tensorflow-text's learner, which works top-down from whole words.

    The learner takes no size but a threshold: the minimum count of a token. This function searches for a threshold that
    gives `vocab_size` tokens or up to 5% more, and drops the rarest of the excess tokens. If the text has too few
    distinct words, the vocabulary is smaller.

    Args:
        counts: count of each word.
        vocab_size: requested number of tokens, including the special tokens.
        progress: called after each tested threshold.

    Raises:
        DataError: the text has no words.
    """
    # At most an eighth of the tokens are single characters: the learner adds each one with and without "##".
    alphabet = max(26, vocab_size // 16)
    words = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    words = learner.get_input_words(words, list(SPECIAL_TOKENS), _LONGEST_TOKEN)
    words = learner.filter_input_words(words, learner.get_allowed_chars(words, alphabet), max(30_000, 4 * vocab_size))
    if not words:
        raise DataError("the text has no words to learn a vocabulary from")
    params = learner.Params(
        upper_thresh=None,
        lower_thresh=None,
        num_iterations=_ITERATIONS,
        max_input_tokens=-1,
        max_token_length=_LONGEST_TOKEN,
        max_unique_chars=alphabet,
        vocab_size=vocab_size,
        slack_ratio=0,
        include_joiner_token=True,
        joiner="##",
        reserved_tokens=list(SPECIAL_TOKENS),
    )
    # A threshold gives about as many tokens as words reach it. The first guess is the count of the word at that rank.
    threshold = words[min(vocab_size, len(words)) - 1][1]
    enough, too_few = _Trial(0, []), _Trial(words[0][1] + 1, [])
    while too_few.threshold - enough.threshold > 1:
        threshold = min(max(threshold, enough.threshold + 1), too_few.threshold - 1)
        trial = _Trial(threshold, learner.learn_with_thresh(words, threshold, params))
        progress()
        if len(trial.tokens) >= vocab_size:
            enough = trial
            if len(trial.tokens) <= vocab_size * (1 + _SLACK):
                break
        else:
            too_few = trial
        threshold = _next_threshold(trial, enough, too_few, vocab_size * (1 + _SLACK / 2))
    return Vocabulary(tuple(_drop_rarest(enough.tokens or too_few.tokens, vocab_size)), "wordpiece")


class _Trial(NamedTuple):
    """A threshold and the tokens that it gives. The list is empty if the threshold was not tested."""

    threshold: int
    tokens: list[str]


def _next_threshold(last: _Trial, enough: _Trial, too_few: _Trial, size: float) -> int:
    """Estimates the threshold for a size. The size is about a power of the threshold (Zipf's law)."""
    if enough.tokens and too_few.tokens:
        span = math.log(too_few.threshold / enough.threshold) / math.log(len(enough.tokens) / len(too_few.tokens))
        return round(enough.threshold * (len(enough.tokens) / size) ** span)
    return round(last.threshold * (len(last.tokens) / size) ** 1.4)


def _drop_rarest(tokens: list[str], vocab_size: int) -> list[str]:
    """Drops the excess tokens from the end of the list, which has the rarest tokens.

    Special tokens and single characters are not dropped. Any word can be spelled with single characters.
    """
    excess, remaining = len(tokens) - vocab_size, []
    for token in reversed(tokens):
        if excess > 0 and len(token.removeprefix("##")) > 1 and token not in SPECIAL_TOKENS:
            excess -= 1
        else:
            remaining.append(token)
    return remaining[::-1]


def learn_sentencepiece(counts: Counter, vocab_size: int, lower_case: bool) -> tuple[Vocabulary, bytes]:
    """Trains a sentencepiece unigram model (Kudo 2018, arXiv 1804.10959).

    Args:
        counts: count of each word; words are separated by spaces.
        vocab_size: requested number of pieces, including the special tokens.
        lower_case: whether the model folds case.

    Returns:
        The vocabulary and the serialized model, which contains no path.

    Raises:
        DataError: the text is too small for so many pieces.
    """
    words = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    model = io.BytesIO()
    pad, unk, cls, sep, mask = SPECIAL_TOKENS
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(f"{word}\t{count}" for word, count in words),
            input_format="tsv",
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size,
            pad_id=0,
            unk_id=1,
            bos_id=2,
            eos_id=3,
            pad_piece=pad,
            unk_piece=unk,
            bos_piece=cls,
            eos_piece=sep,
            control_symbols=[mask],
            character_coverage=0.9995,
            hard_vocab_limit=False,
            num_threads=_SENTENCEPIECE_THREADS,
            normalization_rule_name="nmt_nfkc_cf" if lower_case else "nmt_nfkc",
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        reason = str(error).strip().split("\n")[-1]
        raise DataError(
            f"--vocab_size={vocab_size}: sentencepiece cannot learn so many pieces from {len(counts)} different "
            f"words ({reason}); use a smaller --vocab_size or more text"
        ) from error
    content = model.getvalue()
    return sentencepiece_vocabulary(content, "the learned sentencepiece model"), content


def sentencepiece_vocabulary(model: bytes, path: str) -> Vocabulary:
    """Returns the vocabulary of a sentencepiece model.

    Args:
        model: the serialized model.
        path: the file of the model, for the error message.

    Raises:
        DataError: the bytes are not a sentencepiece model, or `check_tokens` refuses its pieces.
    """
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
        pieces = tuple(processor.id_to_piece(number) for number in range(processor.get_piece_size()))
    except (RuntimeError, OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path}: not a sentencepiece model; expected the .model file that its trainer writes"
        ) from error
    check_tokens(pieces, path)
    return Vocabulary(pieces, "sentencepiece")
