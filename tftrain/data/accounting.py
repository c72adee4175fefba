"""Accounts for every token of a text: how many were read, how many are in examples, and why the others are not."""

import logging
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tftrain.data.errors import DataError
from tftrain.prepare_config import PrepareConfig

logger = logging.getLogger(__name__)

_EXAMPLES_SHOWN = 3
_FEW_TOKENS_USED = 0.95
_MANY_UNKNOWN = 0.01
_UNKNOWN_SHOWN = 10
_LONGEST_WORD = 20


class DecodedExample(NamedTuple):
    """The beginnings of the segments of an example as text, and the label: 1 if B is random, 0 if it follows A."""

    first: str
    second: str
    next_sentence_label: int


class Accounting(NamedTuple):
    """The tokens and examples of a text.

    Attributes:
        unknown_words: characters and words that became [UNK], from a sample of the text.
        documents: number of documents that are not empty after duplicates are dropped.
        tokens_read: number of tokens of the whole text.
        tokens_in_examples: tokens of the text that occur in an example. A token counts once.
        duplicate_tokens: tokens of paragraphs that occur earlier in the corpus.
        lone_tokens: documents of one token, which cannot be divided into two segments, in no example.
        unknown_tokens: how many of `tokens_in_examples` are [UNK].
        examples: number of examples.
        random_next: how many of them have a random second segment.
        shown: some examples.
    """

    unknown_words: Counter
    documents: int = 0
    tokens_read: int = 0
    tokens_in_examples: int = 0
    duplicate_tokens: int = 0
    lone_tokens: int = 0
    unknown_tokens: int = 0
    examples: int = 0
    random_next: int = 0
    shown: Sequence[DecodedExample] = ()

    @property
    def tokens_dropped(self) -> dict[str, int]:
        """The tokens in no example, by reason. With `tokens_in_examples` they add up to `tokens_read`."""
        return {"duplicate_paragraph": self.duplicate_tokens, "document_of_one_token": self.lone_tokens}

    @property
    def share_used(self) -> float:
        """Share of the tokens in examples, without duplicates; 1 if all text is duplicate."""
        return self.tokens_in_examples / max(1, self.tokens_read - self.duplicate_tokens)

    @property
    def unk_share(self) -> float:
        """Share of [UNK] in the tokens in examples."""
        return self.unknown_tokens / max(1, self.tokens_in_examples)


def total(parts: Iterable[Accounting]) -> Accounting:
    """Returns the accounting of several texts together."""
    columns = dict(zip(Accounting._fields, zip(*parts, strict=True), strict=True))
    words = sum(columns.pop("unknown_words"), Counter())
    shown = [example for examples in columns.pop("shown") for example in examples][:_EXAMPLES_SHOWN]
    return Accounting(**{name: sum(counts) for name, counts in columns.items()}, unknown_words=words, shown=shown)


def check(accounting: Accounting, config: PrepareConfig) -> None:
    """Warns if much text is not used or unknown.

    Raises:
        DataError: a smaller share of the tokens than `min_tokens_used` is in examples.
    """
    share = accounting.share_used
    unused = (
        f"{share:.1%} of {accounting.tokens_read - accounting.duplicate_tokens:,} tokens are in examples, because "
        f"{accounting.lone_tokens:,} documents have one token"
    )
    remedy = "join lines that belong to one document"
    if config.document_separator == "blank_line":
        remedy += " (--document_separator=file if a file is a document)"
    if share < config.min_tokens_used:
        raise DataError(f"--min_tokens_used={config.min_tokens_used}: {unused}; {remedy}, or use a smaller share")
    if share < _FEW_TOKENS_USED:
        logger.warning(f"only {unused}; {remedy}")
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


def table(accounting: Accounting) -> list[str]:
    """Returns lines for a terminal: where the tokens are, and some examples."""
    rows = [("tokens in examples", accounting.tokens_in_examples)]
    rows += [(f"dropped: {reason.replace('_', ' ')}", count) for reason, count in accounting.tokens_dropped.items()]
    lines = [f"{'tokens read':32}{accounting.tokens_read:>16,}"]
    lines += [f"  {name:30}{count:>16,}{count / max(1, accounting.tokens_read):>9.2%}" for name, count in rows]
    lines += [
        f"{'[UNK] in examples':32}{accounting.unknown_tokens:>16,}{accounting.unk_share:>9.2%}",
        f"{'examples':32}{accounting.examples:>16,}",
        f"{'  with a random second segment':32}{accounting.random_next:>16,}"
        f"{accounting.random_next / max(1, accounting.examples):>9.2%}",
        f"{'  of a document':32}{accounting.examples / max(1, accounting.documents):>16,.1f}",
    ]
    width = shutil.get_terminal_size((100, 24)).columns
    for example in accounting.shown:
        relation = "B is random" if example.next_sentence_label else "B follows A"
        lines += [f"example, {relation}"]
        lines += [f"  {name}: {text}"[:width] for name, text in (("A", example.first), ("B", example.second))]
    return lines


def decode(tokens: Sequence[str]) -> str:
    """Returns tokens of a vocabulary as text."""
    if any(token.startswith("\u2581") for token in tokens):
        return "".join(tokens).replace("\u2581", " ").strip()
    return " ".join(tokens).replace(" ##", "")
