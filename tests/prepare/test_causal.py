"""Data for a decoder: every token is predicted exactly once, nothing is padding, the same bytes for any workers."""

import json
import os
import re
from functools import partial
from itertools import chain

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

from tests.data.test_pipeline import joined
from tests.kit import corpora
from tests.kit.data_sets import CAUSAL, open_source
from tests.prepare.test_prepare import contents, examples, refused
from tests.tokenizer.test_byte_pairs import WORDS_OF_TODAY
from tftrain.config.data import DataConfig
from tftrain.config.prepare import PrepareConfig
from tftrain.data.example import decode
from tftrain.data.manifest import read_manifest
from tftrain.data.pipeline import train_batches
from tftrain.prepare import causal_objective
from tftrain.prepare.accounting import NEAR_DUPLICATE
from tftrain.prepare.causal_objective import CausalObjective
from tftrain.prepare.corpus import paragraphs
from tftrain.prepare.objective import TokenizedText
from tftrain.prepare.preparation import prepare
from tftrain.prepare.spool import Chunk
from tftrain.tokenizer import pipelines
from tftrain.tokenizer.byte_pairs import learn_byte_pairs
from tftrain.tokenizer.vocabulary import SPECIAL_TOKENS, Vocabulary, read_vocabulary

SEED = 5
END = SPECIAL_TOKENS.index("[SEP]")


@pytest.fixture(scope="module")
def causal_config(prepare_config):
    """Returns a configuration of a causal preparation, which each test changes as it needs."""

    def make(output_dir, **changes):
        return prepare_config(output_dir, **CAUSAL | changes)

    return make


def sequences(folder, split):
    return [record["input_ids"] for record in examples(folder, split)]


@given(st.lists(st.lists(st.integers(5, 90), max_size=30), max_size=12), st.integers(8, 20), st.integers(0, 2**31))
@settings(max_examples=150)
def test_every_token_is_predicted_once_except_the_rest(documents, length, seed):
    """The oracle is the text itself: joined sequences are the documents, each with an end token after it."""
    vocabulary = Vocabulary((*SPECIAL_TOKENS, *map(str, range(5, 91))), "wordpiece")
    text = TokenizedText.join([[np.array(document, np.int32)] for document in documents])
    config = PrepareConfig(objective="causal", max_seq_length=length)
    made = CausalObjective(config).examples(text, Chunk("train", 0), vocabulary)
    order = np.random.default_rng(seed).permutation(made.count).tolist()
    found = dict(zip(order, [decode(payload, "")["input_ids"] for payload in made.payloads(order)], strict=True))
    expected = [token for document in documents if document for token in (*document, END)]
    labels = [token for number in range(made.count) for token in found[number][1:]]
    assert labels == expected[: made.count * length]
    assert 0 <= len(expected) - len(labels) < length
    # What precedes a label in its sequence is what precedes it in the text.
    assert [token for number in range(made.count) for token in found[number][:-1]] == [END, *expected][: len(labels)]
    assert {len(sequence) for sequence in found.values()} <= {length + 1}
    words, ends = sum(token != END for token in labels), labels.count(END)
    assert made.used.tolist() == [True] * words + [False] * (sum(map(len, documents)) - words)
    assert made.details == {"end tokens": ends}
    assert made.dropped == {"incomplete_sequence": sum(map(len, documents)) - words}


PARAGRAPHS = st.text(st.sampled_from("ab,.'1\u00e9\u0301\u4e00\u200b\x1c\x85\U0001f600 "), max_size=12)


@pytest.fixture(scope="module")
def byte_pair_tokenizers():
    """One with GPT-2's expression, and one with Llama 3's, which composes accents as Qwen's."""
    learned = learn_byte_pairs([["ab ab. a,\n1 ab'\u00e9\n"] * 3], 270)[1]
    theirs = Tokenizer.from_buffer(learned)
    split = pre_tokenizers.Split(Regex(WORDS_OF_TODAY), "isolated")
    theirs.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    theirs.normalizer = normalizers.NFC()
    return tuple(partial(pipelines.encode, tokenizer) for tokenizer in (pipelines.read(learned), theirs))


