"""From strings to token ids inside a graph, as `inference.TextEncoder` and `finetune.encoding.ExampleEncoder` do it.

WordPiece with BERT's normalization needs only ops of TensorFlow, and so do tokenizers of the library's format as far as
`pipeline_graph` has them. sentencepiece, and WordPiece of data that was prepared with --normalization=nfkc, need those
of tensorflow-text. The library `tokenizers` is the specification of the ops of TensorFlow.

Every rule of BERT's normalization but the canonical ordering of NFD looks at one code point. So a code point has one of
five kinds, and ranges of code points with one kind are a table of some thousand rows. Marks in another order than the
canonical one keep it.
"""

import functools
import sys

import numpy as np
import tensorflow as tf

from tftrain.inference.serving.code_points import Kinds, characters, looked_up, replaced
from tftrain.inference.serving.piece_graphs import table
from tftrain.inference.serving.pipeline_graph import PipelineGraph, Step
from tftrain.inference.trained_model import TrainedModel, encoder_batch
from tftrain.tokenizer.normalization import LONGEST_WORD, translations
from tftrain.tokenizer.vocabulary import LIBRARY, Vocabulary

KEEP, DELETE, SPACE, ISOLATE, REPLACE = range(5)
_INSIDE = "##"
_NONE = -1
# As in `normalization.cut_spaceless`, but a part may begin with a mark.
_SPACELESS = (
    r"([\x{0e00}-\x{0fff}\x{1000}-\x{109f}\x{1780}-\x{17ff}\x{1980}-\x{1aaf}\x{3041}-\x{30ff}]" f"{{{LONGEST_WORD}}})"
)


def graph_of(model: TrainedModel) -> tuple["TextGraph | None", str]:
    """Returns the graph of a model's tokenizer; or None, and why there is none."""
    if model.tokenizer is None:
        return None, "no tokenizer is beside the weights"
    try:
        return TextGraph(model), ""
    except ValueError as error:
        return None, f"there are no ops for the tokenizer: {error}"


