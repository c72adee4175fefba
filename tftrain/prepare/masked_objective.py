"""The objective of BERT: sentence pairs for masked words and the next sentence. `pairs` makes the pairs."""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from tftrain.config.data_sizes import predictions
from tftrain.config.prepare import PrepareConfig
from tftrain.input.example import encode
from tftrain.input.normalization import cut_spaceless
from tftrain.input.vocabulary import SPECIAL_TOKENS, Vocabulary
from tftrain.prepare.accounting import Accounting, row
from tftrain.prepare.objective import Examples, Objective
from tftrain.prepare.packing import pack
from tftrain.prepare.pairs import Pair, PairedExample, make_pairs, make_texts
from tftrain.prepare.sentences import split_sentences
from tftrain.prepare.spool import Chunk
from tftrain.prepare.tokenized_text import TokenizedText

_RANDOM_SECOND = "with a random second text"
_LONE = "document_of_one_token"
_TOKENS, _POSITIONS = "tokens in rows", "positions of rows"
_SHOWN_TOKENS = 60
_PACKING = 1 << 20  # of random numbers: no turn of the pairs has this number


class MaskedObjective(Objective):
    """Pairs of texts, unmasked, or masked as in the original BERT."""

    name = "masked"
    special_tokens = SPECIAL_TOKENS

    def passages(self, paragraphs: list[str], tokenizer_type: str) -> list[str]:
        """Returns the sentences; for a byte-level BPE with the space, or the line break, before each but the first."""
        if tokenizer_type == "bpe":
            found = [
                " " * (place > 0) + each for text in paragraphs for place, each in enumerate(split_sentences(text))
            ]
            return found[:1] + [each if each.startswith(" ") else "\n" + each for each in found[1:]]
        return [cut_spaceless(sentence) for paragraph in paragraphs for sentence in split_sentences(paragraph)]

    def examples(self, text: TokenizedText, chunk: Chunk, vocabulary: Vocabulary, config: PrepareConfig) -> Examples:
        """Makes the pairs of a chunk, see `Objective.examples`."""
        return _Pairs(text, chunk, vocabulary, config, self.predictions(config))

    def smallest_chunk(self, config: PrepareConfig) -> int:
        """Returns 0: every document is in its own examples."""
        return 0

    def predictions(self, config: PrepareConfig) -> int | None:
        """Returns the masked tokens of a static example at most; None if training masks."""
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

    def unused(self, accounting: Accounting, config: PrepareConfig) -> tuple[str, str]:
        """Returns that documents are too short to be a pair."""
        remedy = "join lines that belong to one document"
        if config.document_separator == "blank_line":
            remedy += " (--document_separator=file if a file is a document)"
        return f"{accounting.tokens_dropped[_LONE]:,} documents have one token", remedy

    def smallest_text(self, config: PrepareConfig) -> str:
        """Returns that a pair needs two tokens."""
        return "a document of two tokens or more that is no duplicate; use more text"

    def warnings(self, documents: Sequence[int], config: PrepareConfig) -> list[str]:
        """Warns of chunks with a single document: random next sentences have no other document to come from."""
        single, filled = documents.count(1), sum(count > 0 for count in documents)
        if not single or not config.next_sentence:
            return []
        other_separator = "file" if config.document_separator == "blank_line" else "blank_line"
        return [
            f"{single} of {filled} chunks hold a single document: their pairs are all consecutive; use more documents, "
            f"a larger --shard_mb, or --document_separator={other_separator} if that is what parts the text"
        ]


def _length(pair: Pair) -> int:
    """Returns the tokens of an example, special ones included."""
    second = pair.second_end - pair.second
    return pair.first_end - pair.first + 2 + (second + 1 if second else 0)


