"""Near duplicates: found with the probability of the formula, in groups, however the work is divided."""

import itertools
from collections import defaultdict

import numpy as np
import pyarrow.parquet
import pytest

from tests.kit import corpora
from tftrain.files.errors import DataError
from tftrain.prepare import corpus_chunks, duplicates, near_duplicates
from tftrain.prepare.duplicates import Buckets
from tftrain.prepare.near_duplicates import BANDS, ROWS, SHINGLE, band_rows, find_pairs, joined
from tftrain.prepare.preparation import prepare
from tftrain.prepare.spool import Spool
from tftrain.prepare.workers import Workers


def words(rng, count):
    return [f"w{number}" for number in rng.integers(0, 10_000, count)]


def changed(rng, text, share):
    """Returns words with so many of them replaced."""
    return [f"x{rng.integers(10_000)}" if rng.random() < share else word for word in text]


def resemblance(one, other):
    sets = [{tuple(text[begin : begin + SHINGLE]) for begin in range(len(text) - SHINGLE + 1)} for text in (one, other)]
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


def pairs_of(tmp_path, texts, buckets=1):
    """Returns the pairs that share a band, as numbers of texts."""
    index, rows = Buckets(str(tmp_path / "bands"), buckets, near_duplicates.ROW), defaultdict(bytes)
    for number, text in enumerate(texts):
        for digest, row in band_rows(number, [text], 0):
            rows[digest % buckets] += row
    index.append(rows)
    return np.concatenate([find_pairs(index, bucket) for bucket in range(buckets)])


