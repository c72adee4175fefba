"""Learns a vocabulary from word counts: WordPiece as tensorflow-text's learner does, or a sentencepiece unigram model.

Both learners read only the distinct words and their counts. So the memory depends on the number of distinct words, and
the result does not depend on the number of worker processes.
"""

import io
import math
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import NamedTuple

import sentencepiece

from tftrain.files.errors import DataError
from tftrain.tokenizer.alphabet import Alphabet, choose_alphabet
from tftrain.tokenizer.normalization import LONGEST_WORD
from tftrain.tokenizer.vocabulary import SPECIAL_TOKENS, Vocabulary, check_tokens

_ITERATIONS = 4
_LONGEST_TOKEN = 30
_SLACK = 0.05
# A share of the count of the word whose rank is the size: found with 4,096 to 30,522 tokens of 9 to 28 MB of English.
_FIRST_GUESS = 1.4
# The size is about the threshold to the power of -1 / _ZIPF (Zipf's law).
_ZIPF = 1.4
_PART = 15  # Longer words are cut into parts of this length. Longer pieces are of no use in such words.
_INSIDE = "\0"  # before a part that does not begin a word: normalization deletes it, so no word has it
_SENTENCEPIECE_THREADS = 2  # The rounding of sums depends on their number.
LEARNED = "the learned sentencepiece model"  # in the place of a path, for messages


def learn_wordpiece(counts: Counter, vocab_size: int, progress: Callable[[], None]) -> Vocabulary:
    """Learns a WordPiece vocabulary as tensorflow-text's learner does, which works top-down from whole words.

    The first tokens are the special tokens and the characters that `choose_alphabet` takes, the frequent ones first.
    The others are words and pieces of two characters or more, and the learner finds them. It takes no size but a
    threshold: the minimum count of a token. This function searches for a threshold that gives `vocab_size` tokens or up
    to 5% more, or more if the next threshold would give too few, and drops the rarest of the excess tokens. If the text
    has too few different words, the vocabulary is smaller; `alphabet.vocabulary_warnings` says why. `progress` is
    called after each tested threshold.

    Raises:
        DataError: the text has no words.
    """
    alphabet = choose_alphabet(counts, vocab_size)
    if not alphabet.characters:
        raise DataError("the text has no words to learn a vocabulary from")
    vocabulary = _learn_with(alphabet, counts, vocab_size, progress)
    if len(vocabulary) < vocab_size and len(alphabet.characters) < alphabet.different:
        # There is space for the rare characters too, and for the words that have them.
        vocabulary = _learn_with(choose_alphabet(counts, vocab_size, 1.0), counts, vocab_size, progress)
    return vocabulary


def _learn_with(alphabet: Alphabet, counts: Counter, vocab_size: int, progress: Callable[[], None]) -> Vocabulary:
    first = (*SPECIAL_TOKENS, *alphabet.tokens)
    words = _learner_words(counts, set(alphabet.characters), max(30_000, 4 * vocab_size))
    pieces = _learn_pieces(words, len(first), vocab_size, progress) if words and len(first) < vocab_size else []
    return Vocabulary((*first, *pieces[: vocab_size - len(first)]), "wordpiece")


def _learner_words(counts: Counter, characters: set[str], limit: int) -> list[tuple[str, int]]:
    """Returns the words for the learner and their counts, the frequent ones first.

    A word of more than _LONGEST_TOKEN characters is a clause of a script without spaces, as a rule. It is cut into
    parts. All parts but the first begin with the joint _INSIDE, so that what follows is counted as inside of a word.

    Args:
        characters: words with other characters are left out.
        limit: maximum number of words. The learner holds a piece for each of their characters, in some hundred bytes.
    """
    whole: Counter = Counter()
    for word, count in counts.items():
        if 1 < len(word) <= LONGEST_WORD and characters.issuperset(word):
            parts = [word]
            if len(word) > _LONGEST_TOKEN:
                parts = [_INSIDE * (begin > 0) + word[begin : begin + _PART] for begin in range(0, len(word), _PART)]
            for part in parts:
                whole[part] += count
    return sorted(whole.items(), key=lambda item: (-item[1], item[0]))[:limit]


