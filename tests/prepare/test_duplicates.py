"""Duplicate paragraphs: found where a set in memory finds them, however the work is divided."""

import unicodedata

import numpy as np
import pytest

from tftrain.prepare import duplicates
from tftrain.prepare.duplicates import ROW, Buckets, find_duplicates, paragraph_rows
from tftrain.prepare.spool import Spool

LONG = "A paragraph that is long enough to be counted, "


def corpus(seed=0, documents=150):
    rng = np.random.default_rng(seed)
    return [
        (document, [f"{LONG}number {n}" if n % 3 else f"Short {n}" for n in rng.integers(0, 400, 6)])
        for document in range(documents)
    ]


def expected(numbered):
    """Returns the kept and the dropped paragraphs of each document, by brute force."""
    seen, found = set(), {}
    for document, paragraphs in numbered:
        kept, dropped = [], []
        for paragraph in paragraphs:
            key = paragraph.casefold()
            (dropped if key in seen else kept).append(paragraph)
            if len(key.encode()) >= duplicates.MIN_BYTES:
                seen.add(key)
        found[document] = kept, dropped
    return found


def divided(tmp_path, numbered, buckets=1, parts=1):
    """Returns what `Spool.read` makes of a corpus that several workers read."""
    for name in ("spool", "index"):
        (tmp_path / name).mkdir()
    spool = Spool(str(tmp_path / "spool"), 1, 0.2, 3, 2, Buckets(str(tmp_path / "index"), buckets, ROW))
    for part in reversed(range(parts)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("os.getpid", lambda part=part: part)
            spool.add((*entry, None) for entry in numbered[part::parts])
    folders = [spool.chunk_folder(chunk) for chunk in spool.chunks()]
    count = sum(find_duplicates(spool.index, bucket, folders) for bucket in range(buckets))
    return count, {chunk: spool.read(chunk) for chunk in spool.chunks()}, spool


@pytest.mark.parametrize(("buckets", "parts"), [(1, 1), (7, 1), (3, 4)])
def test_the_first_place_in_the_corpus_is_kept(tmp_path, buckets, parts):
    numbered = corpus()
    count, chunks, spool = divided(tmp_path, numbered, buckets, parts)
    truth = expected(numbered)
    assert count == sum(len(dropped) for _, dropped in truth.values()) > 100
    for chunk, documents in chunks.items():
        own = [truth[document] for document, _ in numbered if spool.assign(f"0 {document}") == chunk]
        assert [(document.paragraphs, document.duplicates) for document in documents] == own


def test_case_and_spaces_do_not_matter_and_short_paragraphs_stay(tmp_path):
    text = "été naïve façade élève garçon Noël château forêt"
    documents = ["Yes.", LONG], ["Yes.", LONG.upper()], [text], [unicodedata.normalize("NFD", text)]
    documents += ["é" * 16, "x" * 31], ["é" * 16, "x" * 31]
    count, chunks, _ = divided(tmp_path, list(enumerate(documents)))
    assert count == 3
    kept = [paragraph for documents in chunks.values() for document in documents for paragraph in document.paragraphs]
    assert sorted(kept) == sorted(["Yes.", LONG, "Yes.", text, "é" * 16, "x" * 31, "x" * 31])


def test_hashes_that_share_a_half_are_not_equal(tmp_path, monkeypatch):
    class Digest:
        def __init__(self, text, digest_size):
            self._text = text

        def digest(self):
            return bytes(8) + len(self._text).to_bytes(8, "little")

    monkeypatch.setattr(duplicates.hashlib, "blake2b", Digest)
    (tmp_path / "index").mkdir()
    (tmp_path / "chunk").mkdir()
    index = Buckets(str(tmp_path / "index"), 1, ROW)
    for document, size in enumerate((50, 60, 50, 70, 60)):
        index.append({0: next(paragraph_rows(document, ["x" * size], 0))[1]})
    assert find_duplicates(index, 0, [str(tmp_path / "chunk")]) == 2
    assert duplicates.read_duplicates(str(tmp_path / "chunk")) == {2: {0}, 4: {0}}
