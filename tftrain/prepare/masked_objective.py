"""The objective of encoders: pairs of texts for masked words and the next sentence, or texts for masked words."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, islice

import numpy as np

from tftrain.config.prepare import PrepareConfig
from tftrain.data.example import encode
from tftrain.data.sizes import predictions
from tftrain.prepare.accounting import Accounting, row
from tftrain.prepare.objective import Examples, PrepareObjective, TokenizedText
from tftrain.prepare.packing import pack
from tftrain.prepare.pairs import Pair, make_pairs, make_texts
from tftrain.prepare.sentences import split_sentences
from tftrain.prepare.spool import Chunk
from tftrain.tokenizer.normalization import cut_spaceless
from tftrain.tokenizer.vocabulary import LIBRARY, SPECIAL_TOKENS, Vocabulary

_RANDOM_SECOND = "with a random second text"
_LONE = "document_of_one_token"
_TOKENS, _POSITIONS = "tokens in rows", "positions of rows"
_SHOWN_TOKENS = 60
_MASKED_AT_ONCE = 1024
_PACKING = 1 << 20  # a stream of random numbers: no turn of the pairs has this number


class MaskedObjective(PrepareObjective):
    """Pairs of texts, unmasked, or masked as in the original BERT."""

    special_tokens = SPECIAL_TOKENS

    split = staticmethod(split_sentences)

    def passages(self, paragraphs: list[list[str]]) -> list[str]:
        """Returns the sentences; for a byte-level BPE with the space, or the line break, before each but the first."""
        if self.config.tokenizer_type == "bpe":
            return [
                (" " if index else "\n" if number else "") + sentence
                for number, sentences in enumerate(paragraphs)
                for index, sentence in enumerate(sentences)
            ]
        if self.config.tokenizer_type in LIBRARY:
            return [sentence for sentences in paragraphs for sentence in sentences]
        return [cut_spaceless(sentence) for sentences in paragraphs for sentence in sentences]

    def examples(self, text: TokenizedText, chunk: Chunk, vocabulary: Vocabulary) -> Examples:
        """Makes the pairs of a chunk."""
        return _Pairs(text, chunk, vocabulary, self.config, self.predictions())

    def predictions(self) -> int | None:
        """Returns the masked tokens of a static example at most; None if training masks."""
        config = self.config
        if config.masking == "dynamic":
            return None
        return config.max_predictions_per_seq or predictions(config.max_seq_length, config.masked_lm_prob)

    def rows(self, accounting: Accounting) -> list[str]:
        """Returns the number of random second texts, of the examples of a document, and how full the rows are."""
        details = accounting.details
        random = details[_RANDOM_SECOND]
        return [
            *([row(f"  {_RANDOM_SECOND}", random, accounting.examples)] if random else []),
            f"{'  of a document':32}{accounting.examples / max(1, accounting.documents):>16,.1f}",
            row("rows", accounting.records),
            row("  positions that are not padding", details[_TOKENS], details[_POSITIONS]),
        ]

    def unused(self, accounting: Accounting) -> tuple[str, str]:
        """Returns that documents are too short to be a pair."""
        remedy = "join lines that belong to one document"
        if self.config.document_separator == "blank_line":
            remedy += " (--document_separator=file if a file is a document)"
        return f"{accounting.tokens_dropped[_LONE]:,} documents have one token", remedy

    def smallest_text(self) -> str:
        """Returns that a pair needs two tokens."""
        return "a document of two tokens or more that is no duplicate; use more text"

    def warnings(self, documents: Sequence[int]) -> list[str]:
        """Warns of chunks with a single document: random next sentences have no other document to come from."""
        single, filled = documents.count(1), sum(count > 0 for count in documents)
        if not single or not self.config.next_sentence:
            return []
        other_separator = "file" if self.config.document_separator == "blank_line" else "blank_line"
        return [
            f"{single} of {filled} chunks hold a single document: their pairs are all consecutive; use more documents, "
            f"a larger --shard_mb, or --document_separator={other_separator} if that is what parts the text"
        ]


class _Pairs(Examples):
    """The pairs of a chunk. `slots` is the largest number of masked tokens; None if masking is dynamic."""

    def __init__(
        self, text: TokenizedText, chunk: Chunk, vocabulary: Vocabulary, config: PrepareConfig, slots: int | None
    ):
        self._text, self._chunk, self._vocabulary, self._config, self._slots = text, chunk, vocabulary, config, slots
        self._pairs: list[Pair] = []
        for turn in range(config.dupe_factor or (10 if config.masking == "static" else 1)):
            make = make_pairs if config.next_sentence else make_texts
            self._pairs += make(text, config.max_seq_length, config.short_seq_prob, self._rng(turn))
        self.used = np.zeros(len(text.tokens), bool)
        for first, first_end, second, second_end, _ in self._pairs:
            self.used[first:first_end] = self.used[second:second_end] = True
        special = 3 if config.next_sentence else 2
        sizes = [pair.first_end - pair.first + pair.second_end - pair.second + special for pair in self._pairs]
        self._rows = [[number] for number in range(len(sizes))]
        if config.examples_per_row > 1:
            # Which of equally long examples share a row is random.
            order = self._rng(_PACKING).permutation(len(sizes))
            rows = pack(np.array(sizes, np.int64)[order], config.max_seq_length, config.examples_per_row)
            self._rows = [order[row[row >= 0]].tolist() for row in rows]
        self.count, self.records, self.lengths = len(sizes), len(self._rows), Counter(sizes)
        alone = text.documents[:-1][np.diff(text.documents) == 1]
        self.dropped = {_LONE: int((~self.used[alone]).sum())}
        self.details = {
            _RANDOM_SECOND: sum(pair.next_sentence_label for pair in self._pairs),
            _TOKENS: sum(sizes),
            _POSITIONS: self.records * config.max_seq_length,
        }

    def payloads(self, order: Sequence[int]) -> Iterator[bytes]:
        rows = ([self._pairs[number] for number in self._rows[row]] for row in order)
        if self._slots is not None:
            yield from self._masked(pair for (pair,) in rows)
            return
        for pairs in rows:
            ids = list(map(self._ids, pairs))
            features = {
                "input_ids": list(chain.from_iterable(ids)),
                "second_segment_start": [pair.second_segment_start for pair in pairs],
                "next_sentence_labels": [pair.next_sentence_label for pair in pairs],
            }
            if self._config.examples_per_row > 1:
                features["sequence_lengths"] = list(map(len, ids))
            yield encode(features)

    def _masked(self, pairs: Iterator[Pair]) -> Iterator[bytes]:
        """Yields examples in the standard BERT format. The mask of an example depends on its position."""
        import tensorflow as tf  # It is loaded only for static masks.

        from tftrain.data.masking import Masking, stream_key

        config, length = self._config, self._config.max_seq_length
        key = stream_key(config.seed, f"static {self._chunk.split} {self._chunk.number}")
        share, whole_words = config.masked_lm_prob, config.whole_word_masking
        masking, begin = Masking(self._vocabulary, length, self._slots, share, whole_words, key), 0
        while block := list(islice(pairs, _MASKED_AT_ONCE)):
            ids = list(map(self._ids, block))
            tokens = tf.RaggedTensor.from_row_lengths(np.concatenate(ids).astype(np.int32), list(map(len, ids)))
            masked = masking(tokens, tf.constant(begin, tf.int64))
            batch = {name: value.numpy().tolist() for name, value in masked.items()}
            for number, pair in enumerate(block):
                size, start = len(ids[number]), pair.second_segment_start
                features = {
                    "input_mask": [1] * size + [0] * (length - size),
                    "segment_ids": [0] * start + [1] * (size - start) + [0] * (length - size),
                    "next_sentence_labels": [pair.next_sentence_label],
                }
                yield encode({name: value[number] for name, value in batch.items()} | features)
            begin += len(block)

    def lines(self, number: int) -> list[str]:
        pair = self._pairs[self._rows[number][0]]
        relation = ", B is random" if pair.next_sentence_label else ", B follows A"
        texts = (("A", pair.first, pair.first_end), ("B", pair.second, pair.second_end))
        if pair.second == pair.second_end:
            relation, texts = "", texts[:1]
        return [f"example{relation}", *(f"  {name}: {self._words(begin, end)}" for name, begin, end in texts)]

    def _rng(self, turn: int) -> np.random.Generator:
        return np.random.default_rng([self._config.seed, int(self._chunk.split == "eval"), self._chunk.number, turn])

    def _words(self, begin: int, end: int) -> str:
        return self._vocabulary.decode(self._text.tokens[begin : min(end, begin + _SHOWN_TOKENS)])

    def _ids(self, pair: Pair) -> list[int]:
        cls, sep = self._vocabulary.roles.beginning, self._vocabulary.roles.separator
        first = self._text.tokens[pair.first : pair.first_end].tolist()
        second = self._text.tokens[pair.second : pair.second_end].tolist()
        return [cls, *first, sep, *second, sep] if second else [cls, *first, sep]
