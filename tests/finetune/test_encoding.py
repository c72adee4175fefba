"""Token ids of texts, pairs and sentences."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.finetune.files import tokenizer
from tftrain.config.fields import ConfigError
from tftrain.config.model import ModelConfig
from tftrain.finetune import conll
from tftrain.finetune.encoding import ExampleEncoder, Sequences, cut_longest
from tftrain.finetune.squad import Question, divide
from tftrain.tokenizer.normalization import LONGEST_WORD, cut_spaceless
from tftrain.tokenizer.tokenizer_model import Tokenizer
from tftrain.tokenizer.vocabulary import SPECIAL_TOKENS, Vocabulary


def cut_one_by_one(lengths, most):
    """The original BERT's rule: take a token away from the longer text, from the second of equal ones."""
    lengths = list(lengths)
    while sum(lengths) > most:
        lengths[0 if lengths[0] > lengths[-1] else -1] -= 1
    return lengths


@given(st.lists(st.integers(0, 50), min_size=1, max_size=2), st.integers(2, 60))
def test_the_longer_text_is_cut_first(lengths, most):
    assert cut_longest(lengths, most) == cut_one_by_one(lengths, most)


def test_a_pair_has_two_segments():
    names = tokenizer().vocabulary.tokens
    sequences = Sequences(ExampleEncoder(tokenizer(), 10)([("Good file", "bad"), ("key", "list map type")]))
    ids, mask, segments = sequences.rows(np.array([1, 0]), 10)
    words = " | ".join(" ".join(names[each] for each in row if each) for row in ids)
    assert words == "[CLS] key [SEP] list map type [SEP] | [CLS] good file [SEP] bad [SEP]"
    assert mask.tolist() == [[1] * 7 + [0] * 3, [1] * 6 + [0] * 4]
    assert segments.tolist() == [[0] * 3 + [1] * 4 + [0] * 3, [0] * 4 + [1] * 2 + [0] * 4]


def test_a_prompt_is_before_each_text_of_its_column():
    model = ModelConfig(task="embedding", text_prompt="good ", pool_prompt=False)
    encoder, names = ExampleEncoder(tokenizer(), 6), tokenizer().vocabulary.tokens
    found = [encoder.vectors_of(["file", "key list map type"], model, column) for column in (0, 1)]
    words = [[" ".join(names[number] for number in each.ids) for each in column] for column in found]
    assert words[0] == ["[CLS] good file [SEP]", "[CLS] good key list map [SEP]"]
    assert words[1] == ["[CLS] file [SEP]", "[CLS] key list map type [SEP]"]
    assert [[each.unpooled for each in column] for column in found] == [[2, 2], [0, 0]]
    (pooled, _) = encoder.vectors_of(["file", ""], dataclasses.replace(model, pool_prompt=True), 0)
    assert pooled.unpooled == 0
    with pytest.raises(ConfigError, match="--text_pair_prompt=a b c d: expected fewer tokens"):
        encoder.unpooled(dataclasses.replace(model, text_pair_prompt="a b c d"), 1)


def test_a_long_clause_without_spaces_is_cut_into_words_as_prepared_text_is():
    letters = [chr(0x0E01 + number) for number in range(40)]
    tokens = (*SPECIAL_TOKENS, *letters, *(f"##{letter}" for letter in letters))
    own = Tokenizer(Vocabulary(tokens, "wordpiece"), True, "bert")
    clause, encoder = "".join(letters * 7)[:250], ExampleEncoder(own, 300)
    expected = [f"##{letter}" if place % LONGEST_WORD else letter for place, letter in enumerate(clause)]
    prepared = own.build()([cut_spaceless(clause)])[0]
    (encoded,) = encoder([(clause,)])
    assert [tokens[number] for number in encoded.ids[1:-1]] == [tokens[number] for number in prepared] == expected
    parts, _ = conll.divide([conll.Sentence("x", 0, (clause, letters[0]), ("A", "O"))], encoder, 1)
    assert parts[0].places == (1, 251)
    context = f"{letters[0]} {clause} {letters[1]}"
    question = Question("x", "x", letters[2], context, (clause[120:130],), (122,))
    (window,), _ = divide([question], encoder, "wordpiece", 128, 64)
    first, last = (window.words[place - window.first] for place in window.answer)
    assert context[window.spans[first][0] : window.spans[last][1]] == clause
    assert window.answer[1] - window.answer[0] == 249


def sentences(*lengths):
    words = [tuple(["type"] * length) for length in lengths]
    return [conll.Sentence("x", number, each, ("O",) * len(each)) for number, each in enumerate(words)]


def test_a_long_sentence_is_divided_between_words():
    parts, encoded = conll.divide(sentences(3, 9), ExampleEncoder(tokenizer(), 6), None)  # as of bytes, all known
    assert [(part.number, len(part.words)) for part in parts] == [(0, 3), (1, 4), (1, 4), (1, 1)]
    assert all(len(each.ids) <= 6 for each in encoded)
    assert parts[1].places == (1, 2, 3, 4)


def test_every_word_has_a_token_of_its_own():
    words = ("file-name", "\u200b", "x" * 40)
    parts, encoded = conll.divide([conll.Sentence("x", 0, words, ("A", "B", "C"))], ExampleEncoder(tokenizer(), 16), 1)
    assert [word for part in parts for word in part.words] == list(words)
    names = tokenizer().vocabulary.tokens
    firsts = [names[each.ids[place]] for part, each in zip(parts, encoded, strict=True) for place in part.places]
    assert firsts == ["file", "[UNK]", "x"]
