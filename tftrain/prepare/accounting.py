"""Accounts for every token of a text: how many were read, how many are in examples, and why the others are not."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

# Reasons for which tokens are dropped on purpose.
DUPLICATE, IN_TRAINING = "duplicate_paragraph", "shared_with_training"
_EXAMPLES_SHOWN = 3


class Accounting(NamedTuple):
    """The tokens and examples of a text.

    Attributes:
        unknown_words: characters and words that became [UNK], from a sample of the text.
        lost_marks: letters that lost a mark, as `accents.losses` counts them.
        lengths: number of examples of each length in tokens; empty if all fill their records.
        documents: number of documents that are not empty after duplicates are dropped.
        tokens_in_examples: tokens of the text that occur in an example. A token counts once.
        tokens_dropped: numbers of the other tokens, by reason, such as DUPLICATE (paragraphs that occur earlier in the
            corpus) and IN_TRAINING (held-out text that training has too). With `tokens_in_examples` they add up to
            `tokens_read`.
        unknown_tokens: how many of `tokens_in_examples` are [UNK].
        records: number of records that hold the examples.
        details: what the objective counts as well, by name.
        windows: number of windows of `heldout_window` tokens in the held-out split; 0 if nothing is cut.
        shared_windows: how many of them training has.
        shared_windows_left: how many of those are left.
        letters: number of letters; 0 for a tokenizer that never strips accents.
        shown: some examples, as lines for a terminal.
    """

    unknown_words: Counter
    lost_marks: Counter
    lengths: Counter
    documents: int = 0
    tokens_read: int = 0
    tokens_in_examples: int = 0
    tokens_dropped: Mapping[str, int] = MappingProxyType({})
    unknown_tokens: int = 0
    examples: int = 0
    records: int = 0
    details: Mapping[str, int] = MappingProxyType({})
    windows: int = 0
    shared_windows: int = 0
    shared_windows_left: int = 0
    letters: int = 0
    shown: Sequence[Sequence[str]] = ()

    @property
    def tokens_wanted(self) -> int:
        """Tokens of the text without those that are dropped on purpose."""
        return self.tokens_read - sum(self.tokens_dropped.get(reason, 0) for reason in (DUPLICATE, IN_TRAINING))

    @property
    def share_used(self) -> float:
        """Share of the wanted tokens that are in examples."""
        return self.tokens_in_examples / max(1, self.tokens_wanted)

    @property
    def unk_share(self) -> float:
        """Share of [UNK] in the tokens in examples."""
        return self.unknown_tokens / max(1, self.tokens_in_examples)


def total(parts: Iterable[Accounting]) -> Accounting:
    """Returns the accounting of several texts together."""
    columns = dict(zip(Accounting._fields, zip(*parts, strict=True), strict=True))
    counters = {name: sum(columns.pop(name), Counter()) for name in ("unknown_words", "lost_marks", "lengths")}
    shown = [example for examples in columns.pop("shown") for example in examples][:_EXAMPLES_SHOWN]
    named = {}
    for column in ("tokens_dropped", "details"):
        sums = Counter()  # `update` keeps names whose sum is 0.
        for part in columns.pop(column):
            sums.update(part)
        named[column] = dict(sums)
    return Accounting(**{name: sum(counts) for name, counts in columns.items()}, **named, **counters, shown=shown)


def row(name: str, count: int, whole: int | None = None) -> str:
    """Returns a row of the table: a name, a count and, if `whole` is given, the count's share of it."""
    return f"{name:32}{count:>16,}" + ("" if whole is None else f"{count / max(1, whole):>9.2%}")
