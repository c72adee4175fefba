"""The objective of a decoder: sequences whose every token is predicted from the tokens before it.

The documents of a chunk lie one after the other, with an end token between them, before the first and after the last.
A sequence has max_seq_length + 1 tokens: all but the last are inputs, all but the first are labels. The last token of a
sequence is the first one of the next. So nothing is padding, and every token is predicted exactly once, but for those
after the last whole sequence of a chunk.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from tftrain.data.example import encode
from tftrain.host.text import one_line
from tftrain.prepare.accounting import Accounting, row
from tftrain.prepare.objective import Examples, PrepareObjective, TokenizedText
from tftrain.prepare.spool import Chunk
from tftrain.tokenizer.normalization import cut_spaceless
from tftrain.tokenizer.vocabulary import END_OF_TEXT, LIBRARY, Vocabulary
from tftrain.tokenizer.words import by_size

_INCOMPLETE = "incomplete_sequence"
_END_TOKENS = "end tokens"
_SHOWN_TOKENS = 60
_CHARACTERS_AT_ONCE = 1 << 16
# The least sequences of a chunk, which then loses few percent of its text, and about the bytes of a token.
_SEQUENCES, _BYTES_OF_A_TOKEN = 64, 4


class CausalObjective(PrepareObjective):
    """Sequences of whole documents and parts of documents, all of one length."""

    special_tokens = (END_OF_TEXT,)

    def passages(self, paragraphs: list[str]) -> list[str]:
        """Returns the paragraphs. A line break follows each for kinds of tokenizers that keep it, in few texts.

        In a byte-level BPE, no token reaches over a line break into a paragraph, which begins with no space. So the
        tokens are the same, and the library takes less time than for each paragraph by itself.
        """
        if self.config.tokenizer_type in ("bpe", *LIBRARY):
            return ["\n".join([*part, ""]) for part in by_size(paragraphs, _CHARACTERS_AT_ONCE)]
        return [cut_spaceless(paragraph) for paragraph in paragraphs]

    def examples(self, text: TokenizedText, chunk: Chunk, vocabulary: Vocabulary) -> Examples:
        """Makes the sequences of a chunk."""
        return _Sequences(text, vocabulary, self.config.max_seq_length)

    def smallest_chunk(self) -> int:
        """Returns the size at which the rest after the last sequence is a small share."""
        return _SEQUENCES * _BYTES_OF_A_TOKEN * self.config.max_seq_length

    def rows(self, accounting: Accounting) -> list[str]:
        """Returns the number of end tokens: with the tokens in examples, they fill the sequences."""
        return [row("  end tokens in them", accounting.details[_END_TOKENS])]

    def unused(self, accounting: Accounting) -> tuple[str, str]:
        """Returns that the rest of a chunk fills no sequence."""
        dropped = accounting.tokens_dropped[_INCOMPLETE]
        return f"{dropped:,} at the ends of shards fill no sequence", "use more text or a smaller --max_seq_length"

    def smallest_text(self) -> str:
        """Returns the length of a sequence."""
        remedy = "use more text, a larger --eval_fraction, or a smaller --max_seq_length"
        return f"at least {self.config.max_seq_length} tokens in a shard; {remedy}"


class _Sequences(Examples):
    """The sequences of a chunk, of `length` inputs each."""

    def __init__(self, text: TokenizedText, vocabulary: Vocabulary, length: int):
        self._vocabulary, self._length = vocabulary, length
        self._stream = np.insert(text.tokens, text.documents, vocabulary.end_id)
        is_end = np.insert(np.zeros(len(text.tokens), bool), text.documents, True)
        # Nothing predicts the first end token.
        self.count = self.records = (len(self._stream) - 1) // length
        predicted, tokens = self.count * length, len(text.tokens)
        end_tokens = int(is_end[1 : 1 + predicted].sum())
        self.used, self.lengths = np.arange(tokens) < predicted - end_tokens, Counter()
        self.dropped, self.details = {_INCOMPLETE: int((~self.used).sum())}, {_END_TOKENS: end_tokens}

    def payloads(self, order: Sequence[int]) -> Iterator[bytes]:
        for number in order:
            yield encode({"input_ids": self._sequence(number).tolist()})

    def lines(self, number: int) -> list[str]:
        return ["example", f"  {one_line(self._vocabulary.decode(self._sequence(number)[:_SHOWN_TOKENS]))}"]

    def _sequence(self, number: int) -> np.ndarray:
        begin = number * self._length
        return self._stream[begin : begin + self._length + 1]
