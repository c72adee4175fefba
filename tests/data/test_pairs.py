"""Sentence pairs: their form, their label, their lengths."""

import numpy as np
import pytest

from tftrain.data.pairs import make_pairs
from tftrain.data.vocabulary import SPECIAL_TOKENS, Vocabulary

CLS, SEP = 2, 3
LENGTH = 32
VOCABULARY = Vocabulary((*SPECIAL_TOKENS, *(f"t{number}" for number in range(100_000))), "wordpiece")


def documents(count, sentences=20, seed=0):
    """Every token of the documents is another one, so that a token tells its document and place."""
    rng = np.random.default_rng(seed)
    token, made = 5, []
    for _ in range(count):
        document = []
        for size in rng.integers(1, 12, sentences):
            document.append(list(range(token, token + int(size))))
            token += int(size)
        made.append(document)
    return made


def pairs_of(docs, short=0.1, seed=1, length=LENGTH):
    return list(make_pairs(docs, VOCABULARY, length, short, np.random.default_rng(seed)))


def segments(pair):
    ids, start = pair.input_ids, pair.second_segment_start
    return ids[1 : start - 1], ids[start:-1]


def test_form():
    for pair in pairs_of(documents(20)):
        first, second = segments(pair)
        assert pair.input_ids == [CLS, *first, SEP, *second, SEP]
        assert first
        assert second
        assert len(pair.input_ids) <= LENGTH


def test_label_1_is_a_run_of_another_document_and_0_is_what_follows():
    docs = documents(30)
    document_of = {token: number for number, doc in enumerate(docs) for sentence in doc for token in sentence}
    found = pairs_of(docs)
    for pair in found:
        first, second = segments(pair)
        same = document_of[first[0]] == document_of[second[0]]
        assert same == (pair.next_sentence_label == 0)
        if same:
            assert first[-1] < second[0]
    share = np.mean([pair.next_sentence_label for pair in found])
    # A run of one sentence has nothing to follow it, so a little more than half are random.
    assert 0.4 < share < 0.75


def test_both_segments_are_runs_of_the_text():
    docs = documents(20)
    for pair in pairs_of(docs):
        for part in segments(pair):
            assert part == list(range(part[0], part[0] + len(part)))


def test_every_sentence_is_used_when_nothing_is_cut():
    docs = [[[10 * d + s] for s in range(3)] for d in range(1, 60)]
    used = {token for pair in pairs_of(docs, short=0) for token in pair.input_ids}
    assert used - {CLS, SEP} == {token for doc in docs for sentence in doc for token in sentence}


def test_pairs_fill_the_sequence_unless_short():
    full = pairs_of(documents(20, sentences=100), short=0)
    assert np.mean([len(pair.input_ids) == LENGTH for pair in full]) > 0.8
    short = pairs_of(documents(20, sentences=100), short=1)
    assert np.mean([len(pair.input_ids) for pair in short]) < 0.8 * np.mean([len(pair.input_ids) for pair in full])


def test_the_generator_decides():
    docs = documents(10)
    assert pairs_of(docs, seed=1) == pairs_of(docs, seed=1) != pairs_of(docs, seed=2)


def test_single_document_has_no_random_next():
    found = pairs_of(documents(1))
    assert found
    assert not any(pair.next_sentence_label for pair in found)


@pytest.mark.parametrize("docs", [[[[7]]], [[[7] * 100]], [[[7, 8]]], []])
def test_texts_of_one_sentence(docs):
    for pair in pairs_of(docs):
        assert all(segments(pair))
        assert len(pair.input_ids) <= LENGTH


def test_shortest_sequences():
    assert {len(pair.input_ids) for pair in pairs_of(documents(20), length=8)} <= {5, 6, 7, 8}