@given(st.lists(PARAGRAPHS, max_size=8), st.integers(1, 30))
@settings(max_examples=200)
def test_paragraphs_have_the_tokens_of_each_by_itself(byte_pair_tokenizers, texts, size):
    read = [paragraph for text in texts for paragraph in paragraphs(text, "blank_line", "text")]
    objective = CausalObjective(PrepareConfig(objective="causal", tokenizer_type="bpe"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(causal_objective, "_CHARACTERS_AT_ONCE", size)
        passages = objective.passages(read)
    assert len(passages) <= len(read)
    for tokenizer in byte_pair_tokenizers:
        expected = tokenizer([paragraph + "\n" for paragraph in read])
        assert [*chain(*tokenizer(passages))] == [*chain(*expected)]


def test_labels_are_the_text(causal_config, tmp_path):
    documents = [f"Document {number} begins. {'the model reads ' * (number % 7)}end." for number in range(60)]
    labels_are(documents, causal_config(tmp_path / "out", text="\n\n".join(documents), **ONE_SHARD))


def test_white_space_stays_in_verbatim_documents(causal_config, tmp_path):
    documents = [f"\n  def f{number}(x):\r\n\tif x:\n\n\n        return  {number} \n  \n\n" for number in range(60)]
    (tmp_path / "code.jsonl").write_text("".join(json.dumps({"text": each}) + "\n" for each in documents))
    changes = {"document_separator": "verbatim", "deduplicate": "none", **ONE_SHARD}
    config = causal_config(tmp_path / "out", input_files=str(tmp_path / "code.jsonl"), **changes)
    expected = [each.replace("\r", "").removesuffix("\n  \n\n") for each in documents]
    labels_are(expected, config)
    # Lines that documents share stay, and one of two documents that are nearly the same does.
    changes |= {"deduplicate": "near", "input_files": str(tmp_path / "copied.jsonl")}
    body = "".join(f"    value_{number} = value_{number - 1} + 1\n" for number in range(80))
    documents = [f"def first():\n{body}", f"def second():\n{body}", *(f"a = {number}\n" for number in range(40))]
    (tmp_path / "copied.jsonl").write_text("".join(json.dumps({"text": each}) + "\n" for each in documents))
    expected = [each.rstrip("\n") for each in documents if "second" not in each]
    labels_are(expected, causal_config(tmp_path / "2", **changes))


ONE_SHARD = {"eval_fraction": 0.0, "shard_mb": 1.0, "max_seq_length": 16}


def labels_are(documents, config):
    """Reads the records and the text alone: one shard, whose sequences are sorted by the tokens they begin with."""
    made = prepare(config)
    with open(made.path(made.tokenizer_file), "rb") as file:
        tokenizer = pipelines.read(file.read())
    stream = [0]
    for ids in pipelines.encode(tokenizer, [document + "\n" for document in documents]):
        stream += [*ids.tolist(), 0]
    expected = [stream[begin : begin + 17] for begin in range(0, len(stream) - 16, 16)]
    found = sequences(made.folder, "train")
    assert sorted(found) == sorted(expected)
    assert found != expected
    assert made.examples("train") == len(expected)
    assert made.tokens_in_examples + sum(made.tokens_dropped.values()) == made.tokens_read
    assert made.tokens_read - made.tokens_dropped.get(NEAR_DUPLICATE, 0) == len(stream) - 1 - len(documents)


def test_manifest_accounts_for_every_token(causal_config, tmp_path, capsys):
    text = corpora.text(30) + "\n" + corpora.text(20)
    made = prepare(causal_config(tmp_path / "out", text=text, heldout_window=0))
    assert (made.objective, made.masking, made.max_predictions_per_seq) == ("causal", None, None)
    assert (made.tokenizer_type, made.tokenizer_file, made.normalization) == ("bpe", "tokenizer.json", "none")
    assert not made.lower_case
    assert made.tokens_read == made.tokens_in_examples + sum(made.tokens_dropped.values())
    assert made.tokens_dropped["duplicate_paragraph"] > 0
    # Fewer than max_seq_length at the end of each shard.
    assert 0 < made.tokens_dropped["incomplete_sequence"] < 32 * sum(map(len, made.splits.values()))
    labels = [token for split in made.splits for row in sequences(made.folder, split) for token in row[1:]]
    assert len(labels) == 32 * (made.examples("train") + made.examples("eval"))
    ends = labels.count(0)
    assert len(labels) - ends == made.tokens_in_examples
    printed = capsys.readouterr().out
    assert re.search(rf"\n  end tokens in them +{ends:,}\n", printed)
    assert printed.count("\nexample\n") == 3


@pytest.mark.parametrize("tokenizer_type", ["wordpiece", "sentencepiece"])
def test_other_tokenizers_end_documents_with_sep(causal_config, corpus, tmp_path, tokenizer_type):
    vocab = {"vocab_file": str(corpus / "vocab.vocab"), "vocab_size": None} if tokenizer_type == "wordpiece" else {}
    changes = {"vocab_size": 64, **vocab, "shard_mb": 1.0, "deduplicate": "none", "heldout_window": 0}
    made = prepare(causal_config(tmp_path / "out", tokenizer_type=tokenizer_type, **changes))
    vocabulary = read_vocabulary(made.path("vocab.txt"), tokenizer_type)
    rows = [row for split in made.splits for row in sequences(made.folder, split)]
    ends = sum(token == vocabulary.id("[SEP]") for row in rows for token in row[1:])
    assert vocabulary.end_id == vocabulary.id("[SEP]")
    assert 115 <= ends <= made.documents == 120
    never = {vocabulary.id(token) for token in ("[PAD]", "[CLS]", "[MASK]")}
    assert not never & {token for row in rows for token in row}


def test_its_own_tokenizer_is_a_vocabulary_to_use_again(prepared_causal, causal_config, tmp_path):
    changes = {"vocab_file": os.path.join(prepared_causal, "tokenizer.json"), "vocab_size": None}
    again = prepare(causal_config(tmp_path / "out", **changes))
    assert msgspec.structs.replace(again, folder=prepared_causal) == read_manifest(prepared_causal)
    assert contents(again.folder) == contents(prepared_causal)


SHORT = {"max_seq_length": 2048, "eval_fraction": 0.01, "seed": 2, "min_tokens_used": 0.0}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_seq_length": 8192}, r"\d% of [\d,]+ tokens are in examples, because .* at the ends of shards fill no"),
        (SHORT, "the held-out split has no example; expected at least 2048 tokens"),
    ],
)
def test_text_that_is_too_short_is_refused(causal_config, tmp_path, changes, words):
    refused(causal_config(tmp_path / "out", text=corpora.text(60), shard_mb=1.0, **changes), words)
    assert not (tmp_path / "out").exists()


def source_of(data):
    return open_source(data, "train", 300, SEED, objective="causal")


def test_every_sequence_of_an_epoch_once(prepared_causal):
    data = DataConfig(data_dir=prepared_causal)
    source = source_of(data)
    count = source.num_examples
    batch = joined(train_batches(source, data, SEED, 0, count, 0, count), 1)
    written = sequences(prepared_causal, "train")
    assert sorted(np.concatenate([batch["input_ids"], batch["labels"][:, -1:]], 1).tolist()) == sorted(written)
    assert batch["labels"].tolist() != [row[1:] for row in written]
