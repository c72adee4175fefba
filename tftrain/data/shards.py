"""The two tasks of a preparation worker: count the words of a chunk, or write a chunk as a shard of examples."""

from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tftrain.data.accounting import Accounting, DecodedExample, decode
from tftrain.data.example import encode
from tftrain.data.masking import Masking, stream_key
from tftrain.data.normalization import cut_spaceless
from tftrain.data.pairs import Pair, TokenizedText, make_pairs
from tftrain.data.records import write_records
from tftrain.data.sentences import split_sentences
from tftrain.data.spool import Chunk, Spool, SpooledDocument
from tftrain.data.tokenization import Tokenizer, count_words
from tftrain.data.unknown_words import count_unknown_words
from tftrain.data.vocabulary import Vocabulary
from tftrain.prepare_config import PrepareConfig

_MASKED_AT_ONCE = 1024
_SHOWN, _SHOWN_TOKENS = 3, 60


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


class _Example(NamedTuple):
    """One example before masking: [CLS] A [SEP] B [SEP].

    Attributes:
        input_ids: token ids.
        second_segment_start: position of the first token of B.
        next_sentence_label: 1 if B is random, 0 if it follows A.
    """

    input_ids: list[int]
    second_segment_start: int
    next_sentence_label: int


def count_chunk(task: CountTask) -> Counter:
    """Counts the words of a chunk."""
    documents = task.spool.read(task.chunk)
    sentences = [sentence for document in documents for sentence in _sentences(document.paragraphs)]
    return count_words(sentences, task.tokenizer_type, task.lower_case, task.normalization)


def write_shard(task: ShardTask) -> Accounting:
    """Writes the examples of a chunk and their index, in random order. Without examples, no file is written."""
    config, chunk = task.config, task.chunk
    tokenizer = Tokenizer(task.vocabulary, config.lower_case, task.model, config.resolved_normalization)
    text, accounting = _tokenize(task.spool.read(chunk), tokenizer, task.vocabulary.id("[UNK]"))
    split = int(chunk.split == "eval")
    pairs: list[Pair] = []
    for turn in range(config.dupe_factor or (10 if config.masking == "static" else 1)):
        rng = np.random.default_rng([config.seed, split, chunk.number, turn])
        pairs += make_pairs(text, config.max_seq_length, config.short_seq_prob, rng)
    accounting = _with_pairs(accounting, text, pairs, task.vocabulary)
    if not pairs:
        return accounting
    order = np.random.default_rng([config.seed, split, chunk.number]).permutation(len(pairs))
    examples = (_example(text, pairs[number], task.vocabulary) for number in order)
    if config.masking == "dynamic":
        payloads = (
            encode(
                {
                    "input_ids": example.input_ids,
                    "second_segment_start": [example.second_segment_start],
                    "next_sentence_labels": [example.next_sentence_label],
                }
            )
            for example in examples
        )
    else:
        payloads = _masked(examples, task)
    write_records(task.path, payloads)
    return accounting._replace(shown=[_decoded(text, pairs[number], task.vocabulary) for number in order[:_SHOWN]])


def _sentences(paragraphs: list[str]) -> list[str]:
    return [cut_spaceless(sentence) for paragraph in paragraphs for sentence in split_sentences(paragraph)]


def _tokenize(documents: list[SpooledDocument], tokenizer: Tokenizer, unknown: int) -> tuple[TokenizedText, Accounting]:
    """Returns the text of a chunk without its duplicates, and its tokens, but for those of examples."""
    kept = [_sentences(document.paragraphs) for document in documents]
    sentences = list(chain.from_iterable(kept))
    ids = tokenizer(sentences)
    remaining = iter(ids)
    text = TokenizedText.join([list(islice(remaining, len(document))) for document in kept])
    duplicates = tokenizer([sentence for document in documents for sentence in _sentences(document.duplicates)])
    accounting = Accounting(
        documents=len(text.documents) - 1,
        tokens_read=len(text.tokens) + sum(map(len, duplicates)),
        duplicate_tokens=sum(map(len, duplicates)),
        unknown_words=count_unknown_words(sentences, ids, tokenizer, unknown),
    )
    return text, accounting


def _with_pairs(accounting: Accounting, text: TokenizedText, pairs: list[Pair], vocabulary: Vocabulary) -> Accounting:
    """Adds the tokens that occur in examples. A token counts once, even if several examples contain it."""
    in_examples = np.zeros(len(text.tokens), bool)
    for pair in pairs:
        in_examples[pair.first : pair.first_end] = True
        in_examples[pair.second : pair.second_end] = True
    alone = text.documents[:-1][np.diff(text.documents) == 1]
    return accounting._replace(
        examples=len(pairs),
        random_next=sum(pair.next_sentence_label for pair in pairs),
        tokens_in_examples=int(in_examples.sum()),
        lone_tokens=int((~in_examples[alone]).sum()),
        unknown_tokens=int((text.tokens[in_examples] == vocabulary.id("[UNK]")).sum()),
    )


def _example(text: TokenizedText, pair: Pair, vocabulary: Vocabulary) -> _Example:
    cls, sep = vocabulary.id("[CLS]"), vocabulary.id("[SEP]")
    first = text.tokens[pair.first : pair.first_end].tolist()
    second = text.tokens[pair.second : pair.second_end].tolist()
    return _Example([cls, *first, sep, *second, sep], len(first) + 2, pair.next_sentence_label)


def _decoded(text: TokenizedText, pair: Pair, vocabulary: Vocabulary) -> DecodedExample:
    """Returns the beginnings of the segments as text."""
    segments = [
        decode([vocabulary.tokens[number] for number in text.tokens[begin : min(end, begin + _SHOWN_TOKENS)]])
        for begin, end in ((pair.first, pair.first_end), (pair.second, pair.second_end))
    ]
    return DecodedExample(*segments, pair.next_sentence_label)


def _masked(examples: Iterator[_Example], task: ShardTask) -> Iterator[bytes]:
    """Yields the masked examples in the standard BERT pre-training format."""
    config, length = task.config, task.config.max_seq_length
    key = stream_key(config.seed, f"static {task.chunk.split} {task.chunk.number}")
    masking = Masking(
        task.vocabulary, length, task.max_predictions_per_seq, config.masked_lm_prob, config.whole_word_masking, key
    )
    begin = 0
    while block := list(islice(examples, _MASKED_AT_ONCE)):
        tokens = tf.RaggedTensor.from_row_lengths(
            np.concatenate([example.input_ids for example in block]).astype(np.int32),
            [len(example.input_ids) for example in block],
        )
        batch = {name: value.numpy().tolist() for name, value in masking(tokens, tf.constant(begin, tf.int64)).items()}
        for row, example in enumerate(block):
            size, start = len(example.input_ids), example.second_segment_start
            yield encode(
                {name: value[row] for name, value in batch.items()}
                | {
                    "input_mask": [1] * size + [0] * (length - size),
                    "segment_ids": [0] * start + [1] * (size - start) + [0] * (length - size),
                    "next_sentence_labels": [example.next_sentence_label],
                }
            )
        begin += len(block)
