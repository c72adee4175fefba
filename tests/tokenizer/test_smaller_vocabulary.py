"""A tokenizer with fewer tokens divides texts of tokens that stay as before, and knows the same characters."""

import itertools
import json
import random

import pytest
import sentencepiece
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tftrain.tokenizer.smaller_vocabulary import SmallerVocabulary
from tftrain.tokenizer.tokenizer_model import Tokenizer as Own
from tftrain.tokenizer.vocabulary import SPECIAL_TOKENS, Vocabulary

LETTERS = "aaabbcdeeèißñ日本한เ🙂"
BYTES = [f"<0x{number:02X}>" for number in range(256)]
FEW = ["<s>", "<pad>", "</s>", "<unk>"]


def random_texts(count, seed, letters=LETTERS):
    """Texts of random words, some of them frequent."""
    draw = random.Random(seed)
    words = ["".join(draw.choices(letters, k=draw.randint(1, 8))) for _ in range(80)]
    return [" ".join(draw.choices(words, range(80, 0, -1), k=draw.randint(1, 12))) for _ in range(count)]


def word_piece():
    library = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    library.normalizer, library.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    return library, trainers.WordPieceTrainer, 300, SPECIAL_TOKENS, {}


def unigram():
    library = Tokenizer(models.Unigram())
    library.normalizer, library.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
    return library, trainers.UnigramTrainer, 300, FEW, {"unk_token": "<unk>"}


def unigram_and_bytes():
    return *unigram()[:2], 560, [*FEW, *BYTES], {"unk_token": "<unk>"}


def byte_pairs():
    library = Tokenizer(models.BPE())
    library.pre_tokenizer, library.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    return library, trainers.BpeTrainer, 420, ["<|endoftext|>"], alphabet


def pairs(**form):
    library = Tokenizer(models.BPE(unk_token="<unk>", **form))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return library, trainers.BpeTrainer, 300, FEW, form


KINDS = {
    "wordpiece": word_piece,
    "unigram": unigram,
    "unigram and bytes": unigram_and_bytes,
    "byte pairs": byte_pairs,
    "pairs with an end": lambda: pairs(end_of_word_suffix="</w>"),
    "pairs with a beginning": lambda: pairs(continuing_subword_prefix="##"),
}


def learned(kind, seed=0, **more):
    """A tokenizer with an added token before and after the vocabulary, and what it puts around a text."""
    library, trainer, size, special, options = KINDS[kind]()
    options = {"vocab_size": size, "special_tokens": list(special), "show_progress": False, **options, **more}
    library.train_from_iterator(random_texts(400, seed), trainer(**options))
    library.add_tokens([AddedToken("<mask>", lstrip=True, special=True), AddedToken("Ωmega", normalized=False)])
    first, last = special[0], special[-1]
    ends = [(token, library.token_to_id(token)) for token in (first, last)]
    template = processors.TemplateProcessing(
        single=f"{first} $A {last}", pair=f"{first} $A {last} $B {last}", special_tokens=list(set(ends))
    )
    around = {"wordpiece": processors.BertProcessing(*ends[::-1]), "byte pairs": processors.Sequence([template])}
    library.post_processor = around.get(kind, template)
    tokens = sorted(library.get_vocab(), key=library.get_vocab().get)
    kind = "bpe" if isinstance(library.model, models.BPE) else "wordpiece"
    return library, Own(Vocabulary(tuple(tokens), kind), False, "none", library.to_str().encode())


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_texts_of_tokens_that_stay_are_divided_as_before(kind, seed):
    library, own = learned(kind, seed)
    texts = random_texts(3000, seed, LETTERS + "zΩ") + random_texts(500, seed) + ["a<mask>Ωmega b", ""]
    before = library.encode_batch(texts)
    kept = SmallerVocabulary(own)
    kept.add([number for each in before[:40] for number in each.ids])
    smaller, ids = kept.build()
    after = Tokenizer.from_str(smaller.model.decode()).encode_batch(texts)
    stays, same = set(ids), 0
    for old, new in zip(before, after, strict=True):
        if set(old.ids) <= stays:
            assert (new.tokens, new.offsets) == (old.tokens, old.offsets)
            assert [ids[number] for number in new.ids] == old.ids
            same += 1
    assert same >= 40
    assert len(ids) < len(own.vocabulary)
    assert same < len(texts)  # Some texts have tokens that have gone.
    assert smaller.vocabulary.tokens == tuple(own.vocabulary.tokens[number] for number in ids)
    named = [
        [n if n is None else each.vocabulary.tokens[n] for n in each.vocabulary.roles[:6]] for each in (own, smaller)
    ]
    assert named[0] == named[1]
    unknown = library.token_to_id({"wordpiece": "[UNK]", "byte pairs": "none"}.get(kind, "<unk>"))
    unknowns = [unknown in each.ids for each in before]
    assert [unknown in [ids[number] for number in each.ids] for each in after] == unknowns


