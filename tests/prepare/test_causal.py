"""Data for a decoder: every token is predicted exactly once, nothing is padding, the same bytes for any workers."""

import dataclasses
import json
import os
import re
from itertools import chain

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

from tests.data.test_pipeline import failure, joined
from tests.kit import corpora
from tests.kit.data_sets import open_source
from tests.prepare.test_prepare import contents, examples
from tests.tokenizer.test_byte_pairs import WORDS_OF_TODAY
from tftrain.config.data import DataConfig
from tftrain.config.prepare import PrepareConfig
from tftrain.data.example import decode, encode
from tftrain.data.manifest import read_manifest, write_manifest
from tftrain.data.pipeline import eval_batches, train_batches
from tftrain.files.errors import DataError
from tftrain.prepare import causal_objective
from tftrain.prepare.accounting import NEAR_DUPLICATE
from tftrain.prepare.causal_objective import CausalObjective
from tftrain.prepare.corpus import paragraphs
from tftrain.prepare.objective import TokenizedText
from tftrain.prepare.preparation import prepare
from tftrain.prepare.spool import Chunk
from tftrain.tokenizer.byte_pairs import BytePairTokenizer, learn_byte_pairs
from tftrain.tokenizer.vocabulary import SPECIAL_TOKENS, Vocabulary, read_vocabulary

SEED = 5
END = SPECIAL_TOKENS.index("[SEP]")


@pytest.fixture(scope="module")
def causal_config(prepare_config):
    """Returns a configuration of a causal preparation, which each test changes as it needs."""

    def make(output_dir, **changes):
        causal = {"objective": "causal", "tokenizer_type": "bpe", "vocab_file": None, "vocab_size": 300}
        return prepare_config(output_dir, **causal | changes)

    return make


@pytest.fixture(scope="module")
def causal(causal_config, tmp_path_factory):
    """A causal data set with byte pairs: the folder's path."""
    folder = tmp_path_factory.mktemp("causal") / "bpe"
    prepare(causal_config(folder))
    return str(folder)


def sequences(folder, split):
    return [record["input_ids"] for record in examples(folder, split)]


@given(
    st.lists(st.lists(st.integers(5, 90), max_size=30), max_size=12),
    st.integers(8, 20),
    st.integers(0, 2**31),
)
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
    return BytePairTokenizer(learned), BytePairTokenizer(theirs.to_str().encode())


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
    (tmp_path / "text").write_text("\n\n".join(documents), encoding="utf-8")
    labels_are(documents, causal_config(tmp_path / "out", input_files=str(tmp_path / "text"), **ONE_SHARD))


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
    labels_are(
        [each.rstrip("\n") for each in documents if "second" not in each], causal_config(tmp_path / "2", **changes)
    )


ONE_SHARD = {"eval_fraction": 0.0, "shard_mb": 1.0, "max_seq_length": 16}


def labels_are(documents, config):
    """Reads the records and the text alone: one shard, whose sequences are sorted by the tokens they begin with."""
    made = prepare(config)
    with open(made.path(made.tokenizer_file), "rb") as file:
        tokenizer = BytePairTokenizer(file.read())
    stream = [0]
    for ids in tokenizer([document + "\n" for document in documents]):
        stream += [*ids.tolist(), 0]
    expected = [stream[begin : begin + 17] for begin in range(0, len(stream) - 16, 16)]
    found = sequences(made.folder, "train")
    assert sorted(found) == sorted(expected)
    assert found != expected
    assert made.examples("train") == len(expected)
    assert made.tokens_in_examples + sum(made.tokens_dropped.values()) == made.tokens_read
    assert made.tokens_read - made.tokens_dropped.get(NEAR_DUPLICATE, 0) == len(stream) - 1 - len(documents)


def test_manifest_accounts_for_every_token(causal, causal_config, tmp_path, capsys):
    manifest = read_manifest(causal)
    assert (manifest.objective, manifest.masking, manifest.max_predictions_per_seq) == ("causal", None, None)
    assert (manifest.tokenizer_type, manifest.tokenizer_file, manifest.normalization) == (
        "bpe",
        "tokenizer.json",
        "none",
    )
    assert not manifest.lower_case
    text = corpora.text(30) + "\n" + corpora.text(20)
    (tmp_path / "text").write_text(text)
    made = prepare(causal_config(tmp_path / "out", input_files=str(tmp_path / "text"), heldout_window=0))
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
    assert not {vocabulary.id(token) for token in ("[PAD]", "[CLS]", "[MASK]")} & {
        token for row in rows for token in row
    }


def test_its_own_tokenizer_is_a_vocabulary_to_use_again(causal, causal_config, tmp_path):
    again = prepare(causal_config(tmp_path / "out", vocab_file=os.path.join(causal, "tokenizer.json"), vocab_size=None))
    assert msgspec.structs.replace(again, folder=causal) == read_manifest(causal)
    assert contents(again.folder) == contents(causal)


def test_seed_changes_split_and_order(causal, causal_config, tmp_path):
    other = prepare(causal_config(tmp_path / "out", seed=2))
    assert other.documents == read_manifest(causal).documents
    assert sequences(other.folder, "eval") != sequences(causal, "eval")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"max_seq_length": 8192},
            r"\d\d\.\d% of [\d,]+ tokens are in examples, because .* at the ends of shards fill no sequence",
        ),
        (
            {"max_seq_length": 2048, "eval_fraction": 0.01, "seed": 2},
            "the held-out split has no example; expected at least 2048 tokens",
        ),
    ],
)
def test_text_that_is_too_short_is_refused(causal_config, tmp_path, changes, words):
    (tmp_path / "text").write_text(corpora.text(60))
    refused = {"input_files": str(tmp_path / "text"), "shard_mb": 1.0, "min_tokens_used": 0.9, **changes}
    if changes["max_seq_length"] == 2048:
        refused["min_tokens_used"] = 0.0
    with pytest.raises(DataError, match=words):
        prepare(causal_config(tmp_path / "out", **refused))
    assert not (tmp_path / "out").exists()


