"""Static masks: examples in the standard BERT pre-training format, masked when they are written."""

from collections.abc import Iterator
from itertools import islice

import numpy as np
import tensorflow as tf

from tftrain.config.prepare import PrepareConfig
from tftrain.input.example import encode
from tftrain.input.masking import Masking, stream_key
from tftrain.input.vocabulary import Vocabulary
from tftrain.prepare.corpus_chunks import Chunk
from tftrain.prepare.pairs import PairedExample

_MASKED_AT_ONCE = 1024


def masked_examples(
    examples: Iterator[PairedExample], chunk: Chunk, vocabulary: Vocabulary, config: PrepareConfig, slots: int
) -> Iterator[bytes]:
    """Yields the masked examples of a chunk, serialized, with at most `slots` masked tokens.

    The mask of an example depends on its position.
    """
    length = config.max_seq_length
    key = stream_key(config.seed, f"static {chunk.split} {chunk.number}")
    masking = Masking(vocabulary, length, slots, config.masked_lm_prob, config.whole_word_masking, key)
    begin = 0
    while block := list(islice(examples, _MASKED_AT_ONCE)):
        ids = np.concatenate([example.input_ids for example in block]).astype(np.int32)
        tokens = tf.RaggedTensor.from_row_lengths(ids, [len(example.input_ids) for example in block])
        batch = {name: value.numpy().tolist() for name, value in masking(tokens, tf.constant(begin, tf.int64)).items()}
        for row, example in enumerate(block):
            size, start = len(example.input_ids), example.second_segment_start
            features = {
                "input_mask": [1] * size + [0] * (length - size),
                "segment_ids": [0] * start + [1] * (size - start) + [0] * (length - size),
                "next_sentence_labels": [example.next_sentence_label],
            }
            yield encode({name: value[row] for name, value in batch.items()} | features)
        begin += len(block)
