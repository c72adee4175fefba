"""BERT's normalization: identical to the `tokenizers` package on every code point, and for whole texts."""

import random
import unicodedata

import pytest
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer as Normalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from tftrain.tokenizer.characters import COMBINING_CLASSES, NONSPACING_MARKS
from tftrain.tokenizer.normalization import LONGEST_WORD, BertNormalizer, cut_spaceless
from tftrain.tokenizer.tokenization import TextTokenizer
from tftrain.tokenizer.vocabulary import SPECIAL_TOKENS, Vocabulary
from tftrain.tokenizer.words import count_words, unreachable_words

CODES = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
# Latin with accents, Greek, Cyrillic, Arabic, Devanagari, Thai, jamo, punctuation, kana, ideographs, hangul, emoji, ...
BLOCKS = [(0x20, 0x7E), (0xA0, 0x24F), (0x370, 0x3FF), (0x400, 0x4FF), (0x600, 0x6FF), (0x900, 0x97F), (0xE00, 0xE5F)]
BLOCKS += [(0x1100, 0x11FF), (0x1E00, 0x1EFF), (0x2000, 0x206F), (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3)]
BLOCKS += [(0xE000, 0xE010), (0xFE00, 0xFFFD), (0x1D150, 0x1D1D0), (0x1F300, 0x1F6FF), (0x2B800, 0x2B940)]


# What --lower_case and --strip_accents may say; None is what lower_case is.
CASES = [(True, None), (False, None), (True, False), (False, True)]


def other(lower_case, strip_accents=None):
    """Returns the words of a text as `tokenizers` has them."""
    normalizer = Normalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=strip_accents, lowercase=lower_case
    )
    split = BertPreTokenizer()
    return lambda text: [word for word, _ in split.pre_tokenize_str(normalizer.normalize_str(text))]


def texts(count, seed=0):
    """Returns lines of random scripts and word lengths."""
    rng, made = random.Random(seed), []
    for _ in range(count):
        blocks, words = rng.sample(BLOCKS, rng.randint(1, 4)), []
        for _ in range(rng.randint(1, 30)):
            low, high = rng.choice(blocks)
            size = rng.choice((1, 2, 3, 5, 8, 13, 99, 100, 101)) if rng.random() < 0.1 else rng.randint(1, 9)
            words.append("".join(chr(rng.randint(low, high)) for _ in range(size)))
        made.append(rng.choice((" ", " ", "\t", "\u3000", "\u200b")).join(words))
    return made


@pytest.mark.parametrize(
    ("lower_case", "strip_accents"),
    [*CASES[:2], *(pytest.param(*case, marks=pytest.mark.nightly) for case in CASES[2:])],
)
@pytest.mark.parametrize("planes", ["assigned", pytest.param("others", marks=pytest.mark.nightly)])
def test_every_code_point_is_normalized_as_the_other_implementation_does(lower_case, strip_accents, planes):
    expected, ours = other(lower_case, strip_accents), BertNormalizer(lower_case, strip_accents)
    assigned = {code for code in CODES if code < 0x31400 or 0xE0000 <= code < 0xE0200 or code & 0xFFFF > 0xFFF0}
    wrong = [
        f"{code:x}"
        for code in CODES
        if (code in assigned) == (planes == "assigned")
        for text in (chr(code), f"a{chr(code)}b")
        if ours.words(text) != expected(text)
    ]
    assert wrong == []


@pytest.mark.parametrize(("lower_case", "strip_accents"), CASES)
def test_combining_characters_are_ordered_as_the_other_implementation_does(lower_case, strip_accents):
    expected, rng = other(lower_case, strip_accents), random.Random(1)
    ours = BertNormalizer(lower_case, strip_accents)
    pool = [*COMBINING_CLASSES] * 8 + [*range(0x1D150, 0x1D1D0)] * 4 + [*NONSPACING_MARKS] + [0xAD, 0x41, 0xE9] * 30
    for _ in range(4000):
        text = "".join(chr(rng.choice(pool)) for _ in range(rng.randint(2, 12)))
        assert ours.words(text) == expected(text), ascii(text)


def test_tables_are_those_of_unicode():
    """The classes of characters that Unicode has not changed since version 8.0."""
    assert all(unicodedata.category(chr(code)) in ("Mn", "Mc") for code in NONSPACING_MARKS)
    assert all(unicodedata.combining(chr(code)) == value for code, value in COMBINING_CLASSES.items())


@pytest.mark.parametrize("lower_case", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_tokens_of_8000_lines_are_those_of_the_other_implementation(lower_case):
    lines = texts(8000)
    counts = count_words(lines, "wordpiece", lower_case)
    characters = sorted({character for word in counts for character in word})
    rng = random.Random(2)
    words = [word for word in sorted(counts) if len(word) <= 60]
    pieces = [word[rng.randrange(len(word)) :] for word in rng.sample(words, 4000)]
    # Some characters are left out, so that there are unknown words.
    forms = [form for character in characters for form in (character, f"##{character}") if rng.random() < 0.97]
    tokens = tuple(dict.fromkeys([*SPECIAL_TOKENS, *forms, *rng.sample(words, 4000), *(f"##{p}" for p in pieces)]))
    ours = TextTokenizer(Vocabulary(tokens, "wordpiece"), lower_case, None)(lines)
    pieces_of = WordPiece({token: number for number, token in enumerate(tokens)}, unk_token="[UNK]")
    split = other(lower_case)
    expected = [[token.id for word in split(line) for token in pieces_of.tokenize(word)] for line in lines]
    assert [ids.tolist() for ids in ours] == expected
    unknown = sum(line.count(1) for line in expected)
    assert 100 < unknown < sum(map(len, expected)) / 2


def test_words_that_bert_has_and_case_folding_has_not():
    """Superscripts, ligatures and the sharp s are words of the original vocabulary."""
    words = ["\u00b2", "\u2122", "\ufb01", "stra\u00dfe", "\u2460", "\u3300"]
    vocabulary = Vocabulary((*SPECIAL_TOKENS, *words, "plain"), "wordpiece")
    assert unreachable_words(vocabulary, True, "bert") == []
    assert unreachable_words(vocabulary, True, "nfkc") == words
    text = ["Plain \u00b2 STRA\u00dfE"]
    assert TextTokenizer(vocabulary, True, None, "bert")(text)[0].tolist() == [11, 5, 8]
    assert TextTokenizer(vocabulary, True, None, "nfkc")(text)[0].tolist() == [11, 1, 1]


def test_upper_case_words_cannot_occur_in_lower_case():
    vocabulary = Vocabulary((*SPECIAL_TOKENS, "[unused1]", "Word", "caf\u00e9", "don't", "##X", "plain"), "wordpiece")
    assert unreachable_words(vocabulary, True, "bert") == ["Word", "caf\u00e9", "don't"]
    assert unreachable_words(vocabulary, False, "bert") == ["don't"]


@pytest.mark.parametrize("character", ["a", "\u0431", "\u0e01", "\U0001f600"])
def test_limit_of_a_word_is_in_characters(character):
    tokens = TextTokenizer(Vocabulary((*SPECIAL_TOKENS, character, f"##{character}"), "wordpiece"), True, None)
    longest, longer = tokens([character * LONGEST_WORD, character * (LONGEST_WORD + 1)])
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