class _Pairs(Examples):
    """The pairs of a chunk."""

    def __init__(
        self, text: TokenizedText, chunk: Chunk, vocabulary: Vocabulary, config: PrepareConfig, slots: int | None
    ):
        """Makes the pairs. `slots` is the largest number of masked tokens; None if masking is dynamic."""
        self._text, self._chunk, self._vocabulary, self._config, self._slots = text, chunk, vocabulary, config, slots
        self._pairs: list[Pair] = []
        for turn in range(config.dupe_factor or (10 if config.masking == "static" else 1)):
            rng = np.random.default_rng([config.seed, int(chunk.split == "eval"), chunk.number, turn])
            make = make_pairs if config.next_sentence else make_texts
            self._pairs += make(text, config.max_seq_length, config.short_seq_prob, rng)
        self._used = np.zeros(len(text.tokens), bool)
        for pair in self._pairs:
            self._used[pair.first : pair.first_end] = True
            self._used[pair.second : pair.second_end] = True
        self._lengths = np.array([_length(pair) for pair in self._pairs], np.int64)
        self._rows = self._packed() if config.examples_per_row > 1 else [[number] for number in range(len(self))]

    def __len__(self) -> int:
        return len(self._pairs)

    @property
    def records(self) -> int:
        return len(self._rows)

    def used(self) -> np.ndarray:
        return self._used

    def dropped(self) -> dict[str, int]:
        starts = self._text.documents
        alone = starts[:-1][np.diff(starts) == 1]
        return {_LONE: int((~self._used[alone]).sum())}

    def details(self) -> dict[str, int]:
        return {
            _RANDOM_SECOND: sum(pair.next_sentence_label for pair in self._pairs),
            _TOKENS: int(self._lengths.sum()),
            _POSITIONS: self.records * self._config.max_seq_length,
        }

    def lengths(self) -> Counter:
        return Counter(self._lengths.tolist())

    def payloads(self, order: Sequence[int]) -> Iterator[bytes]:
        rows = ([self._example(self._pairs[number]) for number in self._rows[row]] for row in order)
        if self._slots is not None:
            from tftrain.prepare.static_masks import masked_examples  # It loads TensorFlow.

            examples = (example for (example,) in rows)
            yield from masked_examples(examples, self._chunk, self._vocabulary, self._config, self._slots)
            return
        for examples in rows:
            features = {
                "input_ids": [token for example in examples for token in example.input_ids],
                "second_segment_start": [example.second_segment_start for example in examples],
                "next_sentence_labels": [example.next_sentence_label for example in examples],
            }
            if self._config.examples_per_row > 1:
                features["sequence_lengths"] = [len(example.input_ids) for example in examples]
            yield encode(features)

    def lines(self, number: int) -> list[str]:
        pair = self._pairs[self._rows[number][0]]
        relation = ", B is random" if pair.next_sentence_label else ", B follows A"
        segments = (("A", pair.first, pair.first_end), ("B", pair.second, pair.second_end))
        if pair.second == pair.second_end:
            relation, segments = "", segments[:1]
        return [f"example{relation}", *(f"  {name}: {self._words(begin, end)}" for name, begin, end in segments)]

    def _packed(self) -> list[list[int]]:
        """Returns the examples of each row. Which of equally long examples share a row is random."""
        config, chunk = self._config, self._chunk
        rng = np.random.default_rng([config.seed, int(chunk.split == "eval"), chunk.number, _PACKING])
        order = rng.permutation(len(self))
        rows = pack(self._lengths[order], config.max_seq_length, config.examples_per_row)
        return [order[row[row >= 0]].tolist() for row in rows]

    def _words(self, begin: int, end: int) -> str:
        return self._vocabulary.decode(self._text.tokens[begin : min(end, begin + _SHOWN_TOKENS)])

    def _example(self, pair: Pair) -> PairedExample:
        cls, sep = self._vocabulary.id("[CLS]"), self._vocabulary.id("[SEP]")
        first = self._text.tokens[pair.first : pair.first_end].tolist()
        second = self._text.tokens[pair.second : pair.second_end].tolist()
        ids = [cls, *first, sep, *second, sep] if second else [cls, *first, sep]
        return PairedExample(ids, len(first) + 2, pair.next_sentence_label)
