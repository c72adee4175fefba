"""The characters of a learned vocabulary: those of the text, without tokens that cannot occur."""

from collections import Counter

import numpy as np
import pytest

from tftrain.tokenizer.alphabet import choose_alphabet, joiner_warnings, lost_scripts, vocabulary_warnings
from tftrain.tokenizer.normalization import cut_spaceless
from tftrain.tokenizer.tokenizer_model import Tokenizer
from tftrain.tokenizer.vocabulary import SPECIAL_TOKENS
from tftrain.tokenizer.vocabulary_learner import learn_sentencepiece, learn_wordpiece
from tftrain.tokenizer.words import count_words

HAN = [*range(0x4E00, 0x4E00 + 1400)]
SCRIPTS = {
    # Characters, lengths of words in characters, and the separator of words.
    "chinese": ([*HAN, 0x3002, 0xFF0C], (8, 30), "\u3002"),
    "japanese": ([*HAN[:600], *range(0x3041, 0x3094), *range(0x30A1, 0x30F7)], (5, 40), "\u3001"),
    "thai": ([*range(0xE01, 0xE2F), *range(0xE30, 0xE3B), *range(0xE40, 0xE4F)], (20, 250), " "),
    "cyrillic": ([*range(0x410, 0x450), 0x401, 0x451], (2, 12), " "),
    "arabic": ([*range(0x621, 0x64B), *range(0x64B, 0x653)], (2, 10), " "),
    "emoji": ([*range(0x1F300, 0x1F500), *range(0x61, 0x7B)], (1, 5), " "),
}


def script_text(name, seed=0, lines=150):
    """Returns lines of random characters of a script whose frequencies fall as Zipf's law has them."""
    codes, (shortest, longest), separator = SCRIPTS[name]
    rng = np.random.default_rng(seed)
    weights = 1 / (1 + np.arange(len(codes)))
    order = rng.permutation(codes)

    def word():
        return "".join(map(chr, rng.choice(order, rng.integers(shortest, longest), p=weights / weights.sum())))

    words = 1 if longest > 100 else 6
    return [cut_spaceless(separator.join(word() for _ in range(words))) for _ in range(lines)]


@pytest.mark.parametrize(("script", "lower_case"), [*((script, True) for script in SCRIPTS), ("cyrillic", False)])
def test_text_of_every_script_has_hardly_an_unknown_token(script, lower_case):
    text = script_text(script)
    counts = count_words(text, "wordpiece", lower_case)
    learned = learn_wordpiece(counts, 4000, lambda: None)
    assert len(learned) == len(set(learned.tokens)) <= 4000
    tokens = np.concatenate(Tokenizer(learned, lower_case, "bert").build()(text))
    assert (tokens == learned.id("[UNK]")).mean() < 0.001
    # The characters that make up 99.95% of the text are in the vocabulary, each form of them that occurs and no other.
    characters = Counter()
    forms = set()
    for word, count in counts.items():
        for place, character in enumerate(word):
            characters[character] += count
            forms.add("##" * (place > 0) + character)
    singles = {token for token in learned.tokens[5:] if len(token.removeprefix("##")) == 1}
    held = {token.removeprefix("##") for token in singles}
    assert sum(characters[character] for character in held) >= 0.9995 * characters.total()
    assert singles == {form for form in forms if form.removeprefix("##") in held}
    assert (script == "chinese") == (not any(token.startswith("##") for token in learned.tokens))


def test_words_are_learned_from_runs_longer_than_a_token():
    """Syllables of a script without spaces become pieces, although no word of the text is short."""
    rng = np.random.default_rng(0)
    syllables = ["".join(chr(code) for code in rng.integers(0xE01, 0xE2E, 3)) for _ in range(40)]
    text = ["".join(rng.choice(syllables, 25)) for _ in range(400)]
    learned = learn_wordpiece(count_words(text, "wordpiece", True), 400, lambda: None)
    assert sum(f"##{syllable}" in learned.tokens for syllable in syllables) > 30
    assert not [token for token in learned.tokens if "\0" in token]
    lengths = [len(ids) for ids in Tokenizer(learned, True, "bert").build()(text)]
    assert np.mean(lengths) < 75 / 2


def test_characters_that_do_not_fit_are_named_with_a_size_that_holds_them():
    counts = count_words(script_text("chinese"), "wordpiece", True)
    learned = learn_wordpiece(counts, 200, lambda: None)
    assert len(learned) == 200
    assert sum(counts[token] for token in learned.tokens) == sum(count for _, count in counts.most_common(195))
    (warning,) = vocabulary_warnings(counts, learned, 200)
    share = sum(counts[token] for token in learned.tokens) / counts.total()
    assert warning.startswith(f"--vocab_size=200: the text has {len(counts)} different characters; the 195 in the ")
    assert f"make up {share:.2%} of it" in warning
    size = choose_alphabet(counts, 200).vocab_size
    assert f"--vocab_size={size} holds the characters of 99.95%" in warning
    enough = learn_wordpiece(counts, size, lambda: None)
    assert sum(counts[token] for token in enough.tokens) >= 0.9995 * counts.total()
    assert sum(counts[token] for token in enough.tokens[:-1]) < 0.9995 * counts.total()
    assert not any("[UNK]" in warning for warning in vocabulary_warnings(counts, enough, size))


def test_smaller_vocabulary_is_explained_by_what_the_text_has():
    counts = Counter({"\u4e00": 5, "\u4e8c": 4, "ab": 3, "b": 1})
    learned = learn_wordpiece(counts, 500, lambda: None)
    assert learned.tokens == (*SPECIAL_TOKENS, "\u4e00", "b", "##b", "\u4e8c", "a", "ab")
    (warning,) = vocabulary_warnings(counts, learned, 500)
    assert "has 11 tokens, not 500: the text has 4 different characters and 1 different words of two" in warning
    assert list(vocabulary_warnings(counts, learned, len(learned))) == []


def test_space_that_words_leave_is_for_the_rare_characters():
    counts = Counter({"\u4e00": 100_000, "\u4e8c": 1, "\u4e09a": 1} | {chr(0x5000 + number): 1 for number in range(40)})
    learned = learn_wordpiece(counts, 64, lambda: None)
    assert set(learned.tokens) == {*SPECIAL_TOKENS, *"".join(counts).replace("a", ""), "##a", "\u4e09a"}


def test_a_script_that_becomes_unknown_is_named():
    counts = Counter({"word": 100_000, "hello": 90_000, "한국어": 3, "문장": 2, "слово": 1})
    learned, _ = learn_sentencepiece(counts, 20, lower_case=False)
    (warning,) = lost_scripts(counts, learned)
    assert "Hangul (100% of 5 words, such as 한국어), Cyrillic (100% of 1 words" in warning
    assert "Latin" not in warning
    assert list(lost_scripts(counts, learn_wordpiece(counts, 300, lambda: None))) == []


def test_joiners_that_become_spaces_are_counted():
    (warning,) = joiner_warnings(Counter({"\u0645\u06cc\u200c\u062e": 4, "a\u200bb": 1, "\u0d9a\u0dca\u200d\u0dbb": 7}))
    assert warning.startswith("5 words have U+200C or U+200B, which --tokenizer_type=sentencepiece replaces by a space")
    assert list(joiner_warnings(Counter({"word": 1}))) == []
