"""Finds the paragraphs that occur more than once in a corpus, with bounded memory.

While the documents are read, each worker appends a row for every paragraph to a bucket on disk. A row has a hash of the
paragraph and its place in the corpus. The hash selects the bucket, so equal paragraphs are in the same bucket. Then
each bucket is sorted alone. All rows of a hash except the first place in the corpus are duplicates. They are written to
files of their chunks. The result does not depend on the number of workers, nor on tasks that run twice.
"""

import hashlib
import os
import struct
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from tftrain.prepare import appended_files

# Shorter paragraphs, such as headings and "Yes.", are never duplicates. In UTF-8, 32 bytes are about 5 English words or
# 10 Chinese characters.
MIN_BYTES = 32
ROW = np.dtype([("hash", "<u8", 2), ("document", "<u8"), ("paragraph", "<u4"), ("chunk", "<u4")])
_PLACE_AND_CHUNK = struct.Struct("<Q2I")
_PLACE = np.dtype([("document", "<u8"), ("paragraph", "<u4")])
BYTES_OF_A_BUCKET = 256 << 20  # Rows have at most as many bytes as their text, and usually a fifth.
_DUPLICATES = "duplicates-"


class Buckets(NamedTuple):
    """Rows of hashes on disk, divided by their hashes: an existing folder, the number of buckets, and a row's type."""

    folder: str
    count: int
    row: np.dtype

    def append(self, rows: Mapping[int, bytes]) -> None:
        """Appends rows, by the numbers of their buckets, to the files of this thread."""
        for bucket, content in rows.items():
            appended_files.append(os.path.join(self.folder, str(bucket)), "", content, self.row.itemsize)

    def read(self, bucket: int) -> np.ndarray:
        """Returns the rows of a bucket, in any order."""
        paths = appended_files.paths(os.path.join(self.folder, str(bucket)), "")
        return np.concatenate([np.zeros(0, self.row), *(np.fromfile(path, self.row) for path in paths)])


def paragraph_rows(document: int, paragraphs: list[str], chunk: int) -> Iterator[tuple[int, bytes]]:
    """Yields hash and row of the paragraphs of a document with at least MIN_BYTES bytes.

    The document's chunk is a number among all chunks.
    """
    for number, paragraph in enumerate(paragraphs):
        text = unicodedata.normalize("NFC", paragraph).casefold().encode()
        if len(text) >= MIN_BYTES:
            digest = hashlib.blake2b(text, digest_size=16).digest()
            yield int.from_bytes(digest[8:], "little"), digest + _PLACE_AND_CHUNK.pack(document, number, chunk)


def among(numbers: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Returns which numbers are among those of an ascending array, bool."""
    if not len(wanted):
        return np.zeros(len(numbers), bool)
    places = np.minimum(np.searchsorted(wanted, numbers), len(wanted) - 1)
    return wanted[places] == numbers


def find_duplicates(index: Buckets, bucket: int, chunk_folders: list[str], left_out: str | None = None) -> int:
    """Writes the places of a bucket's duplicates to the folders of their chunks. Returns the number of duplicates.

    `left_out` is the path of an array of the documents that are left out altogether, ascending.
    """
    rows = index.read(bucket)
    if not len(rows):
        return 0
    # Few paragraphs occur twice, so the second sort has few rows.
    rows = rows[np.argsort(rows["hash"][:, 0])]
    same = rows["hash"][1:, 0] == rows["hash"][:-1, 0]
    rows = rows[np.append(same, False) | np.append(False, same)]
    if left_out:
        rows = rows[~among(rows["document"], np.load(left_out, mmap_mode="r"))]
    keys = (rows["paragraph"], rows["document"], rows["hash"][:, 1], rows["hash"][:, 0])
    rows = rows[np.lexsort(keys)]
    rows = rows[np.append(rows[1:] != rows[:-1], True)[: len(rows)]]  # Once each, also if a task ran twice.
    rows = rows[1:][(rows["hash"][1:] == rows["hash"][:-1]).all(axis=1)]
    for chunk in np.unique(rows["chunk"]):
        places = rows[rows["chunk"] == chunk][list(_PLACE.names)].astype(_PLACE)
        appended_files.append(chunk_folders[chunk], _DUPLICATES, places.tobytes(), _PLACE.itemsize)
    return len(rows)


def read_duplicates(chunk_folder: str) -> dict[int, set[int]]:
    """Returns the numbers of the duplicate paragraphs of a chunk, by the numbers of documents."""
    duplicates: dict[int, set[int]] = defaultdict(set)
    for path in appended_files.paths(chunk_folder, _DUPLICATES):
        for document, paragraph in np.fromfile(path, _PLACE).tolist():
            duplicates[document].add(paragraph)
    return duplicates