class TextGraph(tf.Module):
    """Turns texts into what the model reads, with the tables of a tokenizer that has ops."""

    tokenize: Step  # returns the token ids of texts without special tokens: string [n] to int32 [n, tokens]
    needs_tensorflow_text: bool  # whether there are ops of tensorflow-text

    def __init__(self, model: TrainedModel):
        super().__init__()
        tokenizer, self._begin_ids = model.tokenizer, model.tokenizer.begin_ids
        self._before, self._after = tokenizer.around_ids
        self._vocabulary, self._roles = tokenizer.vocabulary, tokenizer.vocabulary.roles
        self._ids = self._prompts if model.config.is_causal else self._sentences
        self._longest = int(min(model.config.longest_sequence, 2**31 - 1))
        self._max_seq_length = model.max_seq_length
        self.needs_tensorflow_text = tokenizer.needs_tensorflow_text
        if tokenizer.needs_tensorflow_text:
            from tftrain.tokenizer.tensorflow_text import ops

            self._tokenizer = ops(tokenizer.vocabulary, tokenizer.lower_case, tokenizer.model)
            tokenize = self._tokenizer.tokenize
        elif tokenizer.model is not None:
            mask = self._vocabulary.of_role("mask") if tokenizer.finds_masks else None
            self._pipeline = tokenize = PipelineGraph(tokenizer.model, tokenizer.unspelled, mask)
            self.needs_tensorflow_text = self._pipeline.needs_tensorflow_text
        else:
            self._pieces = WordPieceGraph(tokenizer.vocabulary)

            def tokenize(texts: tf.Tensor) -> tf.RaggedTensor:
                return self._pieces(words_of(texts, tokenizer.lower_case, tokenizer.strip_accents))

        cuts = tokenizer.cuts_clauses
        self.tokenize = lambda texts: tokenize(tf.strings.regex_replace(texts, _SPACELESS, r"\1 ") if cuts else texts)

    def __call__(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns token ids and the mask of those that are not padding, int32 [n, S], of strings [n]."""
        return self._dense(self._ids(texts))

    def examples(self, *texts: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns what a fine-tuned model reads of texts, or of pairs: of one tensor of strings [n], or of two.

        A mask is not one token here. Sequences are cut as `encoding.cut_longest` does it.
        """
        parts = [self.tokenize(each) for each in texts]
        lengths = [part.row_lengths() for part in parts]
        around, roles = (self._before, self._after), self._roles
        before, after = (tf.tile(tf.constant(ids)[tf.newaxis], [parts[0].nrows(), 1]) for ids in around)
        most = self._max_seq_length - sum(map(len, around)) - (len(parts) - 1) * roles.separators
        if len(parts) == 1:
            kept = [tf.minimum(lengths[0], most)]
        else:
            first, second = lengths
            second = tf.minimum(second, tf.maximum(most - first, most // 2))
            kept = [tf.minimum(first, most - second), second]
        pieces = [before]
        separators = [roles.separators] * (len(parts) - 1) + [1]
        for part, length, count in zip(parts, kept, separators, strict=True):
            # An axis without elements has nothing to cut.
            pieces.append(tf.RaggedTensor.from_tensor(part.to_tensor(), lengths=length))
            pieces += [after] * count
        ids, mask = self._dense(tf.concat(pieces, axis=1))
        places = tf.range(tf.shape(ids)[1])[tf.newaxis]
        in_second = tf.cast(places >= tf.cast(kept[0], tf.int32)[:, tf.newaxis] + 1 + separators[0], tf.int32)
        return encoder_batch(ids, mask, in_second * mask * roles.second_type)

    def _sentences(self, texts: tf.Tensor) -> tf.RaggedTensor:
        first, last, mask = self._roles.beginning, self._roles.separator, self._roles.mask
        if self._vocabulary.tokenizer_type in LIBRARY:
            ids = self._pipeline(texts, with_mask=True)
        else:
            parts = tf.strings.split(texts, self._vocabulary.tokens[mask])
            tokens = self.tokenize(parts.flat_values)
            # A mask before each part; the first one is then left out.
            tokens = tf.concat([tf.fill([tokens.nrows(), 1], mask), tokens], axis=1)
            ids = parts.with_flat_values(tokens).merge_dims(1, 2)[:, 1:]
        ids = ids[:, : self._longest - 2]
        return tf.concat([tf.fill([ids.nrows(), 1], first), ids, tf.fill([ids.nrows(), 1], last)], axis=1)

    def _prompts(self, texts: tf.Tensor) -> tf.RaggedTensor:
        tokens = self.tokenize(texts)
        begin = tf.tile(tf.constant(self._begin_ids)[tf.newaxis], [tokens.nrows(), 1])
        tokens = tokens[:, -(self._longest - len(self._begin_ids)) :]
        is_empty = tokens.row_lengths() + len(self._begin_ids) == 0
        ends = tf.fill([tf.reduce_sum(tf.cast(is_empty, tf.int32))], self._vocabulary.end_id)
        end = tf.RaggedTensor.from_row_lengths(ends, tf.cast(is_empty, tf.int64))
        return tf.concat([begin, end, tokens], axis=1)

    def _dense(self, ids: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns token ids with padding after each row, and the mask of those that are real, int32 [n, S] both.

        Without a row there is one place, as models need.
        """
        padding_id = self._vocabulary.padding_id
        dense = ids.to_tensor(padding_id)
        dense = tf.pad(dense, [[0, 0], [0, tf.maximum(1 - tf.shape(dense)[1], 0)]], constant_values=padding_id)
        return dense, tf.sequence_mask(ids.row_lengths(), tf.shape(dense)[1], tf.int32)


def words_of(texts: tf.Tensor, lower_case: bool, strip_accents: bool | None = None) -> tf.RaggedTensor:
    """Returns the normalized words of texts, string [n] to [n, words], as `bert_words` with the same arguments."""
    kinds, replacements = tables(lower_case, strip_accents)
    codes = tf.strings.unicode_decode(texts, "UTF-8")
    flat = codes.flat_values
    kind, own = kinds(flat), characters(flat)
    _, string = replaced(flat, own, replacements)
    string = tf.where(kind == ISOLATE, tf.strings.join([" ", own, " "]), string)
    string = tf.where(kind == SPACE, " ", string)
    string = tf.where(kind == DELETE, "", string)
    return tf.strings.split(tf.strings.reduce_join(codes.with_flat_values(string), axis=1))


@functools.cache
def tables(lower_case: bool, strip_accents: bool | None) -> tuple[Kinds, dict[int, str]]:
    """Returns the kinds of code points, and what is replaced by what."""
    kinds, strings = np.full(sys.maxunicode + 1, KEEP, np.int32), {}
    for code, string in translations(lower_case, strip_accents).items():
        character = chr(code)
        kinds[code] = {character: KEEP, "": DELETE, " ": SPACE, f" {character} ": ISOLATE}.get(string, REPLACE)
        if kinds[code] == REPLACE:
            strings[code] = string
    return looked_up(kinds), dict(sorted(strings.items()))


class WordPieceGraph(tf.Module):
    """Cuts words into pieces of a vocabulary."""

    def __init__(self, vocabulary: Vocabulary):
        super().__init__()
        tokens = vocabulary.tokens
        self._unknown = vocabulary.roles.unknown
        self._longest = max(len(token.removeprefix(_INSIDE)) for token in tokens)
        self._table = table({token: number for number, token in enumerate(tokens)})

    def __call__(self, words: tf.RaggedTensor) -> tf.RaggedTensor:
        """Returns the ids of the tokens: string [n, words] to int32 [n, tokens]."""
        different, index = tf.unique(words.flat_values)
        pieces = tf.gather(self._pieces(different), index)
        return words.with_flat_values(pieces).merge_dims(1, 2)

    def _pieces(self, words: tf.Tensor) -> tf.RaggedTensor:
        """Returns the ids of each word, [words, pieces]."""
        lengths = tf.strings.length(words, unit="UTF8_CHAR")
        sizes = tf.range(1, self._longest + 1)

        def step(offset: tf.Tensor, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            inside = tf.where(offset > 0, _INSIDE, "")[:, tf.newaxis]
            # The end of a finished word is no place in it.
            begin = tf.minimum(offset, lengths - 1)[:, tf.newaxis]
            shape = [tf.size(words), self._longest]
            own, begin, every = (tf.broadcast_to(x, shape) for x in (words[:, tf.newaxis], begin, sizes))
            part = tf.strings.substr(own, begin, every, unit="UTF8_CHAR")
            looked_up = self._table.lookup(tf.strings.join([tf.broadcast_to(inside, shape), part]))
            fits = (looked_up != _NONE) & (offset[:, tf.newaxis] + sizes <= lengths[:, tf.newaxis])
            size = tf.reduce_max(tf.where(fits, sizes, 0), axis=1)
            token = tf.gather(looked_up, tf.maximum(size - 1, 0), batch_dims=1)
            going = offset < lengths
            token = tf.where(going, tf.where(size > 0, token, self._unknown), _NONE)
            # A word with a part that is no piece is [UNK] as a whole.
            ids = tf.where((going & (size == 0))[:, tf.newaxis], _NONE, ids)
            ids = tf.concat([ids, token[:, tf.newaxis]], axis=1)
            return tf.where(size > 0, offset + size, lengths), ids

        begins = tf.where(lengths > LONGEST_WORD, lengths, 0)
        ids = tf.where(lengths > LONGEST_WORD, self._unknown, _NONE)[:, tf.newaxis]
        shapes = [tf.TensorShape([None]), tf.TensorShape([None, None])]
        _, ids = tf.while_loop(lambda at, _: tf.reduce_any(at < lengths), step, [begins, ids], shape_invariants=shapes)
        return tf.ragged.boolean_mask(ids, ids != _NONE)
