"""Vocabularies: read with their special tokens, learned to the size, cut into the same pieces."""

from collections import Counter

import numpy as np
import pytest
from tensorflow_text.tools.wordpiece_vocab import wordpiece_tokenizer_learner_lib as learner

from tftrain.files.errors import DataError
from tftrain.tokenizer.tokenizer_model import Tokenizer
from tftrain.tokenizer.vocabulary import MAX_TOKENS, SPECIAL_TOKENS, Vocabulary, read_vocabulary
from tftrain.tokenizer.vocabulary_learner import learn_sentencepiece, learn_with_threshold, learn_wordpiece
from tftrain.tokenizer.words import count_words

SPECIAL = b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"


def counts(words=3000, seed=0):
    """Words of random syllables, with counts that fall as Zipf's law has them."""
    rng = np.random.default_rng(seed)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    made = ["".join(rng.choice(syllables, rng.integers(1, 5))) for _ in range(words)]
    return Counter({word: 1 + 20_000 // (rank + 1) for rank, word in enumerate(dict.fromkeys(made))})


def test_word_starts_and_ordinary_ids():
    wordpiece = Vocabulary((*SPECIAL_TOKENS, "[unused7]", "a", "##b"), "wordpiece")
    assert wordpiece.word_starts.tolist() == [True] * 7 + [False]
    assert wordpiece.ordinary_ids.tolist() == [6, 7]
    sentencepiece = Vocabulary((*SPECIAL_TOKENS, "\u2581a", "b"), "sentencepiece")
    assert sentencepiece.word_starts.tolist() == [True] * 6 + [False]
    tokens = {"\u0120sat": True, "s": False, "7": False, "\u00c3\u00a9": False, ".": True, "\u010a": True, "'s": True}
    of_bytes = Vocabulary((*SPECIAL_TOKENS, *tokens), "bpe")
    assert of_bytes.word_starts.tolist() == [True] * 5 + list(tokens.values())


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\nword\n", r"lacks \[MASK\]; expected \[PAD\]"),
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n", "nothing but the special tokens"),
        (SPECIAL + b"[unused0]\n[unused1]\n", "nothing but the special tokens and unused ones"),
        (SPECIAL + b"a\0b\n", r"line 6: a token of 3 bytes that begins 'a\\x00b'; expected .*no line break"),
        (SPECIAL + b"x" * 257 + b"\n", "line 6: a token of 257 bytes that begins 'xxx.*expected at most 256"),
        (SPECIAL + b"\n" * 3, "line 7: the token '' occurs for the second time"),
        (b"[PAD]\n\xed\xa0\x80\n", "byte 6: not UTF-8"),
    ],
)
def test_file_that_is_no_vocabulary_is_named(tmp_path, content, match):
    path = tmp_path / "vocab"
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"vocab: .*{match}"):
        read_vocabulary(str(path), "wordpiece")


def test_vocabulary_of_too_many_tokens_or_bytes_is_refused(tmp_path):
    path = tmp_path / "vocab"
    path.write_bytes(SPECIAL + b"".join(b"%x\n" % number for number in range(MAX_TOKENS)))
    with pytest.raises(DataError, match=r"vocab: it has 1048581 tokens; expected a vocabulary of at most 1048576"):
        read_vocabulary(str(path), "wordpiece")
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(DataError, match=r"vocab: Larger than \d+ bytes; expected a vocabulary"):
        read_vocabulary(str(path), "wordpiece")


@pytest.mark.parametrize("size", [200, 1000])
def test_wordpiece_vocabulary_has_the_size_that_was_asked_for(size):
    learned = learn_wordpiece(counts(), size, lambda: None)
    assert learned == learn_wordpiece(Counter(dict(reversed(counts().items()))), size, lambda: None)
    assert len(learned) == len(set(learned.tokens)) == size
    assert learned.tokens[:5] == SPECIAL_TOKENS


@pytest.mark.parametrize("threshold", [1, 3, 40, 700, 10**9])
def test_tokens_are_those_of_tensorflow_texts_learner(threshold):
    params = learner.Params(None, None, 4, -1, 30, -1, 0, 0, True, "##", [])
    words = sorted(counts(800, seed=threshold).items())
    words += [("a", 9), ("\0bada", 50), ("ka\u2028bo", 7), ("aaaaaaa", 60), ("b" * 30, 45)]
    expected = learner.learn_with_thresh(words, threshold, params)
    learned = learn_with_threshold(words, threshold)
    longer = [[token for token in tokens if len(token.removeprefix("##")) > 1] for tokens in (learned, expected)]
    assert longer[0] == longer[1]
    assert set(learned) == set(expected)


def test_wordpiece_vocabulary_spells_every_word_and_holds_the_frequent_ones():
    made = counts()
    learned = learn_wordpiece(made, 1000, lambda: None)
    tokens = Tokenizer(learned, True, "bert").build()(list(made))
    assert not any(learned.id("[UNK]") in found for found in tokens)
    assert all(len(found) == 1 for found in tokens[:100])


def test_text_without_words_is_refused():
    with pytest.raises(DataError, match="no words"):
        learn_wordpiece(Counter(), 500, lambda: None)


def test_words_are_counted_as_bert_splits_them():
    text = ["The cat, the CAT's hat.", "Café!"]
    assert count_words(text, "wordpiece", True) == Counter(
        {"the": 2, "cat": 2, ",": 1, "'": 1, "s": 1, "hat": 1, ".": 1, "cafe": 1, "!": 1}
    )
    assert count_words(text, "wordpiece", False)["CAT"] == 1
    assert count_words(text, "sentencepiece", True) == Counter(["The", "cat,", "the", "CAT's", "hat.", "Café!"])


@pytest.fixture(scope="module")
def sentencepiece_model():
    return learn_sentencepiece(counts(800), 300, True)


def test_sentencepiece_is_the_same_every_time(sentencepiece_model):
    assert sentencepiece_model[0].tokens[:5] == SPECIAL_TOKENS
    assert len(sentencepiece_model[0]) == 300
    # The model too: it contains no path.
    assert learn_sentencepiece(counts(800), 300, True) == sentencepiece_model


def test_sentencepiece_tokens_spell_the_text_in_lower_case(sentencepiece_model):
    vocabulary, model = sentencepiece_model
    (found,) = Tokenizer(vocabulary, True, "nfkc", model).build()(["Bada KITO [MASK]"])
    assert "".join(vocabulary.tokens[number] for number in found).startswith("\u2581bada\u2581kito")
    # Text that looks like a control token is not taken for one.
    assert vocabulary.id("[MASK]") not in found


def test_sentencepiece_of_too_few_words_names_the_flag():
    with pytest.raises(DataError, match="--vocab_size=300: sentencepiece cannot learn"):
        learn_sentencepiece(Counter({}), 300, True)


def test_decode():
    wordpiece = Vocabulary((*SPECIAL_TOKENS, "an", "##other", "sen", "##ten", "##ce", "."), "wordpiece")
    assert wordpiece.decode(range(5, 11)) == "another sentence ."
    sentencepiece = Vocabulary((*SPECIAL_TOKENS, "\u2581an", "other", "\u2581", "x"), "sentencepiece")
    assert sentencepiece.decode(range(5, 9)) == "another x"
    assert Vocabulary(("<|endoftext|>", "Ġ", "Ċ", "Ã", "¤"), "bpe").decode([3, 4, 1, 2, 0]) == "ä \n<|endoftext|>"
