"""Fuzz targets of the data: shards, their indexes, manifests, vocabularies and the models of tokenizers."""

import hashlib
import json
import os
from collections import Counter

import numpy as np

from tests.fuzz.harness import Target
from tests.fuzz.mutations import mutate, mutate_json
from tftrain.config.data import DataConfig
from tftrain.data import manifest, opened
from tftrain.data.example import encode
from tftrain.data.manifest import Manifest, Shard
from tftrain.data.records import RecordSet, frame, write_records
from tftrain.data.sizes import Sizes
from tftrain.files.errors import DataError, data_error
from tftrain.tokenizer.vocabulary import SPECIAL_TOKENS, read_vocabulary

LENGTH, SLOTS, VOCAB_SIZE, RECORDS, BATCH = 16, 3, 40, 6, 4
TOKENS = [*SPECIAL_TOKENS, *(f"w{number}" for number in range(VOCAB_SIZE // 2)), *(f"##{c}" for c in "abcdefghijklmno")]
PROBES = ["w1 W2abc w19", "", "[MASK] \u00c5 \ufb01 \u65e5\u672c \U0001f600", "x" * 3000, "a\u0300\0b"]


def static_example(rng) -> dict:
    """Returns the features of a record in the standard format."""
    from tests.kit import corpora

    return corpora.standard_example(rng, VOCAB_SIZE, LENGTH, SLOTS)[1]


def dynamic_example(rng) -> dict:
    """Returns the features of a record as `tftrain.prepare` writes it."""
    return {
        "input_ids": [2, *rng.integers(5, VOCAB_SIZE, int(rng.integers(6, LENGTH - 1))).tolist(), 3],
        "second_segment_start": [4],
        "next_sentence_labels": [int(rng.integers(2))],
    }


def damage_features(rng, features: dict) -> dict:
    """Returns features of which one is missing, too long, of another type, or holds an odd value."""
    name = str(rng.choice(list(features)))
    values, kind = list(features[name]), rng.integers(5)
    if kind == 0:
        return {other: values for other, values in features.items() if other != name}
    if kind == 1:
        values = values * int(rng.choice([0, 2, 5000]))
    elif kind == 2:
        values = [float(value) for value in values] if isinstance(values[0], int) else [1] * len(values)
    elif isinstance(values[0], float):
        values[rng.integers(len(values))] = float(rng.choice([np.nan, np.inf, -1, 2, 1e38, 0.5]))
    else:
        odd = [-1, 0, 1, 2, LENGTH, VOCAB_SIZE, 2**31, 2**32, 2**32 + 1, 2**63 - 1, -(2**63)]
        values[rng.integers(len(values))] = odd[rng.integers(len(odd))]
    return features | {name: values}


class Records(Target):
    """Shards whose bytes, records or features are damaged, with right checksums as a rule; parsed as in training."""

    name, clean = "records", (DataError,)
    example = staticmethod(static_example)

    def begin(self):
        rng = np.random.default_rng(0)
        self._examples = [self.example(rng) for _ in range(RECORDS)]
        self._records, self._batch = None, None

    def damage(self, rng, folder):
        payloads, kind = list(map(encode, self._examples)), rng.random()
        number = rng.integers(RECORDS)
        if kind < 0.4:
            payloads[number] = encode(damage_features(rng, self._examples[number]))
        elif kind < 0.7:
            payloads[number] = mutate(rng, payloads[number])
        content = b"".join(map(frame, payloads))
        (folder / "shard").write_bytes(content if kind < 0.7 else mutate(rng, content))
        return "shard: "

    def use(self, folder):
        path = str(folder / "shard")
        self._records = RecordSet([path])
        self._check_sizes(path)
        for first in range(0, len(self._records), BATCH):
            self._check_batch(self._run(first))

    def _check_sizes(self, path):
        length, slots = opened.record_sizes([path], "masked")
        if (length, slots) != (LENGTH, SLOTS):
            raise DataError(f"{path}: refused, as a flag would: {length} and {slots}")

    def _run(self, first):
        import tensorflow as tf

        if self._batch is None:
            source, order = self._source(), lambda numbers: numbers % len(self._records)
            self._batch = tf.function(lambda number: source.batch(number, BATCH, order), autograph=False)
        try:
            return {name: value.numpy() for name, value in self._batch(tf.constant(first, tf.int64)).items()}
        except tf.errors.OpError as error:
            if (cause := data_error(error)) is None:
                raise
            raise cause from error

    def _source(self):
        from tftrain.data.masked_source import StaticSource

        return StaticSource(self, Sizes(VOCAB_SIZE, LENGTH, SLOTS))

    # What a source asks of its records, which are others in every case.

    is_remote = False

    def __len__(self):
        return len(self._records)

    def read(self, number):
        return self._records.read(number)

    def read_all(self, numbers):
        return self._records.read_all(numbers)

    def place(self, number):
        return self._records.place(number)

    def _check_batch(self, batch):
        limits = {"input_ids": VOCAB_SIZE, "masked_lm_ids": VOCAB_SIZE, "input_mask": 2, "segment_ids": 2}
        limits |= {"next_sentence_labels": 2, "masked_lm_positions": LENGTH}
        for name, limit in limits.items():
            assert batch[name].min() >= 0, name
            assert batch[name].max() < limit, name
        assert ((batch["masked_lm_weights"] >= 0) & (batch["masked_lm_weights"] <= 1)).all()


class PreparedRecords(Records):
    """The same of prepared pairs, which are masked when they are read."""

    name = "prepared_records"
    example = staticmethod(dynamic_example)

    def _check_sizes(self, path):
        pass

    def _source(self):
        from tftrain.data.masked_source import DynamicSource
        from tftrain.data.masking import Masking
        from tftrain.tokenizer.vocabulary import Vocabulary

        vocabulary = Vocabulary(tuple(TOKENS), "wordpiece")
        return DynamicSource(self, Masking(vocabulary, LENGTH, SLOTS, 0.15, False, 1), VOCAB_SIZE)


class Sequences(Records):
    """The same of sequences for a decoder."""

    name = "sequences"
    example = staticmethod(lambda rng: {"input_ids": rng.integers(0, VOCAB_SIZE, LENGTH + 1).tolist()})

    def _check_sizes(self, path):
        length, _ = opened.record_sizes([path], "causal")
        if length != LENGTH:
            raise DataError(f"{path}: refused, as a flag would: {length}")

    def _source(self):
        from tftrain.data.causal_source import CausalSource

        return CausalSource(self, Sizes(VOCAB_SIZE, LENGTH, LENGTH))

    def _check_batch(self, batch):
        for ids in batch.values():
            assert ids.min() >= 0
            assert ids.max() < VOCAB_SIZE
        assert (batch["input_ids"][:, 1:] == batch["labels"][:, :-1]).all()


class Index(Target):
    """Indexes beside a good shard: they are made anew, or its records are read right, or refused."""

    name, clean = "index", (DataError,)

    def begin(self):
        rng = np.random.default_rng(0)
        self._payloads = [rng.bytes(int(size)) for size in rng.integers(0, 50, 20)]

    def damage(self, rng, folder):
        write_records(str(folder / "shard"), self._payloads)
        index = folder / "shard.index"
        if rng.random() < 0.3:
            offsets = np.load(index)
            changed = rng.choice(offsets, rng.integers(0, len(offsets) + 3)) + rng.integers(0, 3).astype(np.uint64)
            with open(index, "wb") as file:
                np.save(file, np.sort(changed) if rng.random() < 0.8 else changed)
        else:
            index.write_bytes(mutate(rng, index.read_bytes()))
        return "shard"

    def use(self, folder):
        records = RecordSet([str(folder / "shard")])
        assert [records.read(number) for number in range(len(records))] == self._payloads


class DataManifest(Target):
    """Manifests beside good shards; what an accepted one names lies in the folder, and training can open it."""

    name, clean = "data_manifest", (DataError,)

    def damage(self, rng, folder):
        draw = np.random.default_rng(0)
        splits = {}
        for split in ("train", "eval"):
            write_records(str(folder / split), [encode(dynamic_example(draw)) for _ in range(RECORDS)])
            splits[split] = [Shard(split, RECORDS, (folder / split).stat().st_size)]
        vocabulary = "".join(token + "\n" for token in TOKENS)
        (folder / "vocab.txt").write_text(vocabulary)
        (folder / "link").symlink_to("..")
        (folder / "out").symlink_to("../precious")
        os.mkfifo(folder / "pipe")
        digest = hashlib.sha256(vocabulary.encode()).hexdigest()
        manifest.write_manifest(
            Manifest(
                folder=str(folder),
                masking="dynamic",
                tokenizer_type="wordpiece",
                vocab_file="vocab.txt",
                vocab_size=len(TOKENS),
                vocab_sha256=digest,
                tokenizer_file=None,
                lower_case=True,
                max_seq_length=LENGTH,
                max_predictions_per_seq=None,
                documents=3,
                tokens_read=100,
                tokens_in_examples=90,
                tokens_dropped={"duplicate_paragraph": 10},
                unk_share=0.25,
                seed=1,
                splits=splits,
            )
        )
        path = folder / manifest.NAME
        if rng.random() < 0.7:
            names = ("vocab.txt", "train", "train.index", "static", "sentencepiece", digest)
            # Python's own parser reads the NaN that its writer writes.
            path.write_text(json.dumps(mutate_json(rng, json.loads(path.read_text()), names)))
        else:
            path.write_bytes(mutate(rng, path.read_bytes()))
        return str(folder)

    def use(self, folder):
        from tftrain.config.model import ModelConfig
        from tftrain.data.prepared import open_data
        from tftrain.data.source import open_source

        data = DataConfig(data_dir=str(folder))
        for problem in open_data(data, ModelConfig()).problems("train", 0):
            assert str(problem).isprintable()
        found = manifest.read_manifest(str(folder))
        for name in [*_names(found), *manifest.listed_files(str(folder))]:
            assert os.path.realpath(folder / name).startswith(os.path.join(os.path.realpath(folder), "")), name
        open_source(open_data(data, ModelConfig()), "train", 1)


def _names(found: Manifest) -> list[str]:
    return [found.vocab_file, *(shard.file for shards in found.splits.values() for shard in shards)]


class VocabularyFile(Target):
    """Vocabularies; one that is accepted makes a tokenizer whose ids lie in it."""

    name, clean = "vocabulary", (DataError,)

    def damage(self, rng, folder):
        content = "".join(token + "\n" for token in TOKENS).encode()
        if rng.random() < 0.5:
            lines = content.split(b"\n")
            odd = [
                *(b"", b"##", b"####", b"\x00", b"[unused1]", b"a" * 1000, b" "),
                "##\u00e9".encode(),
                "\u0300\u200b".encode(),
            ]
            for _ in range(int(rng.integers(1, 5))):
                lines[rng.integers(len(lines))] = odd[rng.integers(len(odd))]
            content = b"\n".join(lines)
        else:
            content = mutate(rng, content)
        (folder / "vocab.txt").write_bytes(content)
        return "vocab.txt"

    def use(self, folder):
        from tftrain.tokenizer.tokenizer_model import Tokenizer

        vocabulary = read_vocabulary(str(folder / "vocab.txt"), "wordpiece")
        assert len(vocabulary.ordinary_ids) > 0
        for ids in Tokenizer(vocabulary, True, "bert").build()(PROBES):
            assert ((ids >= 0) & (ids < len(vocabulary))).all()


class SentencepieceModel(Target):
    """Sentencepiece models, damaged as bytes and field by field; the library that reads them is written in C++."""

    name, clean = "sentencepiece", (DataError,)

    def begin(self):
        from tftrain.tokenizer.vocabulary_learner import learn_sentencepiece

        counts = Counter({f"w{number}{c}": 1 + number for number in range(40) for c in "abcdefghij"})
        _, self._model = learn_sentencepiece(counts, 80, True)

    def damage(self, rng, folder):
        model = self._model
        kind = rng.integers(3)
        (folder / "x.model").write_bytes(mutate(rng, model) if kind == 0 else self._edited(rng, kind == 1))
        return "x.model"

    def _edited(self, rng, normalization):
        from sentencepiece import sentencepiece_model_pb2

        edited = sentencepiece_model_pb2.ModelProto.FromString(self._model)
        if normalization:
            rules = edited.normalizer_spec.precompiled_charsmap
            edited.normalizer_spec.precompiled_charsmap = mutate(rng, rules)
            return edited.SerializeToString()
        for _ in range(int(rng.integers(1, 6))):
            piece = edited.pieces[rng.integers(len(edited.pieces))]
            kind = rng.integers(5)
            if kind == 0:
                piece.score = float(rng.choice([np.nan, np.inf, -np.inf, 1e38, 0]))
            elif kind == 1:
                piece.type = int(rng.integers(1, 7))
            elif kind == 2:
                piece.piece = str(rng.choice(["", "a", "a\0b", "x" * 5000, "<0x41>", "\n", "\u2581"]))
            elif kind == 3:
                edited.trainer_spec.model_type = int(rng.integers(1, 5))
            else:
                del edited.pieces[rng.integers(len(edited.pieces)) :]
                break
        return edited.SerializeToString()

    def use(self, folder):
        from tftrain.tokenizer.tokenizer_model import Tokenizer
        from tftrain.tokenizer.vocabulary_learner import sentencepiece_vocabulary

        model = (folder / "x.model").read_bytes()
        vocabulary = sentencepiece_vocabulary(model, str(folder / "x.model"))
        for ids in Tokenizer(vocabulary, True, "nfkc", model).build()(PROBES):
            assert ((ids >= 0) & (ids < len(vocabulary))).all()


class BytePairs(Target):
    """Byte-level BPE in both formats; the library that reads them is written in Rust."""

    name, clean = "byte_pairs", (DataError,)

    def begin(self):
        from tftrain.tokenizer.byte_pairs import learn_byte_pairs

        _, self._model = learn_byte_pairs([[f"w{number % 40} abcdef" for number in range(200)]], 280)

    def damage(self, rng, folder):
        model, kind = json.loads(self._model), rng.integers(4)
        if kind < 2:
            around = {name: part for name, part in model.items() if name != "model"}
            edited = mutate_json(rng, around, ("a", True, "BPE", "ByteLevel", "Lowercase"))
            edited = {**edited, "model": model["model"]} if isinstance(edited, dict) else edited
            (folder / "tokenizer.json").write_bytes(mutate(rng, self._model) if kind else json.dumps(edited).encode())
            return "tokenizer.json"
        pairs, merges = model["model"]["vocab"], "\n".join(map(" ".join, model["model"]["merges"])).encode()
        (folder / "vocab.json").write_text(json.dumps(mutate_json(rng, pairs, ("a",)) if kind == 2 else pairs))
        (folder / "merges.txt").write_bytes(mutate(rng, merges) if kind == 3 else merges)
        return "vocab.json" if kind == 2 else ""

    def use(self, folder):
        from tftrain.tokenizer.byte_pairs import read_byte_pairs
        from tftrain.tokenizer.pipelines import encode, read

        name = "vocab.json" if (folder / "vocab.json").exists() else "tokenizer.json"
        vocabulary, model = read_byte_pairs(str(folder / name))
        for text, ids in zip(PROBES, encode(read(model), PROBES), strict=True):
            assert ((ids >= 0) & (ids < len(vocabulary))).all()
            assert vocabulary.decode(ids) == text
