"""The single characters of a WordPiece vocabulary.

A word with a character that the vocabulary lacks is [UNK] as a whole. So the characters that make up COVERAGE of the
text, and spell COVERAGE of its words, come first. Words get the places that are left. A character has up to two tokens:
"c" where it begins a word, and "##c" inside a word. Only those that occur are added. An ideograph or a punctuation mark
is a word of its own, so it has one.
"""

import bisect
import itertools
import unicodedata
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from tftrain.tokenizer.normalization import LONGEST_WORD
from tftrain.tokenizer.vocabulary import SPECIAL_TOKENS, Vocabulary

COVERAGE = 0.9995
SHARE_OF_RARE = 1 / 8  # Rarer characters are added up to this share of the vocabulary.


class Alphabet(NamedTuple):
    """The characters chosen for a vocabulary, the most frequent one first, and their tokens in the same order."""

    characters: tuple[str, ...]
    tokens: tuple[str, ...]
    different: int  # number of different characters of the text
    share: float  # share of the text, in characters, that the chosen ones make up
    # The smallest vocabulary, with special tokens, that holds the characters of COVERAGE of the text and of its words.
    vocab_size: int


def choose_alphabet(counts: Counter, vocab_size: int, share_of_rare: float = SHARE_OF_RARE) -> Alphabet:
    """Chooses the most frequent characters of a text.

    Args:
        counts: count of each word. Words of more than LONGEST_WORD characters are left out: they are [UNK] anyway.
        vocab_size: tokens of the vocabulary, including the special tokens. It limits the number of characters.
        share_of_rare: characters beyond COVERAGE are added up to this share of the vocabulary.
    """
    begins, inside = Counter(), Counter()
    for word, count in counts.items():
        if len(word) <= LONGEST_WORD:
            begins[word[0]] += count
            for character in word[1:]:
                inside[character] += count
    both = begins + inside
    ranked = sorted(both, key=lambda character: (-both[character], character))
    required = _required(counts, both, ranked)
    chosen, tokens, needed = 0, [], len(SPECIAL_TOKENS)
    for number, character in enumerate(ranked):
        forms = [character] * (character in begins) + [f"##{character}"] * (character in inside)
        if number < required:
            needed += len(forms)
        limit = vocab_size - len(SPECIAL_TOKENS)
        if number >= required:
            limit = min(limit, vocab_size * share_of_rare)
        if chosen == number and len(tokens) + len(forms) <= limit:
            chosen += 1
            tokens += forms
    characters = tuple(ranked[:chosen])
    share = sum(both[character] for character in characters) / max(both.total(), 1)
    return Alphabet(characters, tuple(tokens), len(ranked), share, needed)


def _required(counts: Counter, characters: Counter, ranked: list[str]) -> int:
    """Returns how many of the ranked characters make up COVERAGE of the text and spell COVERAGE of its words."""
    rank = {character: number for number, character in enumerate(ranked)}
    # A word is lost if its rarest character is.
    words = [0] * len(ranked)
    for word, count in counts.items():
        if len(word) <= LONGEST_WORD:
            words[max(map(rank.__getitem__, word))] += count
    return max(_reached(words), _reached([characters[character] for character in ranked]))


def _reached(shares: list[int]) -> int:
    """Returns the smallest number of first entries whose sum is COVERAGE of all."""
    sums, limit = list(itertools.accumulate(shares)), COVERAGE * sum(shares)
    return bisect.bisect_left(sums, limit) + 1 if sums else 0


def lost_scripts(counts: Counter, vocabulary: Vocabulary) -> Iterator[str]:
    """Returns a warning that names the scripts most of whose words have a character that a learned vocabulary lacks."""
    known = set().union(*vocabulary.tokens[len(SPECIAL_TOKENS) :])
    words, lost, example = Counter(), Counter(), {}
    for word, count in counts.items():
        script = unicodedata.name(next(filter(str.isalpha, word), "?"), "?").partition(" ")[0]
        if len(word) <= LONGEST_WORD:
            words[script] += count
            plain = word if vocabulary.tokenizer_type == "wordpiece" else unicodedata.normalize("NFKC", word)
            if not known.issuperset(plain) and not known.issuperset(plain.casefold()):
                lost[script] += count
                example.setdefault(script, word)
    shown = [
        f"{script.capitalize()} ({count / words[script]:.0%} of {words[script]:,} words, such as {example[script]})"
        for script, count in lost.most_common()
        if 2 * count > words[script]
    ]
    if shown:
        remedy = "use a larger --vocab_size, or --tokenizer_type=bpe, which knows all text"
        yield f"words of rare scripts become [UNK]: {', '.join(shown)}; {remedy}"


def joiner_warnings(counts: Counter) -> Iterator[str]:
    """Returns a warning if words have characters without width, which sentencepiece replaces by a space."""
    if found := sum(count for word, count in counts.items() if "\u200c" in word or "\u200b" in word):
        what = "which --tokenizer_type=sentencepiece replaces by a space; with --tokenizer_type=bpe they stay"
        yield f"{found:,} words have U+200C or U+200B, {what}"


def vocabulary_warnings(counts: Counter, vocabulary: Vocabulary, vocab_size: int) -> Iterator[str]:
    """Returns what a user should know about a learned WordPiece vocabulary: lost characters, and a smaller size."""
    alphabet = choose_alphabet(counts, vocab_size)
    if alphabet.vocab_size > vocab_size:
        yield (
            f"--vocab_size={vocab_size}: the text has {alphabet.different} different characters; the "
            f"{len(alphabet.characters)} in the vocabulary make up {alphabet.share:.2%} of it, and words with "
            f"another one become [UNK]; --vocab_size={alphabet.vocab_size} holds the characters of {COVERAGE:.2%} of "
            "the text, and a larger one also words"
        )
    elif len(vocabulary) < vocab_size:
        words = sum(len(word) > 1 for word in counts)
        yield (
            f"the vocabulary has {len(vocabulary)} tokens, not {vocab_size}: the text has {alphabet.different} "
            f"different characters and {words} different words of two characters or more, and every piece of them is "
            "in it; an ideograph is a word of its own"
        )