def test_pairs_are_found_with_the_probability_of_the_formula(tmp_path):
    rng, expected, texts, likeness = np.random.default_rng(3), [], [], []
    for _ in range(1000):
        text = words(rng, 200)
        other = changed(rng, text, rng.uniform(0, 0.12))
        texts += [" ".join(text), " ".join(other)]
        likeness.append(resemblance(text, other))
        expected.append(1 - (1 - likeness[-1] ** ROWS) ** BANDS)
    pairs = pairs_of(tmp_path, texts, buckets=3)
    assert ((pairs[:, 0] // 2) == (pairs[:, 1] // 2)).all()  # No two other documents are alike.
    hits = np.isin(np.arange(1000), pairs[:, 0] // 2)
    likeness, expected = np.array(likeness), np.array(expected)
    assert hits[likeness > 0.95].all()
    assert not hits[likeness < 0.25].any()
    for low, high in itertools.pairwise((0.25, 0.5, 0.65, 0.8, 0.95)):
        inside = (likeness >= low) & (likeness < high)
        mean, count = expected[inside].mean(), inside.sum()
        assert count > 80
        assert abs(hits[inside].mean() - mean) < 4 * np.sqrt(max(mean * (1 - mean), 0.01) / count)


def test_the_first_document_of_each_group_stays():
    rng = np.random.default_rng(5)
    pairs = rng.integers(0, 300, [150, 2]).astype(np.uint64)
    groups = {number: {number} for number in range(300)}
    for one, other in pairs.tolist():
        both = groups[one] | groups[other]
        for number in both:
            groups[number] = both
    later = [number for number in range(300) if number > min(groups[number])]
    found = joined(pairs)
    assert found[:, 1].tolist() == later
    assert all(first == min(groups[number]) for first, number in found.tolist())
    some = joined(np.concatenate([joined(pairs[:70]), pairs[70:]]))
    np.testing.assert_array_equal(some, found)
    assert 50 < len(later) < 200
    assert joined(np.zeros([0, 2], np.uint64)).shape == (0, 2)


def test_a_document_in_a_script_without_spaces_or_of_few_words_is_found(tmp_path):
    chinese = "今天天气很好我们一起去公园散步然后回家吃饭看书睡觉明天再继续工作"
    texts = [chinese, chinese.replace("明天", "后天"), chinese[::-1], "Internationalisation! notwithstanding?"]
    texts += ["internationalisation notwithstanding", "Yes.", "Yes.", "?" * 40, "?" * 40]
    assert {tuple(pair) for pair in pairs_of(tmp_path, texts).tolist()} == {(0, 1), (3, 4)}


def test_a_long_document_has_the_numbers_of_all_its_words(tmp_path):
    text = words(np.random.default_rng(1), 20_000)
    texts = [" ".join(text), " ".join([*text[:-1], "other"]), " ".join(text[:4096])]
    assert {tuple(pair) for pair in pairs_of(tmp_path, texts).tolist()} == {(0, 1)}


@pytest.mark.parametrize(("buckets", "parts"), [(1, 1), (5, 3)])
def test_a_paragraph_that_only_a_near_duplicate_had_before_stays(tmp_path, buckets, parts):
    rng = np.random.default_rng(0)
    first, other = words(rng, 300), " ".join(words(rng, 300))
    first, again = " ".join(first), " ".join(changed(rng, first, 0.002))
    own, last = " ".join(words(rng, 12)), " ".join(words(rng, 40))
    numbered = list(enumerate([[first], [again, own], [other, own], [other], [own, last]]))
    for name in ("spool", "index", "bands"):
        (tmp_path / name).mkdir()
    kinds = {"index": duplicates.ROW, "bands": near_duplicates.ROW}
    indices = [Buckets(str(tmp_path / name), buckets, row) for name, row in kinds.items()]
    spool = Spool(str(tmp_path / "spool"), 1, 0.2, 3, 2, *indices)
    for part in reversed(range(parts)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("os.getpid", lambda part=part: part)
            spool.add((*entry, None) for entry in numbered[part::parts])
    corpus_chunks._find_duplicates(spool, Workers(1))
    documents = [document for chunk in spool.chunks() for document in spool.read(chunk)]
    kept = sorted(paragraph for document in documents for paragraph in document.paragraphs)
    assert kept == sorted([first, other, own, last])
    near = [document.near_duplicates for document in documents if document.near_duplicates]
    assert sorted(near) == sorted([[again, own], [other]])
    assert [document.duplicates for document in documents if document.duplicates] == [[own]]


@pytest.mark.slow
def test_what_is_dropped_is_counted(prepare_config, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(corpus_chunks, "_TASK_BYTES", 1000)
    rng, documents = np.random.default_rng(2), corpora.text(60, seed=1).split("\n\n")
    copies = [" ".join(changed(rng, document.split(), 0.003)) for document in documents]
    for number, text in enumerate((documents, copies)):
        (tmp_path / f"text{number}").write_text("\n\n".join(text))
    changes = {"input_files": (str(tmp_path / "text*"),), "heldout_window": 5}
    configs = (prepare_config(tmp_path / kind, deduplicate=kind, **changes) for kind in ("near", "paragraph"))
    near, paragraph = map(prepare, configs)
    assert near.tokens_in_examples + sum(near.tokens_dropped.values()) == near.tokens_read
    assert near.tokens_read == paragraph.tokens_read
    assert 0.4 < near.tokens_dropped["near_duplicate_document"] / near.tokens_read < 0.51
    assert "near_duplicate_document" not in paragraph.tokens_dropped
    assert "dropped: near duplicate document" in capsys.readouterr().out


def test_a_split_that_near_duplicates_leave_empty_is_refused_with_the_flag(prepare_config, tmp_path):
    text = " ".join(words(np.random.default_rng(0), 300))
    text = "\n\n".join(f"{text} {number}" for number in range(60))
    with pytest.raises(DataError, match=r"near duplicates: --deduplicate=paragraph keeps them"):
        prepare(prepare_config(tmp_path / "out", text, deduplicate="near"))


@pytest.mark.parametrize("kind", ["paragraph", "near"])
def test_a_table_without_row_groups_has_no_document(prepare_config, tmp_path, kind):
    path = tmp_path / "empty.parquet"
    pyarrow.parquet.ParquetWriter(path, pyarrow.schema([("text", pyarrow.string())])).close()
    with pytest.raises(DataError, match="no document in 1 files; expected text"):
        prepare(prepare_config(tmp_path / "out", input_files=str(path), deduplicate=kind))


def test_a_missing_package_is_named(monkeypatch, prepare_config, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (problem,) = prepare_config(tmp_path / "out", deduplicate="near").problems()
    assert problem.flag == "deduplicate"
    assert "pip install 'tftrain[near]'" in problem.expected
