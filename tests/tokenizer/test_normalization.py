"""BERT's words: those of the library `tokenizers`, the same with each version of it, and how long ones are cut."""

import hashlib
import json

import pytest

from tftrain.tokenizer.normalization import LONGEST_WORD, bert_words, cut_spaceless, translations
from tftrain.tokenizer.tokenizer_model import Tokenizer
from tftrain.tokenizer.vocabulary import SPECIAL_TOKENS, Vocabulary
from tftrain.tokenizer.words import unreachable_words


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((True,), "the cafe cafe , don ' t \u4e2d \u6587 o\u03c3 is \u00b2 ."),
        ((False,), "The Caf\u00e9 Cafe\u0301 , don ' t \u4e2d \u6587 O\u03a3 \u0130s \u00b2 ."),
        ((True, False), "the caf\u00e9 cafe\u0301 , don ' t \u4e2d \u6587 o\u03c3 i\u0307s \u00b2 ."),
        ((False, True), "The Cafe Cafe , don ' t \u4e2d \u6587 O\u03a3 Is \u00b2 ."),
    ],
)
def test_words_are_those_of_bert(arguments, words):
    text = "The Ca\u00adf\u00e9\tCafe\u0301, don't\u3000\u4e2d\u6587 O\u03a3\0 \u0130s\u200b \u00b2."
    assert bert_words(*arguments)(text) == words.split()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [((True,), "5768277519834815"), ((True, False), "ca185b25d29916de")],
)
def test_another_version_of_the_library_normalizes_each_code_point_in_the_same_way(arguments, expected):
    """Prepared data, vocabularies and exported models would have other tokens than new texts."""
    assert hashlib.sha256(json.dumps(translations(*arguments)).encode()).hexdigest()[:16] == expected


def test_words_that_bert_has_and_case_folding_has_not():
    """Superscripts, ligatures and the sharp s are words of the original vocabulary."""
    words = ["\u00b2", "\u2122", "\ufb01", "stra\u00dfe", "\u2460", "\u3300"]
    vocabulary = Vocabulary((*SPECIAL_TOKENS, *words, "plain"), "wordpiece")
    assert unreachable_words(vocabulary, True, "bert") == []
    assert unreachable_words(vocabulary, True, "nfkc") == words
    text = ["Plain \u00b2 STRA\u00dfE"]
    assert Tokenizer(vocabulary, True, "bert").build()(text)[0].tolist() == [11, 5, 8]
    assert Tokenizer(vocabulary, True, "nfkc").build()(text)[0].tolist() == [11, 1, 1]


def test_upper_case_words_cannot_occur_in_lower_case():
    vocabulary = Vocabulary((*SPECIAL_TOKENS, "[unused1]", "Word", "caf\u00e9", "don't", "##X", "plain"), "wordpiece")
    assert unreachable_words(vocabulary, True, "bert") == ["Word", "caf\u00e9", "don't"]
    assert unreachable_words(vocabulary, False, "bert") == ["don't"]


@pytest.mark.parametrize("character", ["a", "\u0431", "\U0001f600"])
def test_limit_of_a_word_is_in_characters(character):
    vocabulary = Vocabulary((*SPECIAL_TOKENS, character, f"##{character}"), "wordpiece")
    longest, longer = Tokenizer(vocabulary, True, "bert").build()(
        [character * LONGEST_WORD, character * (LONGEST_WORD + 1)]
    )
    assert longest.tolist() == [5] + [6] * (LONGEST_WORD - 1)
    assert longer.tolist() == [1]


def test_long_runs_of_scripts_without_spaces_are_cut_before_no_mark():
    run = "\u0e01\u0e34\u0e48" * 100
    parts = cut_spaceless(f"one {run} two").split()
    assert "".join(parts[1:-1]) == run
    assert (parts[0], parts[-1]) == ("one", "two")
    assert {part[0] for part in parts[1:-1]} == {"\u0e01"}
    assert all(len(part) <= LONGEST_WORD for part in parts)
    unchanged = ["\u0e01" * LONGEST_WORD, "x" * 300, "\u0431" * 300, "\u4e00" * 300]
    assert [cut_spaceless(text) for text in unchanged] == unchanged
    # A run of nothing but marks has no better place.
    assert "".join(cut_spaceless("\u0e34" * 250).split()) == "\u0e34" * 250
