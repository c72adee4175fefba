"""Finds the documents that are nearly the same as an earlier one of the corpus.

Broder, "On the resemblance and containment of documents" (1997): the resemblance of two documents is the number of
runs of SHINGLE words that both have, divided by that of the runs that one of them has. MinHash gives each document
numbers; two documents share each of them with the probability of their resemblance. Those that share all ROWS numbers
of one of BANDS bands are near duplicates: of resemblance 0.5 with a probability of 5%, of 0.7 with 56%, of 0.8 with
92%, and of 0.9 with 99.96%: 1 - (1 - resemblance ** ROWS) ** BANDS. Near duplicates of near duplicates are one group,
of which the first document in the corpus stays.

As for paragraphs (`tftrain.prepare.duplicates`), each worker appends rows, here one for each band, to buckets on disk,
whose pairs are joined one bucket after the other. So memory grows only with the near duplicates, 16 bytes each.
"""

import functools
import re
import struct
import unicodedata
from collections.abc import Iterator

import numpy as np
import xxhash

from tftrain.prepare.duplicates import MIN_BYTES, Buckets

SHINGLE, BANDS, ROWS = 5, 14, 8
DOCUMENT_BYTES = 16 * BANDS  # its rows
# An ideograph or a kana is a word of its own.
_WORD = re.compile("[\u3040-\u30ff\u3400-\u9fff]|[^\\W\u3040-\u30ff\u3400-\u9fff]+")
ROW, _HASH_AND_DOCUMENT = np.dtype([("hash", "<u8"), ("document", "<u8")]), struct.Struct("<2Q")
_AT_ONCE = 4096


def band_rows(document: int, paragraphs: list[str], _chunk: int) -> Iterator[tuple[int, bytes]]:
    """Yields hash and row of each band of a document, if it has at least MIN_BYTES bytes; see `paragraph_rows`."""
    text = unicodedata.normalize("NFC", " ".join(paragraphs)).casefold()
    words = _WORD.findall(text)
    if len(text.encode()) < MIN_BYTES or not words:
        return
    runs = {" ".join(words[begin : begin + SHINGLE]) for begin in range(max(1, len(words) - SHINGLE + 1))}
    runs, sketch = [run.encode() for run in runs], _empty_sketch().copy()
    for begin in range(0, len(runs), _AT_ONCE):
        sketch.update_batch(runs[begin : begin + _AT_ONCE])
    for band, numbers in enumerate(sketch.hashvalues.reshape(BANDS, ROWS)):
        digest = xxhash.xxh3_64_intdigest(numbers.tobytes(), seed=band)
        yield digest, _HASH_AND_DOCUMENT.pack(digest, document)


@functools.cache
def _empty_sketch():
    from datasketch import MinHash

    return MinHash(BANDS * ROWS, seed=1, hashfunc=xxhash.xxh32_intdigest, scheme="affine32")


def find_pairs(index: Buckets, bucket: int) -> np.ndarray:
    """Returns pairs of documents of a bucket that share a band, uint64 [n, 2].

    Together, the pairs of all buckets join the documents of each group, see `joined`.
    """
    rows = index.read(bucket)
    rows = rows[np.lexsort((rows["document"], rows["hash"]))]
    hashes, documents = rows["hash"], rows["document"]
    return np.unique(np.stack([documents[:-1], documents[1:]], axis=1)[hashes[1:] == hashes[:-1]], axis=0)


def joined(pairs: np.ndarray) -> np.ndarray:
    """Returns the groups that pairs of documents join: each document but the first, ascending, after the first."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    documents, numbers = np.unique(pairs, return_inverse=True)
    ends = numbers.reshape(-1, 2).T
    graph = coo_array((np.ones(ends.shape[1], bool), tuple(ends)), shape=(len(documents), len(documents)))
    _, groups = connected_components(graph, directed=False)
    firsts = documents[np.unique(groups, return_index=True)[1]][groups]
    return np.stack([firsts, documents], axis=1)[documents != firsts]
