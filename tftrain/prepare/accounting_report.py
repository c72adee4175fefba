"""What a preparation says of its tokens: warnings, a refusal if too few are used, a table, and advice on padding."""

import logging
import shutil
from collections import Counter

from tftrain.config.prepare import PrepareConfig
from tftrain.files.errors import DataError
from tftrain.prepare.accounting import Accounting, row
from tftrain.prepare.objective import PrepareObjective
from tftrain.prepare.packing import row_count
from tftrain.tokenizer import accents

logger = logging.getLogger(__name__)

_FEW_TOKENS_USED = 0.95
_MANY_UNKNOWN = 0.01
_UNKNOWN_SHOWN = 10
_LONGEST_WORD = 20
_MUCH_PADDING = 0.25
_LEAST_FACTOR = 1.1
_MOST_IN_ROW = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_WORTH = 1.03  # More examples in a row are advised only for so much fewer rows.
_DIFFERENT_LENGTHS = 256  # Packing takes time for each: lengths above are rounded up.


def check(accounting: Accounting, objective: PrepareObjective) -> None:
    """Warns if much text is not used or unknown; raises DataError if a smaller share than `min_tokens_used` is used."""
    share, config = accounting.tokens_in_examples / max(1, accounting.tokens_wanted), objective.config
    reason, remedy = objective.unused(accounting)
    unused = f"{share:.1%} of {accounting.tokens_wanted:,} tokens are in examples, because {reason}"
    if share < config.min_tokens_used:
        raise DataError(f"--min_tokens_used={config.min_tokens_used}: {unused}; {remedy}, or use a smaller share")
    if share < _FEW_TOKENS_USED:
        logger.warning(f"only {unused}; {remedy}")
    _warn_of_lost_marks(accounting, config)
    if accounting.unk_share > _MANY_UNKNOWN:
        words = [word[:_LONGEST_WORD] for word, _ in accounting.unknown_words.most_common(_UNKNOWN_SHOWN)]
        own = "use a --vocab_file that has these characters, or learn a vocabulary of this text without --vocab_file"
        remedy, most = own if config.vocab_file else "use a larger --vocab_size", " ".join(words)
        logger.warning(f"{accounting.unk_share:.1%} of the tokens are [UNK], most often for {most}; {remedy}")


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
        f"that differ only in marks become one; {remedy}"
    )


def table(accounting: Accounting, objective: PrepareObjective) -> list[str]:
    """Returns lines for a terminal: where the tokens are, and some examples."""
    rows = [("tokens in examples", accounting.tokens_in_examples)]
    rows += [(f"dropped: {reason.replace('_', ' ')}", count) for reason, count in accounting.tokens_dropped.items()]
    lines = [
        row("tokens read", accounting.tokens_read),
        *(row(f"  {name}", count, accounting.tokens_read) for name, count in rows),
        row("[UNK] in examples", accounting.unknown_tokens, accounting.tokens_in_examples),
    ]
    if accounting.letters:
        lost = accounting.lost_marks
        lines.append(
            f"{row('letters that lose a mark', lost.total(), accounting.letters)} {accents.shown(lost)}".rstrip()
        )
    lines += [row("examples", accounting.examples), *objective.rows(accounting)]
    if accounting.windows:
        lines += [
            row(f"held-out windows of {objective.config.heldout_window} tokens", accounting.windows),
            row("  that training has too", accounting.shared_windows, accounting.windows),
            row("  of them after the cut", accounting.shared_windows_left, accounting.windows),
        ]
    width = shutil.get_terminal_size((100, 24)).columns
    return lines + [line[:width] for example in accounting.shown for line in example]


def padding_advice(lengths: Counter, config: PrepareConfig) -> str | None:
    """Returns what packing, or batches of similar length, would give if much is padding, as a line for the log.

    The factors are estimates from the number of examples of each length in tokens alone: positions now / positions
    then. They are factors in real examples and tokens a second if a position takes equal time.
    """
    length = config.max_seq_length
    positions = lengths.total() * length
    padding = 1 - sum(tokens * count for tokens, count in lengths.items()) / max(1, positions)
    if not positions or padding <= _MUCH_PADDING or config.packing != "none":
        return None
    factors = {}
    if config.masking == "dynamic":
        most, rows = _packing(lengths, length)
        factors[f"--packing=greedy --max_sequences_per_pack={most}"] = lengths.total() / rows
    buckets = (length // 4, length // 2)
    cut = sum(count * next((most for most in buckets if tokens <= most), length) for tokens, count in lengths.items())
    factors[f"--seq_length_buckets={buckets[0]},{buckets[1]} of tftrain.run"] = positions / cut
    said = [f"{factor:.1f} with {flags}" for flags, factor in factors.items() if factor >= _LEAST_FACTOR]
    if not said:
        return None
    return (
        f"{padding:.0%} of the positions are padding; estimated factor in real examples a second: {', or '.join(said)} "
        "(positions now / positions then)"
    )


def _packing(lengths: Counter, row_length: int) -> tuple[int, int]:
    """Returns how many examples a row should have at most, and the number of rows then."""
    unit = -(-row_length // _DIFFERENT_LENGTHS)
    counts = [0] * (row_length // unit + 1)
    for tokens, count in lengths.items():
        counts[min(-(-tokens // unit), len(counts) - 1)] += count
    best = (1, lengths.total())
    for most in _MOST_IN_ROW:
        rows = row_count(counts, len(counts) - 1, most)
        if rows * _WORTH > best[1]:
            break
        best = (most, rows)
    return best