def _learn_pieces(words: list[tuple[str, int]], taken: int, vocab_size: int, progress: Callable[[], None]) -> list[str]:
    """Returns about vocab_size - taken tokens of two characters or more, or a few more, the most frequent ones first.

    Args:
        words: the learner's words and their counts, the most frequent one first.
        taken: number of tokens that the vocabulary has already.
    """
    # A threshold gives as many tokens as words reach it, and pieces of words that are no words.
    guess = _FIRST_GUESS * words[min(vocab_size, len(words)) - 1][1]
    threshold = int(guess) if guess < 4 else round(guess)  # One less gives far more tokens then, which are of use.
    # No token occurs more often than all characters.
    highest = sum(len(word) * count for word, count in words) + 1
    enough, too_few = _Trial(0, 0, []), _Trial(highest, 0, [])
    while too_few.threshold - enough.threshold > 1:
        threshold = min(max(threshold, enough.threshold + 1), too_few.threshold - 1)
        tokens = learn_with_threshold(words, threshold)
        pieces = [token for token in tokens if len(token.removeprefix("##")) > 1 and _INSIDE not in token]
        trial = _Trial(threshold, taken + len(pieces), pieces)
        progress()
        if trial.size >= vocab_size:
            enough = trial
            of_next = trial.size * (1 + 1 / threshold) ** (-1 / _ZIPF)
            if trial.size <= vocab_size * (1 + _SLACK) or (threshold > 1 and of_next < vocab_size * (1 - _SLACK)):
                break
        else:
            too_few = trial
        threshold = _next_threshold(trial, enough, too_few, vocab_size * (1 + _SLACK / 2))
    return enough.pieces or too_few.pieces


def learn_with_threshold(words: list[tuple[str, int]], threshold: int) -> list[str]:
    """Returns the tokens of tensorflow-text's `learn_with_thresh`, the most frequent ones first.

    In each of its iterations, that function counts the pieces that begin where a token of the last iteration does, and
    subtracts from a piece's count those of all longer pieces that begin with it. What is left is how often the piece
    ends a word, and only this is counted here: a piece for each beginning, and not one for each beginning and end.
    """
    characters = sorted({character for word, _ in words for character in word})
    tokens: dict[str, int] = {}
    for iteration in range(_ITERATIONS):
        counts: defaultdict[str, int] = defaultdict(int)
        for word, count in words:
            for begin in _begins(word, tokens) if iteration else range(len(word)):
                counts["##" * (begin > 0) + word[begin:]] += count
        tokens = dict.fromkeys([*characters, *(f"##{character}" for character in characters)], 1)
        tokens.update((piece, count) for piece, count in counts.items() if count >= threshold)
    return sorted(tokens, key=lambda token: (-tokens[token], token))


def _begins(word: str, tokens: dict[str, int]) -> list[int]:
    """Returns where the tokens of a word begin, each the longest one that fits."""
    begins, begin, joiner = [], 0, ""
    while begin < len(word):
        begins.append(begin)
        begin = next(end for end in range(len(word), begin, -1) if joiner + word[begin:end] in tokens)
        joiner = "##"
    return begins


class _Trial(NamedTuple):
    """A threshold, the size of its vocabulary (0: not tested), and its tokens of two characters or more."""

    threshold: int
    size: int
    pieces: list[str]


def _next_threshold(last: _Trial, enough: _Trial, too_few: _Trial, size: float) -> int:
    if enough.size and too_few.size:
        span = math.log(too_few.threshold / enough.threshold) / math.log(enough.size / too_few.size)
        return round(enough.threshold * (enough.size / size) ** span)
    return round(last.threshold * (last.size / size) ** _ZIPF)


def learn_sentencepiece(counts: Counter, vocab_size: int, lower_case: bool) -> tuple[Vocabulary, bytes]:
    """Trains a sentencepiece unigram model (Kudo 2018, arXiv 1804.10959) of words that are separated by spaces.

    Returns:
        The vocabulary and the serialized model, which contains no path.

    Raises:
        DataError: the text is too small for so many pieces.
    """
    words = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    model, names = io.BytesIO(), ("pad", "unk", "bos", "eos")
    ids = {f"{name}_id": number for number, name in enumerate(names)}
    pieces = {f"{name}_piece": piece for name, piece in zip(names, SPECIAL_TOKENS, strict=False)}
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(f"{word}\t{count}" for word, count in words),
            input_format="tsv",
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size,
            **ids,
            **pieces,
            control_symbols=[SPECIAL_TOKENS[-1]],
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
    return sentencepiece_vocabulary(content, LEARNED), content


def sentencepiece_vocabulary(model: bytes, path: str) -> Vocabulary:
    """Returns the vocabulary of a serialized sentencepiece model; `path` is its file, for the error message.

    Raises:
        DataError: the bytes are not a sentencepiece model, or `check_tokens` refuses its pieces.
    """
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
        pieces = tuple(processor.id_to_piece(number) for number in range(processor.get_piece_size()))
    except (RuntimeError, OSError, UnicodeDecodeError) as error:
        expected = "expected the .model file that its trainer writes"
        raise DataError(f"{path}: not a sentencepiece model; {expected}") from error
    check_tokens(pieces, path, "sentencepiece")
    return Vocabulary(pieces, "sentencepiece")
