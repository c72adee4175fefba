"""Accounts for every token of a text: how many were read, how many are in examples, and why the others are not."""

import logging
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from tftrain.data import accents
from tftrain.data.errors import DataError
from tftrain.data.objective import Objective
from tftrain.prepare_config import PrepareConfig

logger = logging.getLogger(__name__)

# Reasons for which tokens are dropped on purpose.
DUPLICATE, IN_TRAINING = "duplicate_paragraph", "shared_with_training"
_EXAMPLES_SHOWN = 3
_FEW_TOKENS_USED = 0.95
_MANY_UNKNOWN = 0.01
_UNKNOWN_SHOWN = 10
_LONGEST_WORD = 20


class Accounting(NamedTuple):
    """The tokens and examples of a text.

    Attributes:
        unknown_words: characters and words that became [UNK], from a sample of the text.
        lost_marks: letters that lost a mark, as `accents.losses` counts them.
        lengths: number of examples of each length in tokens; empty if all fill their records.
        documents: number of documents that are not empty after duplicates are dropped.
        tokens_read: number of tokens of the whole text.
        tokens_in_examples: tokens of the text that occur in an example. A token counts once.
        tokens_dropped: numbers of the other tokens, by reason. With `tokens_in_examples` they add up to `tokens_read`.
            The reason DUPLICATE is that of paragraphs that occur earlier in the corpus, IN_TRAINING that of held-out
            text that training has too.
        unknown_tokens: how many of `tokens_in_examples` are [UNK].
        examples: number of examples.
        records: number of records that hold them.
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
    named = {name: _by_name(columns.pop(name)) for name in ("tokens_dropped", "details")}
    return Accounting(**{name: sum(counts) for name, counts in columns.items()}, **named, **counters, shown=shown)


def _by_name(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Returns the sums of the counts of each name, with names whose sum is 0."""
    sums: dict[str, int] = {}
    for part in parts:
        for name, count in part.items():
            sums[name] = sums.get(name, 0) + count
    return sums


def check(accounting: Accounting, config: PrepareConfig, objective: Objective) -> None:
    """Warns if much text is not used or unknown.

    Raises:
        DataError: a smaller share of the tokens than `min_tokens_used` is in examples.
    """
    share = accounting.share_used
    reason, remedy = objective.unused(accounting, config)
    unused = f"{share:.1%} of {accounting.tokens_wanted:,} tokens are in examples, because {reason}"
    if share < config.min_tokens_used:
        raise DataError(f"--min_tokens_used={config.min_tokens_used}: {unused}; {remedy}, or use a smaller share")
    if share < _FEW_TOKENS_USED:
        logger.warning(f"only {unused}; {remedy}")
    _warn_of_lost_marks(accounting, config)
    if accounting.unk_share > _MANY_UNKNOWN:
        words = [word[:_LONGEST_WORD] for word, _ in accounting.unknown_words.most_common(_UNKNOWN_SHOWN)]
        logger.warning(
            f"{accounting.unk_share:.1%} of the tokens are [UNK], most often for {' '.join(words)}; "
            + (
                "use a --vocab_file that has these characters, or learn a vocabulary of this text without --vocab_file"
                if config.vocab_file
                else "use a larger --vocab_size"
            )
        )


def _warn_of_lost_marks(accounting: Accounting, config: PrepareConfig) -> None:
    lost = accounting.lost_marks
    if lost.total() <= accents.FEW * accounting.letters:
        return
    remedy = "use --strip_accents=false"
    if config.resolved_normalization == "nfkc":
        remedy = "use --normalization=bert --strip_accents=false"
    if config.vocab_file:
        remedy += ", if the vocabulary was made so, or learn one without --vocab_file"
    logger.warning(
        f"{lost.total() / accounting.letters:.2%} of the letters lose a mark, such as {accents.shown(lost)}: words "
        f"that differ in it become one; {remedy}"
    )


def table(accounting: Accounting, config: PrepareConfig, objective: Objective) -> list[str]:
    """Returns lines for a terminal: where the tokens are, and some examples."""
    rows = [("tokens in examples", accounting.tokens_in_examples)]
    rows += [(f"dropped: {reason.replace('_', ' ')}", count) for reason, count in accounting.tokens_dropped.items()]
    lines = [
        row("tokens read", accounting.tokens_read),
        *(row(f"  {name}", count, accounting.tokens_read) for name, count in rows),
        row("[UNK] in examples", accounting.unknown_tokens, accounting.tokens_in_examples),
        *_letters(accounting),
        row("examples", accounting.examples),
        *objective.rows(accounting),
        *_windows(accounting, config),
    ]
    width = shutil.get_terminal_size((100, 24)).columns
    return lines + [line[:width] for example in accounting.shown for line in example]


def _windows(accounting: Accounting, config: PrepareConfig) -> list[str]:
    if not accounting.windows:
        return []
    return [
        row(f"held-out windows of {config.heldout_window} tokens", accounting.windows),
        row("  that training has too", accounting.shared_windows, accounting.windows),
        row("  of them after the cut", accounting.shared_windows_left, accounting.windows),
    ]


def _letters(accounting: Accounting) -> list[str]:
    if not accounting.letters:
        return []
    lost = accounting.lost_marks
    return [f"{row('letters that lose a mark', lost.total(), accounting.letters)} {accents.shown(lost)}".rstrip()]


def row(name: str, count: int, whole: int | None = None) -> str:
    """Returns a row of the table: a name, a count and, if `whole` is given, the count's share of it."""
    return f"{name:32}{count:>16,}" + ("" if whole is None else f"{count / max(1, whole):>9.2%}")