@pytest.fixture(params=["prepared", "files", "synthetic"])
def data(request, causal):
    if request.param == "synthetic":
        return DataConfig(synthetic_data=True, max_seq_length=32)
    if request.param == "files":
        return DataConfig(train_files=f"{causal}/train-*", eval_files=f"{causal}/eval-*")
    return DataConfig(data_dir=causal)


def source_of(data, split="train"):
    return open_source(data, split, 300, SEED, objective="causal")


def same(one, other):
    assert one.keys() == other.keys() == {"input_ids", "labels", "example_weights"}
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def test_batches_have_static_shapes(data):
    spec = train_batches(source_of(data), data, SEED, 0, 8, 2, 6).element_spec
    found = {name: (tuple(value.shape), value.dtype.name) for name, value in spec.items()}
    assert found == {
        "input_ids": ((4, 32), "int32"),
        "labels": ((4, 32), "int32"),
        "example_weights": ((4,), "float32"),
    }


def test_a_resumed_run_and_other_ranks_see_the_same_samples(data):
    source = source_of(data)
    whole = joined(train_batches(source, data, SEED, 0, 6, 0, 6), 20)
    assert (whole["input_ids"][:, 1:] == whole["labels"][:, :-1]).all()
    parts = [joined(train_batches(source_of(data), data, SEED, 54, 6, *share), 11) for share in ((0, 2), (2, 6))]
    both = {
        name: np.concatenate([part[name].reshape(11, -1, *part[name].shape[1:]) for part in parts], 1)
        for name in parts[0]
    }
    same({name: value[54:] for name, value in whole.items()}, {n: v.reshape(66, *v.shape[2:]) for n, v in both.items()})
    readers = dataclasses.replace(data, data_readers=4)
    same(whole, joined(train_batches(source, readers, SEED, 0, 6, 0, 6), 20))


def test_every_sequence_of_an_epoch_once(causal):
    data = DataConfig(data_dir=causal)
    source = source_of(data)
    count = source.num_examples
    batch = joined(train_batches(source, data, SEED, 0, count, 0, count), 1)
    written = sequences(causal, "train")
    assert sorted(np.concatenate([batch["input_ids"], batch["labels"][:, -1:]], 1).tolist()) == sorted(written)
    assert batch["labels"].tolist() != [row[1:] for row in written]


def test_evaluation_fills_the_last_batch_with_weight_0(causal):
    data = DataConfig(data_dir=causal)
    source = source_of(data, "eval")
    size = next(size for size in (5, 6, 7) if source.num_examples % size)
    batch = joined(eval_batches(source, data, size, 0, size))
    assert len(batch["labels"]) % size == 0
    assert batch["example_weights"].sum() == source.num_examples < len(batch["labels"])
    real = batch["example_weights"] > 0
    assert batch["labels"][real].tolist() == [row[1:] for row in sequences(causal, "eval")]


def test_synthetic_tokens_are_of_the_whole_vocabulary():
    data = DataConfig(synthetic_data=True, max_seq_length=64)
    source = open_source(data, "train", 7, SEED, objective="causal")
    batch = joined(train_batches(source, data, SEED, 0, 50, 0, 50), 2)
    counts = np.bincount(batch["labels"].reshape(-1), minlength=7)
    assert len(counts) == 7
    # Five standard deviations of a binomial count.
    assert (abs(counts - 6400 / 7) < 5 * np.sqrt(6400 / 7)).all()
    other = joined(train_batches(open_source(data, "train", 7, 6, objective="causal"), data, 6, 0, 50, 0, 50), 2)
    assert (batch["labels"] != other["labels"]).mean() > 0.7


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([5] * 16, "the record does not have 17 input_ids; expected max_seq_length=16 inputs and a label"),
        ([5] * 18, "the record does not have 17 input_ids"),
        ([], "the record does not have 17 input_ids"),
        ([5] * 16 + [300], "--vocab_size=300"),
        ([-1] + [5] * 16, "--vocab_size=300"),
        ([5] * 16 + [2**32 + 5], "--vocab_size=300"),
        ([5.0] * 17, "input_ids"),
        ([5] * 100_000, "the record does not have 17 input_ids"),
    ],
)
def test_record_that_is_no_sequence_is_named(tmp_path, ids, words):
    good = encode({"input_ids": [5] * 17})
    path = corpora.write_tfrecords(tmp_path / "shard", [good, encode({"input_ids": ids})])
    data = DataConfig(train_files=path)
    error = failure(source_of(data), data)
    assert f"{path}: byte {len(good) + 16}: " in str(error)
    assert words in str(error)


def test_data_of_the_other_objective_is_refused(causal, prepared):
    for folder, wanted, found in ((causal, "masked", "causal"), (prepared, "causal", "masked")):
        with pytest.raises(DataError, match=rf"--objective={found}, but --model_family=.* --objective={wanted}; "):
            open_source(DataConfig(data_dir=folder), "train", 300, SEED, objective=wanted)


def test_manifest_with_masks_and_without_pairs_is_refused(causal):
    manifest = read_manifest(causal)
    path = os.path.join(causal, "manifest.json")
    with open(path, "rb") as file:
        before = file.read()
    try:
        write_manifest(msgspec.structs.replace(manifest, masking="dynamic"))
        with pytest.raises(DataError, match="masking is 'dynamic' with objective causal; prepare the data again"):
            read_manifest(causal)
    finally:
        with open(path, "wb") as file:
            file.write(before)
