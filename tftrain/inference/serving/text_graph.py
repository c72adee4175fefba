"""From strings to token ids inside a graph, as `inference.TextEncoder` and `labelled.encoding.Encoder` do it.

WordPiece with BERT's normalization needs only ops of TensorFlow. sentencepiece, and WordPiece of data that was prepared
with --normalization=nfkc, need those of tensorflow-text. Byte-level BPE has no ops.
"""

import tensorflow as tf

from tftrain.formats.tokenizer import Tokenizer
from tftrain.inference.serving.character_graph import CharacterGraph
from tftrain.inference.serving.wordpiece_graph import WordPieceGraph
from tftrain.inference.trained_model import MASK, TrainedModel, encoder_batch
from tftrain.input.normalization import LONGEST_WORD

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
    """Turns texts into what the model reads, with the tables of a tokenizer that has ops.

    Attributes:
        tokenize: returns the token ids of texts without special tokens: string [n] to int32 [n, tokens].
    """

    def __init__(self, model: TrainedModel):
        super().__init__()
        tokenizer = model.tokenizer
        self._vocabulary, self._is_decoder = tokenizer.vocabulary, model.config.is_decoder
        self._longest = int(min(model.longest, 2**31 - 1))
        self._max_seq_length = model.max_seq_length
        if needs_tensorflow_text(tokenizer):
            from tftrain.input.tokenization import whole_text_tokenizer

            self._tokenizer = whole_text_tokenizer(tokenizer.vocabulary, tokenizer.lower_case, tokenizer.model)
            self.tokenize = self._tokenizer.tokenize
        else:
            characters = CharacterGraph(tokenizer.lower_case, tokenizer.strip_accents)
            self._pieces = WordPieceGraph(tokenizer.vocabulary)
            self.tokenize = lambda texts: self._pieces(characters.words(texts))

    def __call__(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns token ids and the mask of those that are not padding, int32 [n, S], of strings [n]."""
        ids = self._prompts(texts) if self._is_decoder else self._sentences(texts)
        lengths = tf.cast(ids.row_lengths(), tf.int32)
        return ids.to_tensor(), tf.sequence_mask(lengths, tf.reduce_max(lengths), tf.int32)

    def examples(self, *texts: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns what a fine-tuned model reads of texts, or of pairs: of one tensor of strings [n], or of two.

        [MASK] is not one token here. Sequences are cut as `encoding.cut_longest` does it.
        """
        parts = [self.tokenize(each) for each in texts]
        lengths = [part.row_lengths() for part in parts]
        most = self._max_seq_length - 1 - len(parts)
        if len(parts) == 1:
            kept = [tf.minimum(lengths[0], most)]
        else:
            first, second = lengths
            rest = tf.maximum(most - first, tf.minimum(second, most // 2))
            kept = [tf.minimum(first, most - tf.minimum(rest, second)), tf.minimum(rest, second)]
        pieces = [tf.fill([parts[0].nrows(), 1], self._vocabulary.id("[CLS]"))]
        for part, length in zip(parts, kept, strict=True):
            # Of an axis without elements there is nothing to cut.
            pieces.append(tf.RaggedTensor.from_tensor(part.to_tensor(), lengths=length))
            pieces.append(tf.fill([part.nrows(), 1], self._vocabulary.id("[SEP]")))
        ids = tf.concat(pieces, axis=1)
        ends = tf.cast(ids.row_lengths(), tf.int32)
        places = tf.range(tf.reduce_max(ends))[tf.newaxis]
        mask = tf.cast(places < ends[:, tf.newaxis], tf.int32)
        in_second = tf.cast(places >= tf.cast(kept[0], tf.int32)[:, tf.newaxis] + 2, tf.int32)
        return encoder_batch(ids.to_tensor(), mask, in_second * mask)

    def _sentences(self, texts: tf.Tensor) -> tf.RaggedTensor:
        first, last, mask = (self._vocabulary.id(token) for token in ("[CLS]", "[SEP]", MASK))
        parts = tf.strings.split(texts, MASK)
        tokens = self._tokens(parts.flat_values)
        # A mask before each part; the first one is then left out.
        tokens = tf.concat([tf.fill([tokens.nrows(), 1], mask), tokens], axis=1)
        ids = parts.with_flat_values(tokens).merge_dims(1, 2)[:, 1 : self._longest - 1]
        return tf.concat([tf.fill([ids.nrows(), 1], first), ids, tf.fill([ids.nrows(), 1], last)], axis=1)

    def _prompts(self, texts: tf.Tensor) -> tf.RaggedTensor:
        tokens = self._tokens(texts)
        is_empty = tokens.row_lengths() == 0
        ends = tf.fill([tf.reduce_sum(tf.cast(is_empty, tf.int32))], self._vocabulary.end_id)
        end = tf.RaggedTensor.from_row_lengths(ends, tf.cast(is_empty, tf.int64))
        return tf.concat([end, tokens], axis=1)[:, -self._longest :]

    def _tokens(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return self.tokenize(tf.strings.regex_replace(texts, _SPACELESS, r"\1 "))
