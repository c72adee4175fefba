"""Finds the characters and words of a text that its vocabulary lacks."""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from tftrain.input.tokenizer_model import Tokenize

# The count is for a message, so a sample of the text is enough.
_SENTENCES, _WORDS = 500, 100
_WORD = re.compile(r"\w+|[^\w\s]")


def count_unknown_words(
    sentences: Sequence[str], ids: Sequence[np.ndarray], tokenize: Tokenize, unknown: int
) -> Counter:
    """Returns the counts of the most frequent characters and words that become [UNK], the token `unknown`.

    The first sentences that contain [UNK] are searched. A word counts as the characters in it that are [UNK] alone, or
    as a whole if it has none.
    """

    def lost(texts: list[str]) -> list[str]:
        return [text for text, tokens in zip(texts, tokenize(texts), strict=True) if unknown in tokens]

    ends = np.cumsum([len(tokens) for tokens in ids])
    places = np.flatnonzero(np.concatenate([np.zeros(0, np.int32), *ids]) == unknown)
    sample = [sentences[number] for number in np.unique(np.searchsorted(ends, places, side="right"))[:_SENTENCES]]
    counts = Counter(word for sentence in sample for word in _WORD.findall(sentence))
    words = lost(list(counts))
    characters = set(lost(sorted(set("".join(words)))))
    found: Counter = Counter()
    for word in words:
        for part in [character for character in word if character in characters] or [word]:
            found[part] += counts[word]
    return Counter(dict(sorted(found.items(), key=lambda item: (-item[1], item[0]))[:_WORDS]))
