"""The two tasks of a preparation worker: count the words of a chunk, or write a chunk as a shard of examples."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tftrain.data.example import encode
from tftrain.data.masking import Masking, stream_key
from tftrain.data.normalization import cut_spaceless
from tftrain.data.pairs import Document, Pair, make_pairs
from tftrain.data.records import write_records
from tftrain.data.sentences import split_sentences
from tftrain.data.spool import Chunk, Spool
from tftrain.data.tokenization import Tokenizer, count_words
from tftrain.data.vocabulary import Vocabulary
from tftrain.prepare_config import PrepareConfig

_MASKED_AT_ONCE = 1024


class CountTask(NamedTuple):
    """The arguments of `count_chunk`."""

    spool: Spool
    chunk: Chunk
    tokenizer_type: str
    lower_case: bool
    normalization: str


class ShardTask(NamedTuple):
    """The arguments of `write_shard`.

    Attributes:
        spool, chunk: the documents.
        config: the configuration of pairs and masks.
        vocabulary, model: the tokenizer. The model is None for WordPiece.
        max_predictions_per_seq: maximum number of masked tokens of a static example; None if masking is dynamic.
        path: path of the shard.
    """

    spool: Spool
    chunk: Chunk
    config: PrepareConfig
    vocabulary: Vocabulary
    model: bytes | None
    max_predictions_per_seq: int | None
    path: str


class ShardResult(NamedTuple):
    """The number of examples of a shard, and the numbers of tokens and documents of its chunk."""

    examples: int
    tokens: int
    documents: int


def count_chunk(task: CountTask) -> Counter:
    """Counts the words of a chunk."""
    sentences = [sentence for document in task.spool.read(task.chunk) for sentence in _sentences(document)]
    return count_words(sentences, task.tokenizer_type, task.lower_case, task.normalization)


def write_shard(task: ShardTask) -> ShardResult:
    """Writes the examples of a chunk and their index, in random order. Without examples, no file is written."""
    config, chunk = task.config, task.chunk
    tokenizer = Tokenizer(task.vocabulary, config.lower_case, task.model, config.resolved_normalization)
    documents = _tokenize(task.spool.read(chunk), tokenizer)
    tokens = sum(len(sentence) for document in documents for sentence in document)
    split = int(chunk.split == "eval")
    pairs: list[Pair] = []
    for turn in range(config.dupe_factor or (10 if config.masking == "static" else 1)):
        rng = np.random.default_rng([config.seed, split, chunk.number, turn])
        pairs += make_pairs(documents, task.vocabulary, config.max_seq_length, config.short_seq_prob, rng)
    if not pairs:
        return ShardResult(0, tokens, len(documents))
    shuffled = [
        pairs[number] for number in np.random.default_rng([config.seed, split, chunk.number]).permutation(len(pairs))
    ]
    if config.masking == "dynamic":
        payloads = (
            encode(
                {
                    "input_ids": pair.input_ids,
                    "second_segment_start": [pair.second_segment_start],
                    "next_sentence_labels": [pair.next_sentence_label],
                }
            )
            for pair in shuffled
        )
    else:
        payloads = _masked(shuffled, task)
    return ShardResult(write_records(task.path, payloads), tokens, len(documents))


def _sentences(document: list[str]) -> list[str]:
    return [cut_spaceless(sentence) for paragraph in document for sentence in split_sentences(paragraph)]


def _tokenize(documents: list[list[str]], tokenizer: Tokenizer) -> list[Document]:
    """Returns the documents as token ids. Empty sentences and empty documents are removed."""
    sentences = [_sentences(document) for document in documents]
    ids = iter(tokenizer([sentence for document in sentences for sentence in document]))
    tokenized = [[tokens.tolist() for tokens in (next(ids) for _ in document) if len(tokens)] for document in sentences]
    return [document for document in tokenized if document]


def _masked(pairs: list[Pair], task: ShardTask) -> Iterator[bytes]:
    """Yields the masked pairs in the standard BERT pre-training format."""
    config, length = task.config, task.config.max_seq_length
    key = stream_key(config.seed, f"static {task.chunk.split} {task.chunk.number}")
    masking = Masking(
        task.vocabulary, length, task.max_predictions_per_seq, config.masked_lm_prob, config.whole_word_masking, key
    )
    for begin in range(0, len(pairs), _MASKED_AT_ONCE):
        block = pairs[begin : begin + _MASKED_AT_ONCE]
        tokens = tf.RaggedTensor.from_row_lengths(
            np.concatenate([pair.input_ids for pair in block]).astype(np.int32), [len(pair.input_ids) for pair in block]
        )
        batch = {name: value.numpy().tolist() for name, value in masking(tokens, tf.constant(begin, tf.int64)).items()}
        for row, pair in enumerate(block):
            size, start = len(pair.input_ids), pair.second_segment_start
            yield encode(
                {name: value[row] for name, value in batch.items()}
                | {
                    "input_mask": [1] * size + [0] * (length - size),
                    "segment_ids": [0] * start + [1] * (size - start) + [0] * (length - size),
                    "next_sentence_labels": [pair.next_sentence_label],
                }
            )
