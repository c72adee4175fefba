"""Sentence pairs: their form, their label, and that every token is in one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tftrain.prepare.objective import TokenizedText
from tftrain.prepare.pairs import Pair, make_pairs

LENGTH = 32


def text_of(sizes) -> TokenizedText:
    """Returns documents with sentences of these sizes. Every token is another one."""
    tokens = iter(range(10**9))
    return TokenizedText.join([[np.array([next(tokens) for _ in range(size)]) for size in sizes_] for sizes_ in sizes])


def random_sizes(documents, sentences, longest=12, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(1, longest, rng.integers(*sentences, endpoint=True)).tolist() for _ in range(documents)]


def pairs_of(text, short=0.1, seed=1, length=LENGTH) -> list[Pair]:
    return list(make_pairs(text, length, short, np.random.default_rng(seed)))


def assert_covered(text, pairs):
    """Every token is in a pair, but for documents of one token."""
    found = np.zeros(len(text.tokens), bool)
    for pair in pairs:
        found[pair.first : pair.first_end] = found[pair.second : pair.second_end] = True
    found[text.documents[:-1][np.diff(text.documents) == 1]] = True
    assert found.all()


TEXTS = {
    "ordinary": lambda scale: random_sizes(250 * scale, (5, 40)),
    "documents of two or three sentences": lambda scale: random_sizes(1500 * scale, (2, 3)),
    "documents of one sentence": lambda scale: random_sizes(2000 * scale, (1, 1), longest=20),
    "sentences longer than a sequence": lambda scale: random_sizes(60 * scale, (1, 5), longest=300),
    "no sentence ends": lambda scale: [[2000 * scale], [3000 * scale], [700 * scale]],
    "one long document among short ones": lambda scale: [[9] * 1500 * scale, *random_sizes(300, (1, 2), longest=6)],
}


@pytest.mark.parametrize("name", TEXTS)
def test_every_token_is_in_a_pair_whose_label_1_is_another_document_and_0_is_what_follows(name):
    text = text_of(TEXTS[name](1))
    document_of = np.repeat(np.arange(len(text.documents) - 1), np.diff(text.documents))
    pairs = pairs_of(text)
    assert len(pairs) > 100
    assert_covered(text, pairs)
    for pair in pairs:
        assert pair.first < pair.first_end
        assert pair.second < pair.second_end
        assert pair.first_end - pair.first + pair.second_end - pair.second <= LENGTH - 3
        first, second = document_of[pair.first : pair.first_end], document_of[pair.second : pair.second_end]
        assert first[0] == first[-1]
        assert second[0] == second[-1]
        if pair.next_sentence_label:
            assert first[0] != second[0]
        else:
            assert pair.second == pair.first_end
            assert first[0] == second[0]


def share_of_statistic(first: np.ndarray, second: np.ndarray) -> float:
    """Returns the chi-square statistic of two samples of bins, in standard deviations from its mean."""
    table = np.array([np.bincount(values, minlength=max(first.max(), second.max()) + 1) for values in (first, second)])
    table = table[:, table.sum(axis=0) >= 20]
    expected = table.sum(axis=0) * table.sum(axis=1, keepdims=True) / table.sum()
    freedom = table.shape[1] - 1
    return float((((table - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * max(1, freedom)))


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("short", [0.0, 0.3])
def test_lengths_do_not_tell_the_label(name, short):
    pairs = np.array(pairs_of(text_of(TEXTS[name](3)), short))
    first, second = pairs[:, 1] - pairs[:, 0], pairs[:, 3] - pairs[:, 2]
    label = pairs[:, 4] == 1
    # Five standard deviations of a binomial share.
    assert abs(label.mean() - 0.5) < 2.5 / np.sqrt(len(pairs))
    for bins in (first, second, first + second, first // 4 * LENGTH + second // 4):
        assert share_of_statistic(bins[label], bins[~label]) < 5


@pytest.mark.parametrize("name", ["ordinary", "documents of two or three sentences", "documents of one sentence"])
def test_ends_of_sentences_do_not_tell_the_label(name):
    text = text_of(TEXTS[name](3))
    pairs = np.array(pairs_of(text))
    label = pairs[:, 4] == 1
    for position in (0, 2, 3):
        at_end = np.isin(pairs[:, position], text.passages).astype(int)
        shares = [at_end[label].mean(), at_end[~label].mean()]
        # If no candidate fits at both ends, a random B ends anywhere; that is one B in 30 or fewer.
        assert abs(shares[0] - shares[1]) < 0.035 + 5 * np.sqrt(0.5 / len(pairs))


def test_pairs_fill_the_sequence_unless_short():
    text = text_of([[7] * 100] * 20)
    sizes = [pair.first_end - pair.first + pair.second_end - pair.second for pair in pairs_of(text, short=0)]
    assert np.mean([size == LENGTH - 3 for size in sizes]) > 0.9
    short = [pair.first_end - pair.first + pair.second_end - pair.second for pair in pairs_of(text, short=1)]
    assert np.mean(short) < 0.8 * np.mean(sizes)


def test_random_segments_come_from_all_documents():
    text = text_of(random_sizes(100, (20, 20)))
    pairs = pairs_of(text)
    sources = np.searchsorted(text.documents, [p.second for p in pairs if p.next_sentence_label], side="right") - 1
    counts = np.bincount(sources, minlength=100)
    # Five standard deviations of a Poisson count.
    assert np.abs(counts - counts.mean()).max() < 5 * np.sqrt(counts.mean()) + 0.3 * counts.mean()


def test_the_generator_decides():
    text = text_of(random_sizes(10, (5, 40)))
    assert pairs_of(text, seed=1) == pairs_of(text, seed=1) != pairs_of(text, seed=2)


def test_single_document_has_no_random_next():
    text = text_of(random_sizes(1, (20, 20)))
    pairs = pairs_of(text)
    assert not any(pair.next_sentence_label for pair in pairs)
    assert_covered(text, pairs)


def test_empty_sentences_and_documents_are_left_out():
    text = text_of([[0], [3, 0, 2], [], [0, 0], [4]])
    assert text.passages.tolist() == [0, 3, 5, 9]
    assert text.documents.tolist() == [0, 5, 9]
    assert text.tokens.tolist() == list(range(9))


@pytest.mark.parametrize("sizes", [[], [[1]], [[1], [1]], [[0]]])
def test_documents_of_one_token_have_no_pairs(sizes):
    assert pairs_of(text_of(sizes)) == []


@settings(max_examples=200)
@given(
    st.lists(st.lists(st.integers(0, 40), max_size=6), max_size=6),
    st.integers(8, 40),
    st.floats(0, 1),
    st.integers(0, 1000),
)
def test_any_text(sizes, length, short, seed):
    text = text_of(sizes)
    pairs = pairs_of(text, short, seed, length)
    assert_covered(text, pairs)
    for pair in pairs:
        assert 2 <= pair.first_end - pair.first + pair.second_end - pair.second <= length - 3
