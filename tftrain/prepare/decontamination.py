"""Held-out text that training has too: it is found by windows of N tokens, and cut out.

The rule is that of GPT-3 (arXiv 2005.14165, appendix C, with N = 13 words): a window of N tokens of a held-out document
that occurs anywhere in training is removed. What is left of the document on both sides are documents of their own, and
those with fewer than N tokens are removed too.

Windows are compared by 64-bit hashes. Those of the held-out split are in a file that workers map into memory, 8 bytes a
token; training is read a chunk at a time. The result does not depend on the number of workers.
"""

import numpy as np

from tftrain.prepare.duplicates import among
from tftrain.prepare.objective import TokenizedText

_SEED = 13


def window_hashes(text: TokenizedText, size: int, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first position and the hash of each window of `size` tokens inside a document, int64 and uint64."""
    count = len(text.tokens) - size + 1
    if count <= 0:
        return np.zeros(0, np.int64), np.zeros(0, np.uint64)
    rng = np.random.default_rng(_SEED)
    of_token = rng.integers(0, 2**64, vocab_size, np.uint64)[text.tokens]
    hashes = np.zeros(count, np.uint64)
    for position in range(size):
        hashes += of_token[position : position + count] * (rng.integers(0, 2**64, dtype=np.uint64) | np.uint64(1))
    borders = text.documents[1:-1]
    crosses = _covered(np.maximum(borders - size + 1, 0), borders, len(text.tokens))[:count]
    places = np.flatnonzero(~crosses)
    return places, hashes[places]


def cut(
    text: TokenizedText, size: int, vocab_size: int, of_training: np.ndarray
) -> tuple[TokenizedText, dict[str, int]]:
    """Removes the windows of `size` tokens that training has; `of_training` are their hashes, ascending.

    Returns the text, and the counts of windows by their names in `Accounting`.
    """
    places, hashes = window_hashes(text, size, vocab_size)
    shared = places[among(hashes, of_training)]
    rest = _without(text, _covered(shared, shared + size, len(text.tokens)), size) if len(shared) else text
    _, hashes = window_hashes(rest, size, vocab_size)
    left = int(among(hashes, of_training).sum())
    return rest, {"windows": len(places), "shared_windows": len(shared), "shared_windows_left": left}


def _covered(begins: np.ndarray, ends: np.ndarray, length: int) -> np.ndarray:
    """Returns which positions are in one of the ranges [begins, ends), bool [length]."""
    steps = np.bincount(begins, minlength=length + 1) - np.bincount(ends, minlength=length + 1)
    return np.cumsum(steps[:length]) > 0


def _without(text: TokenizedText, removed: np.ndarray, size: int) -> TokenizedText:
    """Returns a text without the removed tokens, divided where they were, and without short rests."""
    borders = np.unique(np.concatenate([text.documents, np.flatnonzero(np.diff(removed)) + 1]))
    begins, ends = borders[:-1], borders[1:]
    whole = np.isin(begins, text.documents) & np.isin(ends, text.documents)
    stays = ~removed[begins] & (whole | (ends - begins >= size))
    keep = np.repeat(stays, ends - begins)
    moved = np.cumsum(keep) - keep  # the position of each token that stays
    starts = moved[begins[stays]]
    passages = text.passages[:-1]
    total = int(keep.sum())
    return TokenizedText(
        text.tokens[keep],
        np.append(np.union1d(moved[passages[keep[passages]]], starts), total),
        np.append(starts, total),
    )
