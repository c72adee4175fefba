"""From strings to token ids inside a graph, as `inference.TextEncoder` does it.

WordPiece with BERT's normalization needs only ops of TensorFlow. sentencepiece, and WordPiece of data that was prepared
with --normalization=nfkc, need those of tensorflow-text. Byte-level BPE has no ops.
"""

import tensorflow as tf

from tftrain.data.normalization import LONGEST_WORD
from tftrain.formats.tokenizer import Tokenizer
from tftrain.inference import MASK, TrainedModel
from tftrain.serving.character_graph import CharacterGraph
from tftrain.serving.wordpiece_graph import WordPieceGraph

# As in `normalization.cut_spaceless`, but a part may begin with a mark.
_SPACELESS = (
    r"([\x{0e00}-\x{0fff}\x{1000}-\x{109f}\x{1780}-\x{17ff}\x{1980}-\x{1aaf}\x{3041}-\x{30ff}]" f"{{{LONGEST_WORD}}})"
)


def has_ops(tokenizer: Tokenizer | None) -> bool:
    """Whether there are ops for a tokenizer."""
    return tokenizer is not None and tokenizer.vocabulary.tokenizer_type != "bpe"


def needs_tensorflow_text(tokenizer: Tokenizer) -> bool:
    """Whether some of these ops are those of tensorflow-text."""
    return tokenizer.vocabulary.tokenizer_type != "wordpiece" or tokenizer.normalization != "bert"


class TextGraph(tf.Module):
    """Turns texts into what the model reads."""

    def __init__(self, model: TrainedModel):
        """Makes the tables of a tokenizer that has ops."""
        super().__init__()
        tokenizer = model.tokenizer
        self._vocabulary, self._is_decoder = tokenizer.vocabulary, model.config.is_decoder
        self._longest = int(min(model.longest, 2**31 - 1))
        if needs_tensorflow_text(tokenizer):
            self._tokenizer = _of_tensorflow_text(tokenizer)
            self._tokenize = self._tokenizer.tokenize
        else:
            characters, self._pieces = CharacterGraph(tokenizer.lower_case), WordPieceGraph(tokenizer.vocabulary)
            self._tokenize = lambda texts: self._pieces(characters.words(texts))

    def __call__(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns token ids and the mask of those that are no padding, int32 [n, S], of strings [n]."""
        ids = self._prompts(texts) if self._is_decoder else self._sentences(texts)
        lengths = tf.cast(ids.row_lengths(), tf.int32)
        return ids.to_tensor(), tf.sequence_mask(lengths, tf.reduce_max(lengths), tf.int32)

    def _sentences(self, texts: tf.Tensor) -> tf.RaggedTensor:
        first, last, mask = (self._vocabulary.id(token) for token in ("[CLS]", "[SEP]", MASK))
        parts = tf.strings.split(texts, MASK)
        tokens = self._tokens(parts.flat_values)
        # A mask in front of each part; the first one is then left out.
        count = tokens.nrows()
        tokens = tf.concat([tf.fill([count, 1], mask), tokens], axis=1)
        ids = parts.with_flat_values(tokens).merge_dims(1, 2)[:, 1 : self._longest - 1]
        count = ids.nrows()
        return tf.concat([tf.fill([count, 1], first), ids, tf.fill([count, 1], last)], axis=1)

    def _prompts(self, texts: tf.Tensor) -> tf.RaggedTensor:
        tokens = self._tokens(texts)
        end = tf.RaggedTensor.from_row_lengths(
            tf.fill([tf.reduce_sum(tf.cast(tokens.row_lengths() == 0, tf.int32))], self._vocabulary.end_id),
            tf.cast(tokens.row_lengths() == 0, tf.int64),
        )
        return tf.concat([end, tokens], axis=1)[:, -self._longest :]

    def _tokens(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return self._tokenize(tf.strings.regex_replace(texts, _SPACELESS, r"\1 "))


def _of_tensorflow_text(tokenizer: Tokenizer):
    import tensorflow_text as tf_text

    if tokenizer.model is not None:
        return tf_text.SentencepieceTokenizer(tokenizer.model, out_type=tf.int32)
    return tf_text.FastBertTokenizer(
        vocab=list(tokenizer.vocabulary.tokens),
        suffix_indicator="##",
        unknown_token="[UNK]",
        token_out_type=tf.int32,
        lower_case_nfd_strip_accents=tokenizer.lower_case,
    )
