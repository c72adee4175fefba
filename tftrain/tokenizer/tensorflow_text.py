"""Token ids by ops of tensorflow-text: those of sentencepiece, and of WordPiece with --normalization=nfkc."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from tftrain.tokenizer.vocabulary import Vocabulary
from tftrain.tokenizer.words import CHARACTERS_AT_ONCE, by_size


def ops(vocabulary: Vocabulary, lower_case: bool, model: bytes | None) -> tf_text.Tokenizer:
    """Returns tensorflow-text's tokenizer of a sentencepiece model, or, without one, of WordPiece with "nfkc"."""
    if model is not None:
        return tf_text.SentencepieceTokenizer(model, out_type=tf.int32)
    kinds = {"suffix_indicator": "##", "unknown_token": "[UNK]", "token_out_type": tf.int32}
    return tf_text.FastBertTokenizer(list(vocabulary.tokens), lower_case_nfd_strip_accents=lower_case, **kinds)


def encode(tokenizer: tf_text.Tokenizer, texts: Sequence[str]) -> list[np.ndarray]:
    """Returns the token ids of each text, int32."""
    ids: list[np.ndarray] = []
    for part in by_size(texts, CHARACTERS_AT_ONCE):
        tokens = tokenizer.tokenize(tf.constant(part))
        ids += np.split(tokens.flat_values.numpy(), tokens.row_splits.numpy()[1:-1])
    return ids