@pytest.mark.parametrize("kind", KINDS)
def test_a_count_keeps_the_most_frequent_tokens_and_what_they_need(kind):
    own = learned(kind)[1]
    kept = SmallerVocabulary(own)
    least, most = len(kept.ids), len(kept.ids) + 25
    order = kept.by_rank()
    kept.add(order, most)
    assert most - 3 <= len(kept.ids) <= most  # A token comes with those that it is merged from.
    smaller, ids = kept.build()
    assert least < len(ids) == len(smaller.vocabulary)
    if "unigram" in kind:
        scores = dict(json.loads(own.model)["model"]["vocab"])
        others = [scores[token] for token in set(own.vocabulary.tokens) - set(smaller.vocabulary.tokens)]
        chosen = [scores[own.vocabulary.tokens[number]] for number in set(ids) - SmallerVocabulary(own).ids]
        assert min(chosen) >= max(others)


def test_unigram_keeps_the_penalty_of_unknown_characters():
    """Without the least probable piece, two unknown characters would cost less than the piece "xy"."""
    pieces = [("<unk>", 0.0), ("▁", -2.0), ("xy", -13.0), ("b", -1.0), ("▁b", -1.5), ("never", -20.0)]
    library = Tokenizer(models.Unigram(pieces, 0, False))
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    own = Own(Vocabulary(tuple(piece for piece, _ in pieces), "wordpiece"), False, "none", library.to_str().encode())
    kept = SmallerVocabulary(own)
    assert 5 in kept.ids
    kept.add(range(5))
    assert Tokenizer.from_str(kept.build()[0].model.decode()).encode("xy b").tokens == library.encode("xy b").tokens


def test_a_word_that_is_a_token_without_merges_stays_whole():
    vocab = {token: number for number, token in enumerate(["a", "b", "c", "ab", "abc", "bc", "cab"])}
    library = Tokenizer(models.BPE(vocab, [("a", "b"), ("b", "c")], ignore_merges=True))
    own = Own(Vocabulary(tuple(vocab), "bpe"), False, "none", library.to_str().encode())
    kept = SmallerVocabulary(own)
    kept.add([4, 6])
    smaller, ids = kept.build()
    assert ids == [0, 1, 2, 3, 4, 6]
    cut = Tokenizer.from_str(smaller.model.decode())
    for text in ("abc", "cab", "ab", "cc", "abab"):
        assert cut.encode(text).tokens == library.encode(text).tokens


def test_a_vocabulary_file_and_a_model_of_sentencepiece(tmp_path):
    tokens = (*SPECIAL_TOKENS, "[unused0]", "play", "##ing", "##ed", "p", "##l", "go", "##o")
    kept = SmallerVocabulary(Own(Vocabulary(tokens, "wordpiece"), True, "bert"))
    kept.add([tokens.index("play")])
    assert kept.build()[0].vocabulary.tokens == (*SPECIAL_TOKENS, "play", "p", "##l", "##o")

    texts, file = random_texts(2000, 5, "aaabbcdee"), tmp_path / "m"
    options = {"unk_id": 1, "pad_id": 0, "bos_id": -1, "eos_id": -1, "unk_piece": "[UNK]", "pad_piece": "[PAD]"}
    symbols = list(SPECIAL_TOKENS[2:])
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_prefix=str(file), vocab_size=90, control_symbols=symbols, **options
    )
    model = (tmp_path / "m.model").read_bytes()
    before = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = tuple(before.id_to_piece(list(range(before.get_piece_size()))))
    kept = SmallerVocabulary(Own(Vocabulary(pieces, "sentencepiece"), False, "nfkc", model))
    kept.add(itertools.chain.from_iterable(before.encode(texts[:20])))
    smaller, ids = kept.build()
    after = sentencepiece.SentencePieceProcessor(model_proto=smaller.model)
    assert after.get_piece_size() == len(ids) < len(pieces)
    assert (after.unk_id(), after.pad_id()) == (1, 0)
    same = 0
    for text in [*texts, *random_texts(500, 6, "abcdezq")]:
        old = before.encode(text)
        if set(old) <= set(ids):
            assert after.encode(text, out_type=str) == before.encode(text, out_type=str)
            same += 1
    assert 20 <= same < len(texts)
