"""Accounts for every token of a text: how many were read, how many are in examples, and why the others are not."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

# Reasons for which tokens are dropped on purpose.
DUPLICATE, NEAR_DUPLICATE, IN_TRAINING = "duplicate_paragraph", "near_duplicate_document", "shared_with_training"
_ON_PURPOSE = (DUPLICATE, NEAR_DUPLICATE, IN_TRAINING)
_EXAMPLES_SHOWN = 3


_NONE: Counter = Counter()


class Accounting(NamedTuple):
    """The tokens and examples of a text."""

    unknown_words: Counter = _NONE  # characters and words that became [UNK], from a sample of the text
    lost_marks: Counter = _NONE  # letters that lost a mark, as `accents.losses` counts them
    lengths: Counter = _NONE  # number of examples of each length in tokens; empty if all fill their records
    documents: int = 0  # those that are not empty after duplicates are dropped
    tokens_read: int = 0
    tokens_in_examples: int = 0  # tokens of the text that occur in an example. A token counts once.
    # The other ones of `tokens_read` by reason, such as DUPLICATE (paragraphs that occur earlier in the corpus) and
    # IN_TRAINING (held-out text that training has too).
    tokens_dropped: Mapping[str, int] = MappingProxyType({})
    unknown_tokens: int = 0  # how many of `tokens_in_examples` are [UNK]
    examples: int = 0
    records: int = 0  # that hold the examples
    details: Mapping[str, int] = MappingProxyType({})  # what the objective counts as well, by name
    windows: int = 0  # those of `heldout_window` tokens in the held-out split; 0 if nothing is cut
    shared_windows: int = 0  # how many of them training has
    shared_windows_left: int = 0  # how many of those are left
    letters: int = 0  # 0 for a tokenizer that never strips accents
    shown: Sequence[Sequence[str]] = ()  # some examples, as lines for a terminal
    documents_read: int = 0

    @property
    def tokens_wanted(self) -> int:
        """Tokens of the text without those that are dropped on purpose."""
        return self.tokens_read - sum(self.tokens_dropped.get(reason, 0) for reason in _ON_PURPOSE)

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
