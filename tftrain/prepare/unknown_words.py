"""Finds the characters and words of a text that its vocabulary lacks."""

import re
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

# The count is for a message, so a sample of the text is enough.
_SENTENCES, _WORDS = 500, 100
_WORD = re.compile(r"\w+|[^\w\s]")

_Tokenize = Callable[[Sequence[str]], list[np.ndarray]]


def count_unknown_words(
    sentences: Sequence[str], ids: Sequence[np.ndarray], tokenize: _Tokenize, unknown: int
) -> Counter:
    """Counts what becomes [UNK] in the first sentences that contain [UNK].

    A word counts as the characters in it that are [UNK] alone, or as a whole if it has none.

    Args:
        sentences: a text.
        ids: token ids of each sentence.
        tokenize: returns the token ids of each text of a list.
        unknown: id of [UNK].

    Returns:
        The count of the most frequent characters and words.
    """
    ends = np.cumsum([len(tokens) for tokens in ids])
    places = np.flatnonzero(np.concatenate([np.zeros(0, np.int32), *ids]) == unknown)
    sample = [sentences[number] for number in np.unique(np.searchsorted(ends, places, side="right"))[:_SENTENCES]]
    counts = Counter(word for sentence in sample for word in _WORD.findall(sentence))
    words = _unknown(list(counts), tokenize, unknown)
    characters = set(_unknown(sorted({character for word in words for character in word}), tokenize, unknown))
    found: Counter = Counter()
    for word in words:
        for part in [character for character in word if character in characters] or [word]:
            found[part] += counts[word]
    return Counter(dict(sorted(found.items(), key=lambda item: (-item[1], item[0]))[:_WORDS]))


def _unknown(texts: list[str], tokenize: _Tokenize, unknown: int) -> list[str]:
    return [text for text, tokens in zip(texts, tokenize(texts), strict=True) if unknown in tokens]
